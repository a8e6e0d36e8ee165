"""One end of a connection for files: heads of a few words, and pieces of a file, each stamped.

A piece is never larger than ``PIECE_BYTES``, whatever the other side says. Where a piece is
awaited, a refusal may come instead.
"""

import json
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from holdfast.auth.stamps import STAMP_BYTES, Stamps
from holdfast.errors import ProtocolError, TransferFailed
from holdfast.host.network import bear_silence

PIECE_BYTES = 1 << 20
MOST_HEAD_BYTES = 1 << 16
# Of the machine at the other end: longer than its disk may hold it up, see ``bear_silence``.
SILENCE_LIMIT_S = 120.0
_BUFFER_BYTES = 4 << 20
_DRAIN_LIMIT_S = 5.0
_FRAME = struct.Struct("!cI")  # kind, bytes of the body; a stamp of both is between them
_HEAD, _PIECE = b"H", b"P"
_REFUSED = "refused"

FileWords = dict[str, Any]


class FileLink:
    """For one thread. TransferFailed: the connection is of no more use."""

    def __init__(self, sock: socket.socket, stamps: Stamps) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        bear_silence(sock, SILENCE_LIMIT_S)
        self._sock, self._stamps = sock, stamps
        self._until_s = time.monotonic() + SILENCE_LIMIT_S
        self._room = bytearray(PIECE_BYTES)

    def limit(self, limit_s: float) -> None:
        """For all that follows, from now on."""
        self._until_s = time.monotonic() + limit_s

    # --- heads ---

    def say(self, head: FileWords) -> None:
        self._send(_HEAD, json.dumps(head).encode())

    def refuse(self, reason: str) -> None:
        """Whatever the other side still sends is thrown away: else it would not hear why."""
        self.say({_REFUSED: reason[:1000]})
        self._sock.shutdown(socket.SHUT_WR)
        until_s = time.monotonic() + _DRAIN_LIMIT_S
        while (left_s := until_s - time.monotonic()) > 0:
            self._sock.settimeout(left_s)
            if not self._sock.recv_into(self._room):
                return

    def hear(self) -> FileWords:
        """TransferFailed, with its reason, if it is a refusal."""
        kind, body = self._receive()
        if kind != _HEAD:
            raise ProtocolError("a piece of a file came where none was awaited")
        return _opened_head(body)

    # --- pieces ---

    def send_pieces(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Broken off as soon as the other side says something: it can only be a refusal."""
        for piece in pieces:
            if self._is_spoken_to():
                self.hear()
                raise ProtocolError("it has answered before it had all")
            self._send(_PIECE, piece)

    def pieces(self, num_bytes: int) -> Iterator[memoryview]:
        """Exactly so many bytes, in order; each piece is true until the next one is asked for."""
        left = num_bytes
        while left:
            kind, body = self._receive()
            if kind == _HEAD:
                _opened_head(body)
                raise ProtocolError("it has spoken before it had sent all")
            if not 0 < len(body) <= left:
                raise ProtocolError(f"a piece of {len(body)} bytes where {left} were left to come")
            left -= len(body)
            yield body

    def close(self) -> None:
        with suppress(OSError):  # the other side was first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def shut(self) -> None:
        """By any thread: whoever waits here waits no longer."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    # --- frames ---

    def _send(self, kind: bytes, body: bytes | memoryview) -> None:
        head = _FRAME.pack(kind, len(body))
        try:
            self._sock.settimeout(self._left_s())
            self._sock.sendall(head + self._stamps.stamp(head, body))
            self._sock.sendall(body)
        except OSError as why:
            raise TransferFailed(f"the connection broke ({_words(why)})") from why

    def _receive(self) -> tuple[bytes, memoryview]:
        """The body is true until the next one is asked for."""
        sealed = bytes(self._exactly(_FRAME.size + STAMP_BYTES))
        head, stamp = sealed[: _FRAME.size], sealed[_FRAME.size :]
        kind, num_bytes = _FRAME.unpack(head)
        most = {_HEAD: MOST_HEAD_BYTES, _PIECE: PIECE_BYTES}.get(kind, -1)
        if num_bytes > most:
            raise ProtocolError(f"a frame of {num_bytes} bytes where at most {most} are expected")
        body = self._exactly(num_bytes)
        self._stamps.check(stamp, head, body)
        return kind, body

    def _exactly(self, num_bytes: int) -> memoryview:
        room, got = memoryview(self._room)[:num_bytes], 0
        try:
            while got < num_bytes:
                self._sock.settimeout(self._left_s())
                more = self._sock.recv_into(room[got:])
                if not more:
                    raise TransferFailed("the other side closed the connection")
                got += more
        except OSError as why:
            raise TransferFailed(f"the connection broke ({_words(why)})") from why
        return room

    def _left_s(self) -> float:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TransferFailed("it took longer than its limit")
        return left_s

    def _is_spoken_to(self) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))


def _opened_head(body: memoryview) -> FileWords:
    try:
        head = json.loads(bytes(body))
    except (ValueError, RecursionError) as why:
        raise ProtocolError(f"no words of a file service: {why}") from why
    if not isinstance(head, dict):
        raise ProtocolError("no words of a file service: expected names and values")
    if _REFUSED in head:
        [reason, *_] = str(head[_REFUSED]).splitlines() or [""]
        raise TransferFailed(reason, refused=True)
    return head


def _words(why: OSError) -> str:
    return "no answer in time" if isinstance(why, TimeoutError) else why.strerror or str(why)
