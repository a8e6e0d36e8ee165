"""A queue of events in virtual time. Ties are broken by the order in which they were put there."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

_Entry = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class VirtualTime:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._queue: list[_Entry] = []
        self._number = 0

    def at(self, at_s: float, act: Callable[..., None], *given: Any) -> None:
        self._number += 1
        heappush(self._queue, (max(at_s, self.now_s), self._number, act, given))

    def after(self, seconds: float, act: Callable[..., None], *given: Any) -> None:
        self._number += 1
        heappush(self._queue, (self.now_s + max(seconds, 0.0), self._number, act, given))

    def read(self) -> float:
        """As a clock: for whoever wants one."""
        return self.now_s

    def run(self, until_s: float, is_over: Callable[[], bool]) -> None:
        """One event after the other, as long as there are any."""
        queue = self._queue
        while queue and self.now_s < until_s and not is_over():
            self.now_s, _, act, given = heappop(queue)
            self.num_events += 1
            act(*given)
