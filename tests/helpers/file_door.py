"""A file service on loopback, and couriers to it: as a launcher or a worker has one."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.auth.handshake import COORDINATOR, Identity, answer
from holdfast.errors import HandshakeFailed
from holdfast.files.courier import Courier
from holdfast.files.file_service import Answer, FileService

SECRET = bytes(range(32))
GENERATION = 3


class Door:
    def __init__(self, listener: socket.socket, service: FileService, role: str) -> None:
        self._listener, self.service, self._role = listener, service, role
        self.port = listener.getsockname()[1]

    def run(self) -> None:
        me = Identity(self._role, "0.0" if self._role == "worker" else "", GENERATION)
        while True:
            try:
                sock = self._listener.accept()[0]
            except OSError:
                return
            with suppress(HandshakeFailed):
                peer, stamps = answer(sock, SECRET, me, 5.0)
                self.service.take(peer, sock, stamps)
                continue
            sock.close()

    def courier(self, *, generation: int = GENERATION, limit_s: float = 10.0) -> Courier:
        return Courier("127.0.0.1", self.port, SECRET, generation, "1.0", self._role, limit_s)


@contextmanager
def file_door(serve: Answer, role: str = COORDINATOR) -> Iterator[Door]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        service = FileService(serve, GENERATION)
        door = Door(listener, service, role)
        thread = threading.Thread(target=door.run, daemon=True)
        thread.start()
        try:
            yield door
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            service.close()
