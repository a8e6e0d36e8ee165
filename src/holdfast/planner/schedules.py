"""Schedules by name, for a step in which nobody is missing: one pipeline, repeated for all."""

from holdfast.errors import ConfigError
from holdfast.planner.planning import best_plan
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import gpipe, in_every_pipeline, one_f_one_b
from holdfast.schedule.operation import Shape
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.timeline import steady_period_s

NAMES = ("gpipe", "1f1b", "zero-bubble")


def make(
    name: str, shape: Shape, costs: Costs, memory: int | None = None, *, staggered: bool = True
) -> Schedule:
    """The schedule called ``name``, one of NAMES. ``memory``: micro-batches in flight a worker."""
    if name == "gpipe":
        return gpipe(shape, memory)
    if name == "1f1b":
        return one_f_one_b(shape, memory)
    if name != "zero-bubble":
        raise ConfigError(f"schedule = {name!r}: expected one of {', '.join(NAMES)}")
    return zero_bubble(shape, costs, memory, staggered=staggered)


def zero_bubble(
    shape: Shape, costs: Costs, memory: int | None = None, *, staggered: bool = True
) -> Schedule:
    """Weight gradients fill the waits; split only where that shortens the steady period.

    Never slower than 1F1B with the same memory on one pipeline.
    """
    costs.require_stages(shape.stages)
    one = Shape(1, shape.stages, shape.microbatches_per_pipeline)
    plain = one_f_one_b(one, memory)
    problem = Problem(
        shape=one,
        costs=costs,
        memory=Memory(limit=one.microbatches if memory is None else memory),
        members=tuple(Member(worker, worker.stage) for worker in plain.lanes),
        staggered=staggered,
    )
    planned = best_plan(problem).schedule()
    best = min(planned, plain, key=lambda each: steady_period_s(each, costs, staggered=staggered))
    return in_every_pipeline(shape, best)
