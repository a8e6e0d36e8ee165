"""Somebody between two ends of a connection, who passes on their proofs."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from helpers.harness.transport_harness import LIMIT_S, Background
from holdfast.transport.tcp.sockets import shut

_NUM_BYTES = (58, 90, 37)  # of the three messages of a handshake: from the caller, to it, from it


def pass_on_handshake(caller: socket.socket, answerer: socket.socket) -> None:
    for number, num_bytes in enumerate(_NUM_BYTES):
        source, to = (answerer, caller) if number == 1 else (caller, answerer)
        data = source.recv(num_bytes, socket.MSG_WAITALL)
        assert len(data) == num_bytes, "the handshake was broken off"
        to.sendall(data)


class Meddler:
    """Stands between callers and a worker, and changes or delays bytes on their way."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._there = address
        self.change: Callable[[bytearray], None] | None = None  # of what callers say
        self.answers_pass = threading.Event()  # until then callers hear nothing, also of an end
        self.answers_pass.set()
        self.num_connections = 0
        self._thread = Background(self._run)

    def _run(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            there = socket.create_connection(self._there)
            Background(self._carry, here, there, True)
            Background(self._carry, there, here, False)

    def _carry(self, source: socket.socket, to: socket.socket, is_caller: bool) -> None:
        with source, to:
            with suppress(OSError):
                while data := bytearray(source.recv(1 << 16)):
                    if is_caller and self.change is not None:
                        self.change(data)
                    if not is_caller:
                        self.answers_pass.wait(LIMIT_S)
                    to.sendall(data)
            self.answers_pass.wait(LIMIT_S)
            shut(source)
            shut(to)

    def close(self) -> None:
        self.answers_pass.set()
        shut(self._listener)
        self._listener.close()
