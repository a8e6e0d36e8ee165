"""One attempt to reach a peer: connect, prove who calls, name the session, hear the answer."""

import os
import select
import socket
from collections.abc import Callable

from holdfast.auth.stamps import Stamps
from holdfast.auth.tls import calling
from holdfast.transport.base import Limits, SocketAddress
from holdfast.transport.tcp.greeting import ANSWER_BYTES, SessionHello, decode_answer, encode_hello
from holdfast.transport.tcp.sockets import read_exactly, tune_outgoing


class Dialer:
    """``introduce`` proves to whoever has answered who we are, and that it is who it should be."""

    def __init__(
        self,
        address: SocketAddress,
        introduce: Callable[[socket.socket], Stamps],
        limits: Limits,
        *,
        encrypts: bool = False,
    ) -> None:
        self.address = address
        self._introduce, self._limits, self._encrypts = introduce, limits, encrypts
        self._num_addresses, self._num_failed = 1, 0  # a name may have several

    def new_socket(self) -> tuple[socket.socket, SocketAddress]:
        """Not connected yet, so that its owner can break off what follows."""
        found = socket.getaddrinfo(*self.address, type=socket.SOCK_STREAM)
        self._num_addresses = len(found)
        family, kind, protocol, _, resolved = found[self._num_failed % len(found)]
        return socket.socket(family, kind, protocol), (str(resolved[0]), int(resolved[1]))

    def begin(self, connection: socket.socket, resolved: SocketAddress) -> None:
        connection.setblocking(False)
        tune_outgoing(connection, self._limits.silence_limit_s)
        connection.connect_ex(resolved)

    def wait_connected(self, connection: socket.socket) -> None:
        try:
            self._wait_connected(connection)
        except OSError as why:
            self._num_failed += 1
            if isinstance(why, ConnectionRefusedError) and self._num_failed < self._num_addresses:
                raise ConnectionError(f"{why}; it has another address") from why
            raise
        self._num_failed %= self._num_addresses  # this one is good

    def secured(self, connection: socket.socket) -> socket.socket:
        """What to go on with: it takes the descriptor over. Does not wait."""
        return calling(connection) if self._encrypts else connection

    def finish(self, connection: socket.socket, hello: SessionHello) -> tuple[int, Stamps]:
        """How many messages of the session the peer has, or GOODBYE; and what to stamp with."""
        connection.settimeout(self._limits.connect_limit_s)
        stamps = self._introduce(connection)
        connection.sendall(stamps.stamped(encode_hello(hello)))
        answer = bytearray(ANSWER_BYTES)
        if read_exactly(connection, memoryview(answer)) < ANSWER_BYTES:
            raise ConnectionError("it closed the connection before it answered")
        connection.settimeout(None)
        return decode_answer(stamps.opened_unnumbered(answer)), stamps

    def _wait_connected(self, connection: socket.socket) -> None:
        poll = select.poll()
        poll.register(connection, select.POLLOUT)
        if not poll.poll(self._limits.connect_limit_s * 1000):
            raise TimeoutError(f"no connection within {self._limits.connect_limit_s} s")
        if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
