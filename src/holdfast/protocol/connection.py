"""One end of a control connection: whole messages over a TCP socket. Used by all processes."""

import socket
import time

from holdfast.errors import HoldfastError, PeerLost
from holdfast.protocol.codec import MAX_MESSAGE_BYTES, Splitter, encode
from holdfast.protocol.messages import Message

_SEND_LIMIT_S = 10.0


class Connection:
    """Blocking sends with a limit; :meth:`read` returns what has come, [] is never an end."""

    def __init__(self, sock: socket.socket, limit_bytes: int = MAX_MESSAGE_BYTES) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(_SEND_LIMIT_S)
        self._sock = sock
        self._splitter = Splitter(limit_bytes)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message) -> None:
        self.send_encoded(encode(message))

    def send_encoded(self, data: bytes) -> None:
        """What ``encode`` made: a message for many is encoded once."""
        try:
            self._sock.sendall(data)
        except OSError as why:
            raise PeerLost(f"the control connection broke while sending: {why}") from why

    def read(self) -> list[Message]:
        """Messages now readable; call it when a selector says so, or to block for some."""
        try:
            data = self._sock.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError as why:
            raise PeerLost(f"the control connection broke: {why}") from why
        if not data:
            raise PeerLost("the control connection was closed by the other side")
        return self._splitter.feed(data)

    def read_within(self, limit_s: float) -> list[Message]:
        """The next messages, of which there is at least one unless the limit is reached."""
        deadline_s = time.monotonic() + limit_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._sock.settimeout(left_s)
            if found := self.read():
                return found
        return []

    def trust(self) -> None:
        """The other side has shown who it is: take messages of any size from now on."""
        self._splitter.limit_bytes = MAX_MESSAGE_BYTES

    def shutdown(self) -> None:
        """End a blocked :meth:`read` of another thread."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already gone

    def close(self) -> None:
        self.shutdown()
        self._sock.close()


def connect(host: str, port: int, limit_s: float) -> Connection:
    try:
        return Connection(socket.create_connection((host, port), timeout=limit_s))
    except OSError as why:
        raise HoldfastError(f"cannot reach the launcher at {host}:{port}: {why}") from why
