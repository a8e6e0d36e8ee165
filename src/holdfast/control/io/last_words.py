"""What a worker had sent before it was lost, e.g. that a part of a checkpoint is on disk."""

import selectors

from holdfast.errors import PeerLost, ProtocolError
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection

_MOST_READS = 16  # one that lives may go on sending for ever


def last_words(selector: selectors.BaseSelector, connection: Connection) -> list[messages.Message]:
    heard: list[messages.Message] = []
    try:
        for _ in range(_MOST_READS):
            if not any(key.fileobj is connection for key, _ in selector.select(0)):
                break
            heard += connection.read()
    except (PeerLost, ProtocolError):
        return heard
    return heard
