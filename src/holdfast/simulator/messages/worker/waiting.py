"""What a simulated worker waits for. Its life is a generator that yields its waits."""

from collections.abc import Generator
from typing import Any, TypeVar

SLEEP, ANY, INBOX, LEASE, LANES, SAVED, SAVED_LAST = range(7)
INTERRUPTED = (ANY, LEASE, LANES, SAVED_LAST)  # end at once when it is told to stop

Wait = tuple[int, Any]
_T = TypeVar("_T")
WaitsOf = Generator[Wait, Any, _T]


class ProcessKilled(Exception):
    """A fault has ended the process."""


class PeerAway(Exception):
    """The connection to another worker is broken, and it does not come back."""

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        self.worker = worker
