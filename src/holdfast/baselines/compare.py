"""The plan beside what published policies would make of the same problem, and beside its bounds.

All on the same simulator and costs. Knows nothing of how any of them finds its order.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import isinf
from typing import NamedTuple

from holdfast.baselines.published import POLICIES, fault_free_s
from holdfast.cluster import WorkerId
from holdfast.planner.plan import Plan
from holdfast.planner.planning import best_plan
from holdfast.planner.problem import Member, Problem
from holdfast.planner.prove.bounds import bounds, ideal_s, shared_work_s

HOLDFAST = "Holdfast"


class ComparisonRow(NamedTuple):
    """``period_s`` inf: it cannot run, which the note says."""

    name: str
    period_s: float
    of_1f1b: float  # throughput, as a share of fault-free 1F1B's
    of_peak: float  # throughput, as a share of what all workers could do without a bubble
    note: str


def compare(problem: Problem, *, plan: Plan | None = None) -> tuple[ComparisonRow, ...]:
    """Fault-free 1F1B, published policies, Holdfast, and the bounds.

    ``plan``: Holdfast's answer to the problem, if it is known already. Re-routing has the
    problem's memory, policies that build on 1F1B have 1F1B's.
    """
    plan = plan or best_plan(problem)
    base_s, peak_s = fault_free_s(problem), ideal_s(plan.fleet)
    return tuple(
        ComparisonRow(name, period_s, base_s / period_s, peak_s / period_s, note)
        for name, period_s, note in _periods(problem, plan, base_s)
    )


def _periods(problem: Problem, plan: Plan, base_s: float) -> Iterator[tuple[str, float, str]]:
    yield "fault-free 1F1B", base_s, "nobody missing or slow, 1F1B's memory"
    for policy in POLICIES:
        period_s = policy.period_s(problem)
        cannot = "cannot run: no pipeline is left"
        yield policy.name, period_s, cannot if isinf(period_s) else policy.note
    yield HOLDFAST, plan.period_s, plan.routing.name
    whole = best_plan(_nobody_missing(problem))
    yield f"{HOLDFAST}, nobody missing", whole.period_s, "everyone at full speed"
    for limit in bounds(plan.fleet):
        yield f"bound: {limit.limit}", limit.period_s, "for one stage a worker"
    yield "bound: all work", shared_work_s(plan.fleet), "also with second stages"


def _nobody_missing(problem: Problem) -> Problem:
    shape = problem.shape
    everyone = tuple(
        Member(WorkerId(pipeline, stage), stage)
        for pipeline in range(shape.pipelines)
        for stage in range(shape.stages)
    )
    return replace(problem, members=everyone)
