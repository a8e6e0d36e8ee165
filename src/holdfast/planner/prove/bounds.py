"""What no order and no routing over these holders can beat, and which limit it is.

Sound for one stage a worker; a second stage on some workers is bounded by ``shared_work_s``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.arrays import Floats
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.route.shares import least_time

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Bound:
    """``limit``: work, granularity, path, memory or barrier."""

    period_s: float
    limit: str
    reason: str


def bounds(fleet: Fleet) -> tuple[Bound, ...]:
    """All of them, the simplest first."""
    found = [_work(fleet), _granularity(fleet), _path(fleet)]
    found.append(_memory(fleet, at_least_s=max(other.period_s for other in found)))
    if not fleet.problem.staggered:
        found.append(_barrier(fleet))
    return tuple(found)


def bound(fleet: Fleet) -> Bound:
    return largest(bounds(fleet))


def largest(found: Sequence[Bound]) -> Bound:
    """On a tie the one with the simpler reason."""
    best, *others = found
    for other in others:
        if other.period_s > best.period_s * (1 + _ROUNDING):
            best = other
    return best


def shared_work_s(fleet: Fleet) -> float:
    """All work over all speeds: what even workers that hold every stage could not beat."""
    return float(_count(fleet) * fleet.times.each.sum() / fleet.speed.sum())


def ideal_s(fleet: Fleet) -> float:
    """Zero-bubble peak of the whole cluster, as if every worker were alive and well."""
    shape = fleet.problem.shape
    return float(shape.microbatches_per_pipeline * fleet.times.each.mean())


def _count(fleet: Fleet) -> int:
    return fleet.problem.shape.microbatches


def _speeds(fleet: Fleet) -> list[Floats]:
    return [fleet.speed[held] for held in fleet.by_stage]


def _work(fleet: Fleet) -> Bound:
    totals = np.array([speeds.sum() for speeds in _speeds(fleet)])
    times = fleet.times
    each_s = _count(fleet) * times.each / totals + times.step
    worst = int(each_s.argmax())
    return Bound(float(each_s[worst]), "work", f"the work of stage {worst}")


def _granularity(fleet: Fleet) -> Bound:
    times = fleet.times
    whole_s = [
        least_time(_count(fleet), times.each[stage] / speeds) + times.step[stage]
        for stage, speeds in enumerate(_speeds(fleet))
    ]
    worst = int(np.argmax(whole_s))
    reason = f"whole micro-batches: {_count(fleet)} do not divide evenly over stage {worst}"
    return Bound(float(whole_s[worst]), "granularity", reason)


def _path(fleet: Fleet) -> Bound:
    """All F and B of a stage, between the first way there and the last way back to stage 0."""
    times, speeds = fleet.times, _speeds(fleet)
    fastest = np.array([of_stage.max() for of_stage in speeds])
    both = times.kinds[0] + times.soonest
    after_s = (times.each[0] - both[0]) / fastest[0] + times.step[0]
    way_s, longest_s = 0.0, 0.0
    for stage, of_stage in enumerate(speeds):
        body_s = least_time(_count(fleet), both[stage] / of_stage)
        longest_s = max(longest_s, way_s + body_s + after_s)
        way_s += both[stage] / fastest[stage] + 2 * times.least_hop[stage]
    reason = "the way of a micro-batch through all stages and back"
    return Bound(float(longest_s), "path", reason)


def _memory(fleet: Fleet, at_least_s: float) -> Bound:
    """Until its first gradient is back a worker can only do the forwards that memory admits."""
    times, speeds = fleet.times, _speeds(fleet)
    longest_s, worst, round_trip_s = at_least_s, 0, 0.0
    for stage in reversed(range(len(speeds))):
        admitted = np.floor(
            fleet.limit[fleet.by_stage[stage]] / fleet.problem.memory.held_at(stage) + _ROUNDING
        )
        least_s = longest_s - times.step[stage]
        period_s = _ramp_s(fleet, stage, admitted, round_trip_s, least_s) + times.step[stage]
        if period_s > longest_s * (1 + _ROUNDING):
            longest_s, worst = period_s, stage
        fastest = speeds[stage].max()
        both_s = (times.kinds[0][stage] + times.soonest[stage]) / fastest
        round_trip_s += both_s + 2 * (times.least_hop[stage - 1] if stage else 0.0)
    reason = f"too few forwards fit before the first gradient is back at stage {worst}"
    return Bound(float(longest_s), "memory", reason)


def _ramp_s(
    fleet: Fleet, stage: int, admitted: Floats, round_trip_s: float, least_s: float
) -> float:
    """Least time, from ``least_s`` on, in which the holders get through, each with its wait."""
    speeds, times = fleet.speed[fleet.by_stage[stage]], fleet.times
    each_s, forward_s = times.each[stage] / speeds, times.kinds[0][stage] / speeds
    first_s = forward_s + round_trip_s
    low = least_s
    high = low + float(first_s.max()) + float(each_s.max())
    rest_s = np.maximum(each_s - forward_s, _ROUNDING * each_s)
    full_wait_s = np.maximum(0.0, first_s - admitted * forward_s)

    def enough(period_s: float) -> bool:
        room_s = period_s * (1 + _ROUNDING)
        many = np.floor((room_s - full_wait_s) / each_s)
        few = np.minimum(np.floor(room_s / each_s), np.floor((room_s - first_s) / rest_s))
        counts = np.where(many >= admitted, many, np.clip(few, 0.0, admitted))
        return bool(counts.sum() >= _count(fleet))

    if enough(low):
        return low
    while high - low > _ROUNDING * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _barrier(fleet: Fleet) -> Bound:
    """With a global optimizer nobody goes on before the last stage has all its gradients."""
    times, way_s, longest_s = fleet.times, 0.0, 0.0
    for stage, speeds in enumerate(_speeds(fleet)):
        work_s = least_time(_count(fleet), times.each[stage] / speeds)
        longest_s = max(longest_s, way_s + work_s + times.step[0])
        way_s += times.kinds[0][stage] / speeds.max() + times.least_hop[stage]
    return Bound(float(longest_s), "barrier", "the global optimizer's barrier")
