"""Words between two processes of a preflight: both prove that they know its secret, then stamp."""

import json
import socket
import struct
import time
from typing import Any

from holdfast.auth.handshake import AGENT, COORDINATOR, Identity, answer, call
from holdfast.auth.stamps import STAMP_BYTES, Stamps
from holdfast.errors import HoldfastError, PeerLost, ProtocolError
from holdfast.host.network import bear_silence

HANDSHAKE_LIMIT_S = 10.0
_SILENCE_S = 60.0
_MOST_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18
_LENGTH = struct.Struct("!I")
_PAUSE_S = 0.5


class Talk:
    """One end. PeerLost: the other one is gone, or says nothing for too long."""

    def __init__(self, sock: socket.socket, stamps: Stamps) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bear_silence(sock, _SILENCE_S)
        self._sock, self._stamps = sock, stamps

    @property
    def own_host(self) -> str:
        return str(self._sock.getsockname()[0])

    def send(self, **words: Any) -> None:
        body = json.dumps(words).encode()
        try:
            self._sock.sendall(self._stamps.stamped(_LENGTH.pack(len(body)) + body))
        except OSError as why:
            raise PeerLost(f"nobody takes what is said: {why}") from why

    def read(self, limit_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + limit_s
        head = self._exactly(_LENGTH.size, deadline_s)
        (length,) = _LENGTH.unpack(head)
        if length > _MOST_BYTES:
            raise ProtocolError(f"{length} bytes announced; at most {_MOST_BYTES}")
        frame = head + self._exactly(length + STAMP_BYTES, deadline_s)
        words = json.loads(self._stamps.opened(frame)[_LENGTH.size :])
        if not isinstance(words, dict):
            raise ProtocolError("expected names and values")
        return words

    def _exactly(self, length: int, deadline_s: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            data += self._some(length - len(data), deadline_s)
        return bytes(data)

    def _some(self, most: int, deadline_s: float) -> bytes:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise PeerLost("no answer in time")
        self._sock.settimeout(left_s)
        try:
            data = self._sock.recv(min(most, _CHUNK_BYTES))
        except OSError as why:
            raise PeerLost(f"nothing is heard any more: {why}") from why
        if not data:
            raise PeerLost("the other side has closed the connection")
        return data

    # --- plain bytes, to see how many pass ---

    def send_bytes(self, length: int, limit_s: float) -> None:
        chunk = bytes(min(length, _CHUNK_BYTES))
        self._sock.settimeout(limit_s)
        try:
            while length > 0:
                self._sock.sendall(chunk[:length])
                length -= len(chunk)
        except OSError as why:
            raise PeerLost(f"nobody takes what is sent: {why}") from why

    def drop_bytes(self, length: int, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while length > 0:
            length -= len(self._some(length, deadline_s))

    def close(self) -> None:
        self._sock.close()


def called(host: str, port: int, secret: bytes, *, role: str, limit_s: float) -> Talk:
    """HoldfastError: nobody is there, or not one of us."""
    try:
        sock = socket.create_connection((host, port), limit_s)
    except OSError as why:
        raise HoldfastError(f"{why.strerror or why}") from why
    try:
        _, stamps = call(sock, secret, Identity(AGENT), role, HANDSHAKE_LIMIT_S)
    except BaseException:
        sock.close()
        raise
    return Talk(sock, stamps)


def called_until(host: str, port: int, secret: bytes, limit_s: float) -> Talk:
    """Whoever coordinates, as soon as it is there."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            return called(host, port, secret, role=COORDINATOR, limit_s=HANDSHAKE_LIMIT_S)
        except ProtocolError:
            raise
        except HoldfastError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(_PAUSE_S)


def answered(sock: socket.socket, secret: bytes, role: str) -> Talk:
    """HoldfastError: it is a stranger."""
    try:
        _, stamps = answer(sock, secret, Identity(role), HANDSHAKE_LIMIT_S)
    except BaseException:
        sock.close()
        raise
    return Talk(sock, stamps)
