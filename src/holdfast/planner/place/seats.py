"""Which worker goes to which machine, once it is known how many of its stage do.

Workers of one stage may change seats at no cost, so those get together that are neighbours of a
pipeline. A search of single shifts and swaps among the workers that are to be started follows.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from holdfast.arrays import Ints
from holdfast.cluster import WorkerId
from holdfast.planner.place.counts import SpreadProblem, best_counts, on_one_machine
from holdfast.planner.place.runs import Seats, seated_by_runs

_NUM_PASSES = 4


def filled(
    rooms: Mapping[str, int],
    kept: Mapping[WorkerId, str],
    starts: Collection[WorkerId],
    stage_of: Mapping[WorkerId, int],
    *,
    stages: int,
    hot_spares: Mapping[str, int] | None = None,
    may_move: bool,
) -> dict[WorkerId, str]:
    """The machine of those that run, ``kept``, and of those that start; there is room for all."""
    names = list(rooms)
    number = {name: index for index, name in enumerate(names)}
    homes = {worker: number[name] for worker, name in kept.items()}
    problem = _problem(list(rooms.values()), homes, starts, stage_of, stages)
    for name, hot in (hot_spares or {}).items():
        problem.hot[number[name]] = hot
    seats = seated_by_runs(homes, starts, problem, stage_of)
    guess = _counted(seats, stage_of, problem.kept.shape)
    counts = best_counts(problem, guess, may_move=may_move)
    if (counts != guess).any():
        seats = _seated(homes, starts, counts, stage_of)
    seats = _Closer(seats, starts, counts, problem, stage_of).run()
    return {worker: names[seats[worker]] for worker in sorted(seats)}


def _problem(
    rooms: list[int],
    homes: Seats,
    starts: Iterable[WorkerId],
    stage_of: Mapping[WorkerId, int],
    stages: int,
) -> SpreadProblem:
    kept = _counted(homes, stage_of, (len(rooms), stages))
    missing = np.bincount([stage_of[worker] for worker in starts], minlength=stages)
    return SpreadProblem(np.array(rooms), kept, missing, np.zeros(len(rooms), np.int64))


def _counted(seats: Seats, stage_of: Mapping[WorkerId, int], size: tuple[int, ...]) -> Ints:
    """[machine][stage]"""
    counts = np.zeros(size, np.int64)
    for worker, machine in seats.items():
        counts[machine, stage_of[worker]] += 1
    return counts


def _seated(
    kept: Mapping[WorkerId, int],
    starts: Iterable[WorkerId],
    counts: Ints,
    stage_of: Mapping[WorkerId, int],
) -> Seats:
    """``kept``: where workers run now; they stay where ``counts`` allows it."""
    seats: Seats = {}
    left = counts.copy()
    comers: list[WorkerId] = []
    for worker in sorted(kept):
        machine, stage = kept[worker], stage_of[worker]
        if left[machine, stage] > 0:
            left[machine, stage] -= 1
            seats[worker] = machine
        else:
            comers.append(worker)
    for worker in sorted([*comers, *starts], key=lambda each: (stage_of[each], each)):
        stage = stage_of[worker]
        open_to = np.flatnonzero(left[:, stage]).tolist()
        machine = max(open_to, key=lambda each: (_num_near(seats, worker, each), -each))
        left[machine, stage] -= 1
        seats[worker] = machine
    return seats


def _neighbours(worker: WorkerId) -> tuple[WorkerId, WorkerId]:
    pipeline, stage = worker
    return WorkerId(pipeline, stage - 1), WorkerId(pipeline, stage + 1)


def _num_near(seats: Seats, worker: WorkerId, machine: int) -> int:
    return sum(seats.get(other) == machine for other in _neighbours(worker))


class _Closer:
    """Brings workers that are to be started closer to their neighbours."""

    def __init__(
        self,
        seats: Seats,
        starts: Iterable[WorkerId],
        counts: Ints,
        problem: SpreadProblem,
        stage_of: Mapping[WorkerId, int],
    ) -> None:
        self.seats = dict(seats)
        self._counts, self._problem, self._stage_of = counts.copy(), problem, stage_of
        self._starts = sorted(starts)
        self._on: dict[int, list[WorkerId]] = {}
        for worker in self._starts:
            self._on.setdefault(seats[worker], []).append(worker)

    def run(self) -> Seats:
        for _ in range(_NUM_PASSES):
            if not any([self._improved(worker) for worker in self._starts]):
                break
        return self.seats

    def _improved(self, worker: WorkerId) -> bool:
        here = self.seats[worker]
        near = sorted({self.seats.get(other, here) for other in _neighbours(worker)} - {here})
        return any(self._goes(worker, there, other) for there in near for other in self._for(there))

    def _for(self, there: int) -> tuple[WorkerId | None, ...]:
        """Who could make room there; None: nobody needs to."""
        free = self._counts[there].sum() < self._problem.room[there]
        return (*((None,) if free else ()), *self._on.get(there, ()))

    def _goes(self, worker: WorkerId, there: int, other: WorkerId | None) -> bool:
        """``worker`` goes there and ``other`` takes its place, if that is better."""
        here = self.seats[worker]
        if other is None and self._colder(here, there):
            return False
        pair = [worker] if other is None else [worker, other]
        stages = list({self._stage_of[each] for each in pair})
        near, on_one = self._num_near(pair), on_one_machine(self._counts[:, stages])
        self._change(pair, here, there)
        if self._num_near(pair) > near and on_one_machine(self._counts[:, stages]) <= on_one:
            return True
        self._change(pair, there, here)
        return False

    def _colder(self, here: int, there: int) -> bool:
        """Whether a shift would leave a hot spare for a free slot."""
        over = (self._counts - self._problem.kept).sum(1) - self._problem.hot
        return bool(over[there] >= 0 and over[here] <= 0)

    def _num_near(self, workers: list[WorkerId]) -> int:
        return sum(_num_near(self.seats, worker, self.seats[worker]) for worker in workers)

    def _change(self, pair: list[WorkerId], here: int, there: int) -> None:
        """The first goes from here to there, the second, if there is one, the other way."""
        for worker, source, target in zip(pair, (here, there), (there, here), strict=False):
            stage = self._stage_of[worker]
            self.seats[worker] = target
            self._counts[source, stage] -= 1
            self._counts[target, stage] += 1
            self._on[source].remove(worker)
            self._on.setdefault(target, []).append(worker)
