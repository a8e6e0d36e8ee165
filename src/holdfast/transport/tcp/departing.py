"""One message on its way into a TCP connection, and when a broken connection is tried again."""

from time import monotonic

from holdfast.auth.stamps import Stamps
from holdfast.transport.frame import FRAME_HEADER_BYTES, Note, encode_note, numbered
from holdfast.transport.outbox import Waiting

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5  # between two attempts to connect
_SYNC = encode_note(Note.SYNC)


class Departing(Waiting):
    """A message, and what is left to write of it. A note, if it has no header."""

    __slots__ = ("_header", "_payload", "buffers")

    def __init__(self, epoch: int | None, header: bytes | None, payload: memoryview) -> None:
        super().__init__(epoch, FRAME_HEADER_BYTES + len(payload))
        self._header, self._payload = header, payload
        self.buffers: list[bytes | memoryview] = []

    @property
    def is_note(self) -> bool:
        return self._header is None

    def begin(self, sequence: int, stamps: Stamps) -> None:
        """Also again, from its first byte. It is the next one that its connection carries."""
        body = _SYNC if self._header is None else numbered(self._header, sequence)
        self.buffers = [stamps.stamped(body), self._payload]
        self.num_bytes = FRAME_HEADER_BYTES + len(self._payload)

    def written(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        buffers = self.buffers
        while buffers and num_bytes >= len(buffers[0]):
            num_bytes -= len(buffers.pop(0))
        if num_bytes:
            buffers[0] = memoryview(buffers[0])[num_bytes:]


class Trouble:
    """Since when nothing has got through, and how long to pause before the next attempt."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since_s: float | None = monotonic()
        self._pause_s = 0.0

    def begins(self) -> None:
        if self._since_s is None:
            self._since_s = monotonic()

    def is_over(self) -> None:
        self._since_s, self._pause_s = None, 0.0

    def next_attempt_s(self) -> float | None:
        """When; None: not within the limit."""
        assert self._since_s is not None
        at_s = monotonic() + self._pause_s
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        return at_s if at_s <= self._since_s + self.limit_s else None
