"""Until when a worker may commit and write: for a while after the coordinator has heard it.

Whoever is cut off cannot know what was decided without it. The coordinator goes on without a
worker that it has not heard for longer than a lease; by then that worker has stopped by itself.
Counted on its own clock, from when it told what the coordinator has answered: a delay on the way
only shortens it.
"""

import math
import threading
import time
from collections.abc import Callable

from holdfast.protocol.messages import Renewal

_LOOK_S = 0.05


class Lease:
    """Safe for any number of threads. ``is_needed`` False: it never ends."""

    def __init__(self, *, is_needed: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._until_s = -math.inf if is_needed else math.inf
        self._newest = 0  # renewal that has come; 0: none yet
        self._told_s: dict[int, float] = {}  # when a heartbeat first told that it had come

    def told(self) -> int:
        """The newest renewal, for a heartbeat that is about to be sent."""
        with self._changed:
            self._told_s.setdefault(self._newest, self._now())
            return self._newest

    def renew(self, renewal: Renewal) -> None:
        """One that answers nothing of this worker's, as to an earlier one of its name, is only
        noted."""
        with self._changed:
            answered_s = self._told_s.get(renewal.answers, -math.inf)
            self._until_s = max(self._until_s, answered_s + renewal.for_s)
            self._newest = renewal.number
            # Another coordinator counts anew: what was told under this number is over.
            wanted = {renewal.answers} - {renewal.number}
            self._told_s = {n: at_s for n, at_s in self._told_s.items() if n in wanted}
            self._changed.notify_all()

    @property
    def is_valid(self) -> bool:
        return self._now() < self._until_s

    def wait(self, check: Callable[[], None]) -> None:
        """Until it is valid, if it is not. ``check`` raises when that is not to be waited for."""
        while not self.is_valid:
            check()
            with self._changed:
                self._changed.wait(_LOOK_S)
