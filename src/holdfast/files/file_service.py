"""Answers couriers, each in a thread of its own, so that whoever has let them in is not held up."""

import socket
import threading
from collections.abc import Callable

from holdfast.auth.handshake import COURIER, Identity
from holdfast.auth.stamps import Stamps
from holdfast.errors import HoldfastError, ProtocolError, TransferFailed
from holdfast.files.file_link import FileLink, FileWords

MOST_COURIERS = 1024
IDLE_LIMIT_S = 600.0  # between two requests of one courier, and for each of them

Answer = Callable[[FileWords, FileLink], None]
"""ProtocolError or OSError: it is refused, in one line."""


class FileService:
    def __init__(self, answer: Answer, generation: int) -> None:
        self._answer, self._generation = answer, generation
        self._lock = threading.Lock()
        self._links: dict[FileLink, threading.Thread] = {}
        self._is_closed = False

    def take(self, peer: Identity, sock: socket.socket, stamps: Stamps) -> None:
        """One that has proven who it is. Its socket is ours from here on."""
        try:
            sock.setblocking(True)
            link = FileLink(sock, stamps)
        except OSError:  # it has hung up already
            sock.close()
            return
        thread = threading.Thread(target=self._serve, args=(link,), name="files", daemon=True)
        with self._lock:
            belongs = peer.role == COURIER and peer.generation == self._generation
            if belongs and not self._is_closed and len(self._links) < MOST_COURIERS:
                self._links[link] = thread
        try:
            if link in self._links:
                thread.start()
                return
        except RuntimeError:  # no thread to be had: it calls again
            self._forget(link)
        link.close()

    @property
    def num_couriers(self) -> int:
        return len(self._links)

    def close(self, limit_s: float = 5.0) -> None:
        """What is under way is broken off, and leaves nothing behind."""
        with self._lock:
            self._is_closed = True
            links = dict(self._links)
        for link in links:
            link.shut()
        for thread in links.values():
            if thread.ident is not None:
                thread.join(limit_s)

    # --- the threads ---

    def _serve(self, link: FileLink) -> None:
        try:
            while True:
                link.limit(IDLE_LIMIT_S)
                self._answer_one(link)
        except (HoldfastError, OSError):
            return  # it has ended, or was refused
        finally:
            link.close()
            self._forget(link)

    def _answer_one(self, link: FileLink) -> None:
        ask = link.hear()
        try:
            self._answer(ask, link)
        except TransferFailed:
            raise
        except (OSError, ProtocolError) as why:
            reason = why.strerror if isinstance(why, OSError) and why.strerror else str(why)
            link.refuse(reason)
            raise

    def _forget(self, link: FileLink) -> None:
        with self._lock:
            self._links.pop(link, None)
