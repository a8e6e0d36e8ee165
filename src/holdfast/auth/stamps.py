"""Who sent a frame, and in which place: a stamp on each, made with keys of this connection alone.

The handshake proves who is there when a connection begins. Whoever passes its messages on, from
one end to the other, is still in between after it; but does not know the keys. So a frame that was
made up, changed, left out, repeated or moved shows when it, or the one after it, is opened.
"""

import hmac
import struct
from functools import cached_property
from hashlib import sha256

from holdfast.errors import ProtocolError

STAMP_BYTES = 16
_NUMBER = struct.Struct("!Q")
_UNNUMBERED = (1 << 64) - 1
# Of a frame from here on the digest is stamped: one that goes to thousands is read once for them.
LONG_BYTES = 4 << 10
_OF_DIGEST = 1 << 63  # in the number: no short frame passes for the digest of a long one


class LongFrame(bytes):
    """Bytes that go to many."""

    @cached_property
    def digest(self) -> bytes:
        return sha256(self).digest()


class Stamps:
    """Of one end of one connection. The other end has the same keys, the other way round.

    Frames are counted on both ends, each way; the number does not travel. Whoever sends from
    several threads sends under the lock under which it stamps.
    """

    def __init__(self, outgoing_key: bytes, incoming_key: bytes) -> None:
        # Copied for each frame: the key is worked in once.
        self._outgoing = hmac.new(outgoing_key, digestmod="sha256")
        self._incoming = hmac.new(incoming_key, digestmod="sha256")
        self._num_stamped = self._num_opened = 0

    def stamped(self, data: bytes) -> bytes:
        stamp = _stamp_frame(self._outgoing, self._num_stamped, data)
        self._num_stamped += 1
        return data + stamp

    def opened(self, data: bytes | bytearray) -> bytes:
        """What was stamped. ProtocolError: it is not the next frame of who is there."""
        body = _checked(self._incoming, self._num_opened, data)
        self._num_opened += 1
        return body

    def stamp(self, *parts: bytes | memoryview) -> bytes:
        """Of a frame that is too large to be copied for it."""
        stamp = _stamp(self._outgoing, self._num_stamped, *parts)
        self._num_stamped += 1
        return stamp

    def check(self, stamp: bytes, *parts: bytes | memoryview) -> None:
        """As :meth:`opened`, of what the other end has made with :meth:`stamp`."""
        expected = _stamp(self._incoming, self._num_opened, *parts)
        if not hmac.compare_digest(stamp, expected):
            raise _wrong(sum(map(len, parts)))
        self._num_opened += 1

    def stamped_unnumbered(self, data: bytes) -> bytes:
        """For what may be lost, or come again, without harm."""
        return data + _stamp_frame(self._outgoing, _UNNUMBERED, data)

    def opened_unnumbered(self, data: bytes | bytearray) -> bytes:
        return _checked(self._incoming, _UNNUMBERED, data)


def _stamp_frame(keyed: hmac.HMAC, number: int, data: bytes) -> bytes:
    if len(data) < LONG_BYTES:
        return _stamp(keyed, number, data)
    digest = data.digest if isinstance(data, LongFrame) else sha256(data).digest()
    return _stamp(keyed, number ^ _OF_DIGEST, digest)


def _stamp(keyed: hmac.HMAC, number: int, *parts: bytes | memoryview) -> bytes:
    stamp = keyed.copy()
    stamp.update(_NUMBER.pack(number))
    for part in parts:
        stamp.update(part)
    return stamp.digest()[:STAMP_BYTES]


def _checked(keyed: hmac.HMAC, number: int, data: bytes | bytearray) -> bytes:
    body, stamp = bytes(data[:-STAMP_BYTES]), data[-STAMP_BYTES:]
    if not hmac.compare_digest(stamp, _stamp_frame(keyed, number, body)):
        raise _wrong(len(data))
    return body


def _wrong(num_bytes: int) -> ProtocolError:
    return ProtocolError(
        f"a frame of {num_bytes} bytes has a wrong stamp: it was changed or made up on its "
        "way, or is not the next one of its sender"
    )
