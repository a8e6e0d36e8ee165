"""The socket that a watched job writes to. Knows nothing of what the lines are good for."""

import selectors
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.watch.records import Lost, RankHello, Reader, Record

_PIECE_BYTES = 1 << 16
_BACKLOG = 128  # ranks that connect at the same moment


class ProcessEnded(NamedTuple):
    """A process has closed its connection: it has ended."""


Said = RankHello | Record | Lost | ProcessEnded


class _Peer(NamedTuple):
    number: int
    reader: Reader


class Collector:
    """Yields (number of the process, what it said). Never waits longer than told."""

    def __init__(self, path: Path, selector: selectors.BaseSelector) -> None:
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(_BACKLOG)
        self._server.setblocking(False)
        self._selector = selector
        self._num_peers = 0
        self.num_dropped = 0  # lines that were not kept, of all processes
        selector.register(self._server, selectors.EVENT_READ, None)

    def handle(self, key: selectors.SelectorKey) -> Iterator[tuple[int, Said]]:
        if key.fileobj is self._server:
            self._accept()
        elif isinstance(key.data, _Peer) and isinstance(key.fileobj, socket.socket):
            yield from self._read(key.fileobj, key.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:  # it has gone again
            return
        connection.setblocking(False)
        self._num_peers += 1
        peer = _Peer(self._num_peers, Reader())
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _read(self, connection: socket.socket, peer: _Peer) -> Iterator[tuple[int, Said]]:
        try:
            data = connection.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            yield peer.number, ProcessEnded()
        before = peer.reader.num_dropped
        items = peer.reader.feed(data)
        self.num_dropped += peer.reader.num_dropped - before
        for item in items:
            yield peer.number, item

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                self._selector.unregister(key.fileobj)
                key.fileobj.close()
