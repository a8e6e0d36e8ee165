"""Calls a file service: puts a file there, fetches one, or asks for some bytes."""

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.addresses import host_port
from holdfast.auth.handshake import COURIER, Identity, call
from holdfast.auth.tls import calling, greet
from holdfast.errors import HandshakeFailed, ProtocolError, TransferFailed
from holdfast.files.file_link import PIECE_BYTES, FileLink, FileWords
from holdfast.names import check_number

MOST_FILE_BYTES = 1 << 46
_CONNECT_LIMIT_S = 20.0

Dial = Callable[[tuple[str, int], float], socket.socket]


@dataclass(frozen=True)
class Courier:
    """``name``: of the worker that sends it; ``to_role``: of whoever answers there."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    generation: int
    name: str
    to_role: str
    limit_s: float  # of one file
    dial: Dial = socket.create_connection
    tls: bool = False  # it is spoken there
    certificate: str = ""  # fingerprint of the one that is shown; empty: the secret vouches for it

    def __str__(self) -> str:
        return host_port(self.host, self.port)

    @contextmanager
    def link(self) -> Iterator[FileLink]:
        """TransferFailed in one line, with where it was. An OSError is of a disk here."""
        link = self._called()
        try:
            link.limit(self.limit_s)
            yield link
        except TransferFailed as why:
            raise TransferFailed(f"{self}: {why}", refused=why.refused) from why
        except ProtocolError as why:
            raise TransferFailed(f"{self}: {why}") from why
        finally:
            link.close()

    def _called(self) -> FileLink:
        sock = None
        try:
            sock = self.dial((self.host, self.port), min(self.limit_s, _CONNECT_LIMIT_S))
            me = Identity(COURIER, self.name, self.generation)
            binding = b""
            if self.tls:
                sock = secure = calling(sock)
                binding = greet(secure, self.certificate, _CONNECT_LIMIT_S)
            peer, stamps = call(sock, self.secret, me, self.to_role, _CONNECT_LIMIT_S, binding)
            if peer.generation < self.generation:  # one that has taken over serves us too
                raise HandshakeFailed(f"launch {peer.generation} of the run is there")
            return FileLink(sock, stamps)
        except (OSError, HandshakeFailed) as why:
            if sock is not None:
                sock.close()
            raise TransferFailed(f"{self}: {why}") from why

    def put(self, link: FileLink, ask: FileWords, path: Path, sha256: str) -> None:
        """All of it is there then, or nothing. OSError: it cannot be read here."""
        with open(path, "rb") as file:
            num_bytes = path.stat().st_size
            link.say({**ask, "size": num_bytes, "sha256": sha256})
            link.hear()
            link.send_pieces(iter(lambda: file.read(PIECE_BYTES), b""))
            link.hear()

    def fetch(self, link: FileLink, ask: FileWords, path: Path) -> str:
        """Into a new file; returns its SHA-256."""
        link.say(ask)
        num_bytes = check_number(link.hear().get("size"), "size", 0, MOST_FILE_BYTES)
        digest = hashlib.sha256()
        with open(path, "xb") as file:
            for piece in link.pieces(num_bytes):
                digest.update(piece)
                file.write(piece)
        return digest.hexdigest()

    def read(self, link: FileLink, ask: FileWords, most_bytes: int) -> bytes:
        link.say(ask)
        num_bytes = check_number(link.hear().get("size"), "size", 0, most_bytes)
        return b"".join(map(bytes, link.pieces(num_bytes)))


@dataclass(frozen=True)
class BreakableCourier(Courier):
    """Whose calls another thread may break off."""

    _links: list[FileLink] = field(default_factory=list, compare=False)
    _given_up: threading.Event = field(default_factory=threading.Event, compare=False)

    @contextmanager
    def link(self) -> Iterator[FileLink]:
        self._check()
        with super().link() as link:
            self._links.append(link)
            try:
                self._check()
                yield link
            finally:
                self._links.remove(link)

    def break_off(self) -> None:
        """For good."""
        self._given_up.set()
        for link in list(self._links):
            link.shut()

    def _check(self) -> None:
        if self._given_up.is_set():
            raise TransferFailed("it was broken off", refused=True)
