"""The published answer to a slow worker, to compare ours with: more or fewer micro-batches for
whole pipelines, each in the order it would have anyway (FALCON's second strategy).

Pipelines are those at home, and links are not looked at: as published.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.planner.problem import Problem
from holdfast.planner.schedules import make
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Lane, Schedule

_Pipeline = dict[int, WorkerId]  # by stage


def whole_pipelines(problem: Problem, order: str = "1f1b") -> Schedule:
    """``order``: of each pipeline, one of ``planner.schedules.NAMES``.

    Who is in no complete pipeline only reduces.
    """
    pipelines = _complete(problem)
    slowest_s = [_slowest_s(problem, pipeline) for pipeline in pipelines]
    counts = dealt(problem.shape.microbatches, slowest_s)
    lanes_of = {count: _lanes(problem, count, order) for count in set(counts)}
    lanes: dict[WorkerId, Lane] = {
        member.worker: (Op(member.stage, Kind.R),)
        for member in problem.members
        if member.speed > 0 and member.stage is not None
    }
    first = 0
    for pipeline, count in zip(pipelines, counts, strict=True):
        for stage, lane in enumerate(lanes_of[count]):
            lanes[pipeline[stage]] = _renumbered(lane, first)
        first += count
    return Schedule(problem.shape, lanes)


def dealt(num_microbatches: int, each_s: Sequence[float]) -> list[int]:
    """How many for each pipeline that needs ``each_s`` for one: the last is done soonest.

    Each has at least one, as published; then one after the other goes where it is done first.
    """
    if num_microbatches < len(each_s):
        raise ConfigError(
            f"{num_microbatches} micro-batches for {len(each_s)} pipelines: "
            "expected at least one each"
        )
    counts = [1] * len(each_s)
    queue = [(2 * seconds, at) for at, seconds in enumerate(each_s)]
    heapify(queue)
    for _ in range(num_microbatches - len(each_s)):
        _, at = queue[0]
        counts[at] += 1
        heapreplace(queue, ((counts[at] + 1) * each_s[at], at))
    return counts


def _complete(problem: Problem) -> list[_Pipeline]:
    found: dict[int, _Pipeline] = {}
    for member in sorted(problem.members):
        if member.speed > 0 and member.stage is not None:
            found.setdefault(member.worker.pipeline, {})[member.stage] = member.worker
    stages = problem.shape.stages
    complete = [pipeline for _, pipeline in sorted(found.items()) if len(pipeline) == stages]
    if not complete:
        raise ConfigError(
            f"no pipeline has a live worker for each of its {stages} stages: "
            "expected at least one; choose another mitigation.mode"
        )
    return complete


def _slowest_s(problem: Problem, pipeline: _Pipeline) -> float:
    """What a micro-batch more costs it."""
    costs, speeds = problem.costs, {m.worker: m.speed for m in problem.members}
    return max(
        (costs.forward_s[stage] + costs.backward_s(stage)) / speeds[worker]
        for stage, worker in pipeline.items()
    )


def _lanes(problem: Problem, count: int, order: str) -> list[Lane]:
    """One a stage, for ``count`` micro-batches from 0 on."""
    shape, memory = Shape(1, problem.shape.stages, count), problem.memory
    limit = min([memory.limit, *memory.limits.values()])
    held = max(memory.held_at(stage) for stage in range(shape.stages))
    schedule = make(
        order, shape, problem.costs, max(1, int(limit / held)), staggered=problem.staggered
    )
    return [schedule.lanes[WorkerId(0, stage)] for stage in range(shape.stages)]


def _renumbered(lane: Lane, first: int) -> Lane:
    return tuple(
        op if op.microbatch is None else Op(op.stage, op.kind, op.microbatch + first) for op in lane
    )
