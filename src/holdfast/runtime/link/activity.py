"""What a worker's own thread is busy with, for its heartbeats. Waiting for others is not busy."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOAD, OPTIMIZER = "load", "optimizer"  # besides the kinds of operations
_NOTHING = ""


@dataclass(frozen=True, slots=True)
class Busy:
    number: int  # no other of this worker has the same
    kind: str
    microbatch: int  # -1: none
    since_s: float


class Activity:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._stack: tuple[Busy, ...] = ()
        self._num = 0
        self._longest: dict[str, float] = {}

    @contextmanager
    def doing(self, kind: str, microbatch: int = -1) -> Iterator[None]:
        """What is done inside of something else, as loading data in a forward, is no part of it."""
        self._num += 1
        before = self._stack
        began_s = self._now()
        self._stack = (*before, Busy(self._num, kind, microbatch, began_s))
        try:
            yield
        finally:
            busy, now_s = self._stack[-1], self._now()
            with self._lock:
                took_s = now_s - busy.since_s
                self._longest[kind] = max(took_s, self._longest.get(kind, 0.0))
            whole_s = now_s - began_s
            self._stack = tuple(
                Busy(one.number, one.kind, one.microbatch, one.since_s + whole_s) for one in before
            )

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """On purpose, in the midst of something: that is no part of it, and nothing to judge."""
        with self.doing(_NOTHING):
            yield

    @property
    def current(self) -> Busy | None:
        stack = self._stack
        return stack[-1] if stack and stack[-1].kind != _NOTHING else None

    def busy_s(self, busy: Busy) -> float:
        return self._now() - busy.since_s

    def take_longest(self) -> dict[str, float]:
        """Of each kind that came to an end since the last time."""
        with self._lock:
            longest, self._longest = self._longest, {}
        longest.pop(_NOTHING, None)
        return longest
