"""One end of a control connection: whole messages over TCP, or TLS over it. For all processes."""

import socket
import time

from holdfast.auth.handshake import COORDINATOR, Identity, call
from holdfast.auth.stamps import Stamps
from holdfast.auth.tls import calling, greet
from holdfast.auth.tls_socket import TlsSocket
from holdfast.config import MOST_TIMEOUT_S
from holdfast.errors import HandshakeBroken, HandshakeFailed, HoldfastError, PeerLost
from holdfast.host.network import bear_silence
from holdfast.protocol.codec import Splitter, encode
from holdfast.protocol.messages import Message
from holdfast.protocol.spec import Access

_SEND_LIMIT_S = 10.0
_PAUSE_S = 0.1


class Connection:
    """Blocking sends with a limit; :meth:`read` returns what has come, [] is never an end.

    Made when both sides have proven who they are; every message carries a stamp of that.
    """

    def __init__(
        self,
        sock: socket.socket,
        stamps: Stamps,
        send_limit_s: float = _SEND_LIMIT_S,
        silence_limit_s: float = MOST_TIMEOUT_S,
    ) -> None:
        """``silence_limit_s``: see ``WorkersConfig``."""
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            bear_silence(sock, silence_limit_s)
        sock.settimeout(send_limit_s)
        self._sock = sock
        self._stamps, self._splitter = stamps, Splitter(stamps)

    @property
    def own_host(self) -> str:
        """The address of this machine that leads to the other side."""
        return str(self._sock.getsockname()[0])

    @property
    def is_within_machine(self) -> bool:
        """Whoever calls an address of its own machine has the same one."""
        try:
            return bool(self._sock.getpeername()[0] == self._sock.getsockname()[0])
        except OSError:  # it is gone
            return False

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message) -> None:
        self.send_encoded(encode(message))

    def send_encoded(self, data: bytes) -> None:
        """What ``encode`` made: a message for many is encoded once."""
        try:
            self._sock.sendall(self._stamps.stamped(data))
        except OSError as why:
            raise PeerLost(f"the control connection broke while sending: {why}") from why

    def read(self) -> list[Message]:
        """Messages now readable; call it when a selector says so, or to block for some."""
        try:
            data = self._sock.recv(1 << 16)
        except (TimeoutError, BlockingIOError):  # nothing, or of TLS half a record
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

    def shutdown(self) -> None:
        """End a blocked :meth:`read` of another thread."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already gone

    def close(self) -> None:
        self.shutdown()
        self._sock.close()


def connect(
    access: Access,
    role: str,
    name: str,
    limit_s: float,
    *,
    silence_limit_s: float = MOST_TIMEOUT_S,
) -> tuple[Connection, int]:
    """To the launcher of this run and no other; also which launch of the run it is.

    HandshakeFailed: whoever is there does not belong to the run, or to another launch of it.
    """
    me = Identity(role, name, access.generation)
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            address = (access.host, access.port)
            sock = socket.create_connection(address, max(0.0, deadline_s - time.monotonic()))
        except OSError as why:
            raise HoldfastError(f"cannot reach the launcher at {access}: {why}") from why
        try:
            if access.certificate:
                sock = calling(sock)
            found, stamps = _introduced(sock, access, me, deadline_s)
            break
        except (HandshakeBroken, OSError):  # too many strangers at its door: once more
            sock.close()
            if time.monotonic() + _PAUSE_S > deadline_s:
                raise
            time.sleep(_PAUSE_S)
        except HandshakeFailed:
            sock.close()
            raise
    if found.generation < access.generation:  # one that has been taken over from
        sock.close()
        raise HandshakeFailed(
            f"launch {found.generation} of the run is at {access}; "
            f"this process belongs to launch {access.generation}"
        )
    return Connection(sock, stamps, silence_limit_s=silence_limit_s), found.generation


def _introduced(
    sock: socket.socket, access: Access, me: Identity, deadline_s: float
) -> tuple[Identity, Stamps]:
    binding = b""
    if isinstance(sock, TlsSocket):
        binding = greet(sock, access.expected_certificate, deadline_s - time.monotonic())
    left_s = deadline_s - time.monotonic()
    return call(sock, access.secret, me, COORDINATOR, left_s, binding)
