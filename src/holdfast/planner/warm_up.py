"""Compiles, or loads, all that planning needs, so that the first real plan waits for nothing."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from holdfast.cluster import WorkerId
from holdfast.planner.planning import first_plan
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.planner.remainder.remainder import remainder_of_step
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape


@cache
def warm_up_beside(*, wait: bool) -> None:
    """Once a process, beside the start of the workers: the first loss must not wait for it.

    ``wait``: a thread that traces a model replaces, meanwhile, what compiling needs.
    """
    thread = threading.Thread(target=warm_up, name="planner warm-up", daemon=True)
    with suppress(RuntimeError):  # no thread to be had: then the first loss waits for it
        thread.start()
        if wait:
            thread.join()


def warm_up() -> None:
    # Of unequal speeds, with too few workers and with enough: all kernels in all their types.
    for speeds in ((0.5, 1.0), (1.0, 0.5, 1.0, 0.75, 1.0)):
        problem = _example(speeds)
        first_plan(problem)
        remainder_of_step(problem, {m.worker: (m.worker.stage,) for m in problem.members}, {})


def _example(speeds: Sequence[float]) -> Problem:
    """Two stages. The last worker has only just come, the one before it missed a step."""
    workers = [WorkerId(*divmod(number, 2)) for number in range(len(speeds))]
    members = [Member(w, w.stage, speed) for w, speed in zip(workers, speeds, strict=True)]
    if len(members) > 3:
        members[-1] = members[-1]._replace(stage=None)
        members[-2] = members[-2]._replace(version=-1)
    return Problem(
        shape=Shape(2, 2, 8),
        costs=Costs.uniform(2, fused_s=1.8, link_s=0.1),
        memory=Memory(limit=3.0),
        members=tuple(members),
        move_s=1.0,
    )
