"""A plan in words and numbers: how fast, what limits it, what it needs. Draws no lanes."""

import textwrap
from collections.abc import Iterator
from math import isfinite

import numpy as np

from holdfast.baselines.compare import compare
from holdfast.baselines.published import fault_free_s
from holdfast.cli.plan_problem import MemoryRoom
from holdfast.cluster import WorkerId
from holdfast.planner.plan import Plan
from holdfast.planner.prove.bounds import bound, ideal_s
from holdfast.planner.prove.certificate import Certificate, certify
from holdfast.schedule.timeline import Pace, Timeline, steady_period_s

_MOST_STAGES = 64  # that are listed one by one
_MOST_NAMED = 8  # moves, or workers with a second stage
# What an operation [F, B, W, BW] adds to activations held and to weight gradients pending.
_HELD, _PENDING = np.array([1, -1, 0, -1]), np.array([0, 1, -1, 0])
# The planner counts in ticks of a millionth of an operation: nearer numbers are the same.
_ROUNDING = 1e-5

_LABEL = 16  # characters

Lines = Iterator[tuple[str, str]]  # labels, and what is to be said about them


def report(plan: Plan, room: MemoryRoom, times: Timeline | None, width: int) -> Iterator[str]:
    """``times``: of the lanes, if they were drawn."""
    yield _headline(plan)
    yield from _labelled(_facts(plan, room, times), width)


def _labelled(lines: Lines, width: int) -> Iterator[str]:
    """Labels in a column of their own; long lines go on beside it."""
    room = max(width - _LABEL, 20)
    for label, text in lines:
        first, *more = textwrap.wrap(text, room, break_on_hyphens=False)
        yield f"{label:<{_LABEL}}{first}"
        yield from (" " * _LABEL + line for line in more)


def _facts(plan: Plan, room: MemoryRoom, times: Timeline | None) -> Lines:
    problem, fleet = plan.fleet.problem, plan.fleet
    base_s, peak_s = fault_free_s(problem), ideal_s(fleet)
    yield "period", f"{plan.period_s:.6g} s a step"
    yield "throughput", f"{base_s / plan.period_s:.3f} of fault-free 1F1B ({base_s:.6g} s a step)"
    yield "", f"{peak_s / plan.period_s:.3f} of the fault-free zero-bubble peak ({peak_s:.6g} s)"
    yield "bound", f"{plan.bound.period_s:.6g} s, set by {plan.bound.limit}: {plan.bound.reason}"
    if plan.second_stages:
        alone_s = bound(plan.fleet).period_s
        yield "", f"with one stage a worker no plan could be below {alone_s:.6g} s"
    yield "period / bound", f"{plan.period_s / plan.bound.period_s:.3f}"
    if times is not None:
        yield "idle", f"{100 * times.bubble_share:.1f} % of the live workers' time"
    yield from _memory(plan, room)
    yield from _moves(plan)
    yield "reason", plan.reason


def _headline(plan: Plan) -> str:
    shape, fleet = plan.fleet.problem.shape, plan.fleet
    num_workers, num_slow = shape.pipelines * shape.stages, int((fleet.speed < 1).sum())
    num_dead = num_workers - len(plan.fleet.problem.members)
    counts = ((num_dead, "dead"), (num_slow, "slow"))
    who = ", ".join(f"{number} {word}" for number, word in counts if number)
    return (
        f"planned, {shape.pipelines} x {shape.stages} workers{f' ({who})' if who else ''}, "
        f"{shape.microbatches} micro-batches"
    )


def _memory(plan: Plan, room: MemoryRoom) -> Lines:
    by_stage, by_worker = memory_peaks(plan)
    highest = max(by_worker, key=lambda worker: by_worker[worker])
    yield (
        "memory",
        (
            f"at most {by_worker[highest]:g} micro-batches in flight on one worker ({highest}), "
            f"limit {room.num_microbatches} a stage it holds ({room.words})"
        ),
    )
    if len(by_stage) > _MOST_STAGES:
        yield "", f"by stage {min(by_stage):g} to {max(by_stage):g}"
    else:
        yield "", f"by stage {' '.join(f'{peak:g}' for peak in by_stage)}"


def memory_peaks(plan: Plan) -> tuple[list[float], dict[WorkerId, float]]:
    """The most that any worker needs at one time for each stage; and each worker for all its."""
    memory, stages = plan.fleet.problem.memory, range(plan.fleet.problem.shape.stages)
    held = np.array([memory.held_at(stage) for stage in stages])
    pending = np.array([memory.pending_at(stage) for stage in stages])
    by_stage, by_worker = [0.0 for _ in stages], dict.fromkeys(plan.holders, 0.0)
    for worker, (kind, stage, _) in plan.tables().items():
        change = _HELD[kind] * held[stage] + _PENDING[kind] * pending[stage]
        by_worker[worker] = float(change.cumsum().max(initial=0.0))
        for number in np.unique(stage).tolist():
            own = float(change[stage == number].cumsum().max())
            by_stage[number] = max(by_stage[number], own)
    return by_stage, by_worker


def _moves(plan: Plan) -> Lines:
    problem, moves = plan.fleet.problem, plan.moves
    if not problem.may_move:
        yield "moves", "none, as --no-moves asks"
    else:
        yield (
            "moves",
            (
                f"{len(moves) or 'none'}; one costs {problem.move_s:g} s of training and must pay "
                f"within {problem.horizon_steps} steps"
            ),
        )
    for move in moves[:_MOST_NAMED]:
        yield (
            "",
            (
                f"{move.worker} leaves stage {move.from_stage} for stage {move.to_stage}: "
                f"copies its state from {move.source}, {problem.move_s:g} s"
            ),
        )
    yield from _left_out(len(moves), "moves")
    for move in plan.second_stages[:_MOST_NAMED]:
        yield (
            "second stage",
            (
                f"{move.worker} at stage {move.from_stage} also holds stage {move.to_stage} and "
                f"helps there: copies its state from {move.source}, {problem.move_s:g} s"
            ),
        )
    yield from _left_out(len(plan.second_stages), "workers with a second stage")


def _left_out(number: int, of_what: str) -> Lines:
    if number > _MOST_NAMED:
        yield "", f"... and {number - _MOST_NAMED} more {of_what}"


def comparison(plan: Plan) -> Iterator[str]:
    """A table: the plan beside published policies and the bounds."""
    rows = compare(plan.fleet.problem, plan=plan)
    width = max(len(row.name) for row in rows)
    yield f"{'':<{width}}  {'s a step':>9}  {'of 1F1B':>7}  {'of peak':>7}"
    for row in rows:
        period = f"{row.period_s:.6g}" if isfinite(row.period_s) else "-"
        yield (
            f"{row.name:<{width}}  {period:>9}  {row.of_1f1b:>7.3f}  {row.of_peak:>7.3f}  "
            f"{row.note}"
        )


def certificate(plan: Plan, limit_s: float, width: int) -> Iterator[str]:
    """What an exact solver says of the same routes: is there a shorter order?"""
    schedule, problem, period_s = plan.schedule(), plan.fleet.problem, plan.period_s
    if not plan.second_stages:
        # Of the lanes themselves: the plan's own figure takes like pipelines for equal.
        pace = Pace({member.worker: member.speed for member in problem.members}, problem.hop_s)
        period_s = steady_period_s(schedule, problem.costs, staggered=problem.staggered, pace=pace)
    known_s = period_s * (1 + _ROUNDING)
    found = certify(schedule, problem, limit_s=limit_s, known_period_s=known_s)
    yield from _labelled(iter([("certificate", _verdict(period_s, found, limit_s))]), width)


def _verdict(period_s: float, found: Certificate, limit_s: float) -> str:
    gap = period_s / found.bound_s - 1
    if gap <= _ROUNDING:
        return "optimal: no order on these routes has a shorter period"
    if found.proven:
        best = f"on these routes {found.optimum_s:.6g} s is the optimum"
        return f"{best}: this plan takes {gap:.1%} more"
    best_s = min(found.optimum_s or period_s, period_s)
    return (
        f"not proven in {limit_s:g} s: on these routes the optimum is {found.bound_s:.6g} to "
        f"{best_s:.6g} s, so this plan takes at most {gap:.1%} more"
    )
