"""What a peer has said and nobody has heard yet; also after it was lost.

A worker that is lost may have said before that a part of a checkpoint is on disk.
"""

import selectors
from collections import deque
from collections.abc import Iterator

from holdfast.errors import PeerLost, ProtocolError
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection

_MOST_READS = 16  # one that lives may go on sending for ever


class Unheard:
    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._read: dict[Connection, deque[messages.Message]] = {}

    def words(self, connection: Connection) -> Iterator[messages.Message]:
        """What has come, one after the other: what one leads to may make the next the last."""
        waiting = self._read[connection] = deque(connection.read())
        try:
            while waiting:
                yield waiting.popleft()
        finally:
            del self._read[connection]

    def last_words(self, connection: Connection) -> list[messages.Message]:
        waiting = self._read.get(connection, deque())
        heard = [*waiting]
        waiting.clear()
        try:
            for _ in range(_MOST_READS):
                if not any(key.fileobj is connection for key, _ in self._selector.select(0)):
                    break
                heard += connection.read()
        except (PeerLost, ProtocolError):
            return heard
        return heard
