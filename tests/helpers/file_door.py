"""A file service on loopback, and couriers to it: as a launcher or a worker has one."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from helpers.certificates import LIMIT_S, secured_by
from holdfast.auth.certificate import TlsKey
from holdfast.auth.handshake import COORDINATOR, Identity, answer
from holdfast.auth.tls import TlsServer
from holdfast.errors import HandshakeFailed
from holdfast.files.courier import Courier
from holdfast.files.file_service import Answer, FileService

SECRET = bytes(range(32))
GENERATION = 3


class Door:
    def __init__(
        self, listener: socket.socket, service: FileService, role: str, key: TlsKey | None
    ) -> None:
        self._listener, self.service, self._role = listener, service, role
        self._key, self._tls = key, None if key is None else TlsServer(key)
        self.port = listener.getsockname()[1]

    def run(self) -> None:
        me = Identity(self._role, "0.0" if self._role == "worker" else "", GENERATION)
        while True:
            try:
                sock = self._listener.accept()[0]
            except OSError:
                return
            with suppress(HandshakeFailed, ConnectionError):
                binding = b""
                if self._tls is not None:
                    sock, binding = secured_by(self._tls, sock), self._tls.binding
                peer, stamps = answer(sock, SECRET, me, LIMIT_S, binding)
                self.service.take(peer, sock, stamps)
                continue
            sock.close()

    def courier(self, *, generation: int = GENERATION, limit_s: float = LIMIT_S) -> Courier:
        certificate = "" if self._key is None else self._key.fingerprint
        return Courier(
            *("127.0.0.1", self.port, SECRET, generation, "1.0", self._role, limit_s),
            tls=self._key is not None,
            certificate=certificate,
        )


@contextmanager
def file_door(serve: Answer, role: str = COORDINATOR, key: TlsKey | None = None) -> Iterator[Door]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        service = FileService(serve, GENERATION)
        door = Door(listener, service, role, key)
        thread = threading.Thread(target=door.run, daemon=True)
        thread.start()
        try:
            yield door
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT_S)
            service.close()
