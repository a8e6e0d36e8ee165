"""Missing workers as runs of neighbours, each on one machine if one has room for all of it.

A first guess: it keeps neighbours together, and a stage off one machine only where it meets that.
"""

from collections.abc import Collection, Mapping

import numpy as np

from holdfast.arrays import Floats
from holdfast.cluster import WorkerId
from holdfast.planner.place.counts import SpreadProblem

Seats = dict[WorkerId, int]  # the number of a machine

_EXPOSING, _COLD, _NEAR = 1e12, 1e6, 1e5  # beside these, free slots that stay count 1 each


def runs_of(workers: Collection[WorkerId]) -> list[list[WorkerId]]:
    """Neighbours of a pipeline together; the longest first."""
    found: list[list[WorkerId]] = []
    for worker in sorted(workers):
        if found and found[-1][-1] == (worker.pipeline, worker.stage - 1):
            found[-1].append(worker)
        else:
            found.append([worker])
    return sorted(found, key=lambda run: (-len(run), run))


def seated_by_runs(
    homes: Mapping[WorkerId, int],
    starts: Collection[WorkerId],
    problem: SpreadProblem,
    stage_of: Mapping[WorkerId, int],
) -> Seats:
    """``homes``: who stays where it is."""
    seats = dict(homes)
    counts, hot = problem.kept.copy(), problem.hot.copy()
    queue = runs_of(starts)[::-1]
    while queue:
        run = queue.pop()
        free = problem.room - counts.sum(1)
        size = min(len(run), int(free.max()))
        now, later = run[:size], run[size:]
        stages = [stage_of[worker] for worker in now]
        exposing = (counts[:, stages] + 1 == problem.holders[stages]).any(1)
        cost = exposing * _EXPOSING + np.maximum(size - hot, 0) * _COLD
        cost -= _num_near(seats, now, len(free)) * _NEAR
        # A single worker makes machines equally full, a run takes the smallest gap.
        cost += counts.sum(1) / np.maximum(problem.room, 1) if size == 1 else free - size
        machine = int(np.where(free >= size, cost, np.inf).argmin())
        for worker, stage in zip(now, stages, strict=True):
            counts[machine, stage] += 1
            seats[worker] = machine
        hot[machine] = max(hot[machine] - size, 0)
        if later:
            queue.append(later)
    return seats


def _num_near(seats: Seats, now: list[WorkerId], number: int) -> Floats:
    """Neighbours of what is placed now, by machine."""
    (pipeline, first), (_, last) = now[0], now[-1]
    found = np.zeros(number)
    for other in (WorkerId(pipeline, first - 1), WorkerId(pipeline, last + 1)):
        if other in seats:
            found[seats[other]] += 1
    return found
