"""Gives the tasks of a half-done step to workers: who has begun one ends it, the rest is shared.

Nobody is done later than in a balance of all. Up to there work stays in its own pipeline: pipelines
that nothing happened to are alike then, and their tensors go where they went before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.arrays import Ints
from holdfast.planner.kernel.compiled import is_plain, plain_twins
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.remainder import sharing
from holdfast.planner.remainder.lineage import Holders, TaskTable
from holdfast.planner.remainder.sharing import UNTAKEN

_NUM_SORTS = 8  # of tasks: any of F, B and W, as bits


@dataclass(frozen=True)
class TaskPlacing:
    """``fleet``: all holders, in the order in which tasks number them."""

    fleet: Fleet
    holders: Holders
    plain: bool | None = None

    def ways(self, tasks: TaskTable) -> Iterator[Ints]:
        """The worker of each task, at home where that costs nothing; then in balance alone."""
        at_home = self._placed(tasks, stays=True)
        yield at_home
        evenly = self._placed(tasks, stays=False)
        if (evenly != at_home).any():
            yield evenly

    def _placed(self, tasks: TaskTable, *, stays: bool) -> Ints:
        takes = self._takes()
        owner, load = tasks.owner.copy(), np.zeros(len(self.fleet.workers), np.int64)
        bound = np.flatnonzero(owner >= 0)
        np.add.at(load, owner[bound], takes[tasks.bits[bound], tasks.stage[bound], owner[bound]])
        homes = tasks.microbatch // self.fleet.problem.shape.microbatches_per_pipeline
        for stage, holders in enumerate(self._by_stage()):
            free = np.flatnonzero((tasks.stage == stage) & (owner < 0))
            if len(free):
                at_home = self._homes(holders)[homes[free]]
                of_stage = np.ascontiguousarray(takes[:, stage, holders])
                mine, asked = load[holders], (tasks.bits[free], at_home, of_stage)
                shared = self._at_home_if_free if stays else self._evenly
                owner[free] = holders[shared(*asked, mine)]
                load[holders] = mine
        return owner

    def _takes(self) -> Ints:
        """Ticks: [sort][stage][worker]."""
        forward, gradient, weight, _ = self.fleet.times.kinds
        whole = self.fleet.times.each - forward  # fused if that is shorter
        backward = [0.0 * forward, gradient, weight, whole]
        rows = [forward * (bits & 1) + backward[bits >> 1] for bits in range(_NUM_SORTS)]
        return self.fleet.units.ticks(np.array(rows)[:, :, None] / self.fleet.speed)

    def _by_stage(self) -> list[Ints]:
        found: list[list[int]] = [[] for _ in range(self.fleet.problem.shape.stages)]
        for number, worker in enumerate(self.fleet.workers):
            for stage in self.holders[worker]:
                found[stage].append(number)
        return [np.array(numbers, np.int64) for numbers in found]

    def _homes(self, holders: Ints) -> Ints:
        """Place among the holders of the first one of each pipeline."""
        found = np.full(self.fleet.problem.shape.pipelines, -1, np.int64)
        for place, number in reversed(list(enumerate(holders.tolist()))):
            pipeline = self.fleet.workers[number].pipeline
            if pipeline < len(found):
                found[pipeline] = place
        return found

    def _evenly(self, sort: Ints, homes: Ints, takes: Ints, load: Ints) -> Ints:
        """The holder of each task; ``load``: of all of them, also afterwards."""
        taken = np.full(len(sort), UNTAKEN, np.int64)
        self._run("balance", sort, homes, takes, load, taken)
        return taken

    def _at_home_if_free(self, sort: Ints, homes: Ints, takes: Ints, load: Ints) -> Ints:
        """The same, with nobody done later than there."""
        even_load, taken = load.copy(), np.full(len(sort), UNTAKEN, np.int64)
        evenly = taken.copy()
        limit = self._run("balance", sort, homes, takes, even_load, evenly)
        home_load = load.copy()
        self._run("stay_home", sort, homes, takes, home_load, taken, limit)
        last = self._run("balance", sort, homes, takes, home_load, taken)
        load[:] = home_load if last <= limit else even_load
        return taken if last <= limit else evenly

    def _run(self, name: str, *args: Any) -> int:
        """A loop of ``sharing``; of ``args`` it changes the load and who takes what."""
        if not is_plain(self.plain):
            compiled: Callable[..., int] = vars(sharing)[name]
            return compiled(*args)
        lists = [one.tolist() if isinstance(one, np.ndarray) else one for one in args]
        result: int = plain_twins(sharing)[name](*lists)
        for array, changed in zip(args[3:5], lists[3:5], strict=True):
            array[:] = changed
        return result
