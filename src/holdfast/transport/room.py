"""How much of each sender may wait unread, and who waits until there is room for more.

Shares its owner's lock. Knows nothing of messages, only of their bytes.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import monotonic

from holdfast.cluster import WorkerId
from holdfast.transport.timed_wait import wait_until


class Room:
    """``changed``: with its lock held, all but ``wait`` and ``held_up`` are called."""

    def __init__(self, me: WorkerId, inbox_bytes: int, changed: threading.Condition) -> None:
        self._me, self._inbox_bytes, self._changed = me, inbox_bytes, changed
        self.unread_bytes: Counter[WorkerId] = Counter()
        self.is_closed = False
        self._num_waiting_for: Counter[WorkerId] = Counter()
        self._num_paused = 0
        self._num_held_up = 0

    def is_full(self, source: WorkerId) -> bool:
        """Should ``source`` wait before it delivers more?

        Never while it is waited for, so that a full inbox cannot keep back the very message
        that would empty it; nor while our own worker is held up in a send and so cannot
        read, or a circle of full workers would wait for each other.
        """
        return (
            self.unread_bytes[source] > self._inbox_bytes
            and not self._num_waiting_for[source]
            and not self._num_held_up
            and not self.is_closed
        )

    @contextmanager
    def waited_for(self, sources: Collection[WorkerId]) -> Iterator[None]:
        """Whoever is waited for may go on."""
        for source in sources:
            self._num_waiting_for[source] += 1
        self.changed()
        try:
            yield
        finally:
            for source in sources:
                self._num_waiting_for[source] -= 1

    def changed(self) -> None:
        """Somebody who is paused may go on now."""
        if self._num_paused:
            self._changed.notify_all()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Our own worker waits in a send."""
        with self._changed:
            self._num_held_up += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._num_held_up -= 1

    def wait(
        self, source: WorkerId, timeout_s: float, check: Callable[[], None] | None = None
    ) -> None:
        """Return when ``source`` may deliver more; ``check`` may raise to end the wait."""
        deadline_s = monotonic() + timeout_s
        with self._changed:
            self._num_paused += 1
            try:
                while self.is_full(source):
                    if check is not None:
                        check()
                    wait_until(
                        deadline_s,
                        self._changed,
                        lambda: (
                            f"worker {source} waited {timeout_s} s for room at worker {self._me}, "
                            f"which has {self.unread_bytes[source]} unread bytes of it"
                        ),
                    )
            finally:
                self._num_paused -= 1
