"""Results of the workers' compute benchmarks, each against the first ones of the same worker.
When they run, and what follows from them, is not known here."""

import math
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.detection.live.predicted import lower_median

_NUM_FIRST_STEPS = 6  # results of so many steps from the first one on are its baseline


class Benchmark(NamedTuple):
    step: int
    wall_s: float
    cpu_s: float


class Benchmarks:
    def __init__(self) -> None:
        self._first: dict[WorkerId, Benchmark] = {}
        self._newest: dict[WorkerId, Benchmark] = {}

    def add(self, worker: WorkerId, result: Benchmark) -> None:
        if result.wall_s <= 0:
            return
        first = self._first.setdefault(worker, result)
        if result.step - first.step >= _NUM_FIRST_STEPS:
            self._newest[worker] = result
        elif result.wall_s < first.wall_s:  # others on the processor only ever make it longer
            self._first[worker] = result._replace(step=first.step)

    def forget(self, worker: WorkerId) -> None:
        self._first.pop(worker, None)
        self._newest.pop(worker, None)

    def since(self, worker: WorkerId, step: int | None) -> float | None:
        """Log of a result of ``step`` or later over its baseline; None: there is none yet."""
        newest = self._newest.get(worker)
        if step is None or newest is None or newest.step < step:
            return None
        return math.log(newest.wall_s / self._first[worker].wall_s)

    def at_start(self, worker: WorkerId) -> float | None:
        """Log of its baseline over that of the other workers; None: nothing to compare."""
        others = [first.wall_s for other, first in self._first.items() if other != worker]
        if worker not in self._first or not others:
            return None
        return math.log(self._first[worker].wall_s / lower_median(others))
