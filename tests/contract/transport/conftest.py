"""What several tests of transports share."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def deaf_address() -> Iterator[tuple[str, int]]:
    """An address that answers no new caller: its queue of callers is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for caller in (first, second):
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()
