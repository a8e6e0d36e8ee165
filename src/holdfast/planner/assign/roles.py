"""Which stage each live worker should hold: who moves, who copies from whom, and why.

In this order: every stage has a holder, as few stages as possible have only one, then step time
and moves are weighed. The order of the work within a step is not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.planner.assign.exact import Counts
from holdfast.planner.assign.search import search
from holdfast.planner.problem import Problem
from holdfast.planner.route.shares import least_time

MAX_SPEEDS = 48
"""With more distinct speeds, near ones count as the slowest of them during the search."""

_SHOWN = 3  # stages named in a reason


class Move(NamedTuple):
    """``worker`` copies the state of ``to_stage`` from ``source``.

    ``from_stage`` None: it has just joined. Its own stage: its copy of that was out of date.
    """

    worker: WorkerId
    from_stage: int | None
    to_stage: int
    source: WorkerId


@dataclass(frozen=True)
class Roles:
    stage_of: Mapping[WorkerId, int]
    moves: tuple[Move, ...]  # by worker
    period_s: float  # of the busiest stage, by its work alone
    proven: bool  # that nothing is better
    reason: str


def assign(problem: Problem) -> Roles:
    """The best stage for every live worker.

    In this order of importance:
    1. Every stage has a holder; ConfigError if nobody holds its state. At least one of those
       who hold it now stays, so each copy has a source that is not itself changing.
    2. As few stages as possible have a single holder.
    3. Least ``horizon_steps * period_s + move_s * moves``. A member that holds nothing is always
       given a stage, its copy is no choice.
    4. Fewest moves; then, as far as the search meets a choice, a donor from a near stage. Of
       workers of one stage and speed, the last ones (by pipeline) move.
    """
    crew = _Crew.of(problem)
    _require_holders(problem, crew)
    speeds, kind = _kinds(crew.speed)
    counts = _counts(problem, crew, speeds, kind)
    found = search(counts, problem.horizon_steps, problem.move_s)
    stage = _placed(crew, kind, found.final - counts.home)
    moves = _moves(crew, stage)
    before_s, after_s = (_period_s(counts, crew.speed, held) for held in (crew.held, stage))
    return Roles(
        stage_of=dict(zip(crew.workers, stage.tolist(), strict=True)),
        moves=moves,
        period_s=after_s,
        proven=found.proven and len(speeds) == len(np.unique(crew.speed)),
        reason=_reason(problem, crew, moves, before_s, after_s),
    )


def unmoved(problem: Problem) -> Roles:
    """Everyone as it is; who holds nothing of use is left out."""
    crew = _Crew.of(problem)
    _require_holders(problem, crew)
    speeds, kind = _kinds(crew.speed)
    held = crew.held >= 0
    period_s = _period_s(_counts(problem, crew, speeds, kind), crew.speed, crew.held)
    stage_of = {crew.workers[i]: int(crew.held[i]) for i in np.flatnonzero(held)}
    return Roles(
        stage_of=stage_of,
        moves=(),
        period_s=period_s,
        proven=True,
        reason="nobody may change the stage",
    )


@dataclass(frozen=True)
class _Crew:
    """The live members, sorted. ``held`` -1: nothing that is of use now."""

    workers: list[WorkerId]
    said: Ints  # the stage it says it holds, -1 for none
    held: Ints
    near: Ints  # where it is, was or by its name would be
    speed: Floats

    @classmethod
    def of(cls, problem: Problem) -> "_Crew":
        members = sorted((m for m in problem.members if m.speed != 0), key=itemgetter(0))
        workers = [m.worker for m in members]
        stages = (-1 if m.stage is None else m.stage for m in members)
        said = np.fromiter(stages, np.int64, len(members))
        speed = np.array([m.speed for m in members], np.float64)
        version = np.array([m.version for m in members], np.int64)
        newest = np.full(problem.shape.stages + 1, np.iinfo(np.int64).min)
        np.maximum.at(newest, said, version)
        named = np.array([worker.stage for worker in workers], np.int64)
        return cls(
            workers=workers,
            said=said,
            held=np.where(version < newest[said], -1, said),
            near=np.where(said < 0, named, said),
            speed=speed,
        )


def _require_holders(problem: Problem, crew: _Crew) -> None:
    stages, live = problem.shape.stages, len(crew.workers)
    lost = np.flatnonzero(np.bincount(crew.held[crew.held >= 0], minlength=stages) == 0)
    if not len(lost):
        return
    one = len(lost) == 1
    named = f"stage {lost[0]} has" if one else f"stages {', '.join(map(str, lost))} have"
    few = f" ({live} live workers are {stages - live} too few)" if live < stages else ""
    raise ConfigError(
        f"{named} no live holder: {'its' if one else 'their'} state is on no live worker{few}; "
        f"resume from a checkpoint or let a holder of {'it' if one else 'each'} re-join"
    )


def _kinds(speed: Floats) -> tuple[Floats, Ints]:
    """The distinct speeds, and which one each worker has."""
    speeds, kind = np.unique(speed, return_inverse=True)
    if len(speeds) <= MAX_SPEEDS:
        return speeds, kind
    width = (speeds[-1] - speeds[0]) / MAX_SPEEDS
    steps = np.minimum(((speeds - speeds[0]) / width).astype(np.int64), MAX_SPEEDS - 1)
    _, first, step = np.unique(steps, return_index=True, return_inverse=True)
    return speeds[first], step[kind]


def _counts(problem: Problem, crew: _Crew, speeds: Floats, kind: Ints) -> Counts:
    stages, costs = problem.shape.stages, problem.costs
    cell = (crew.held + 1) * len(speeds) + kind
    table = np.bincount(cell, minlength=(stages + 1) * len(speeds)).reshape(-1, len(speeds))
    return Counts(
        home=table[1:],
        joiners=table[0],
        speed=speeds,
        cost_s=np.array([costs.forward_s[p] + costs.backward_s(p) for p in range(stages)]),
        step_s=np.array(costs.step_s),
        goal=problem.shape.microbatches,
    )


def _placed(crew: _Crew, kind: Ints, change: Ints) -> Ints:
    """Every worker's stage, when each stage's number of each speed changes so."""
    stage = crew.held.copy()
    for k in range(change.shape[1]):
        mine = kind == k
        leaving = [np.flatnonzero(mine & (crew.held < 0))]
        for p in np.flatnonzero(change[:, k] < 0):
            leaving.append(np.flatnonzero(mine & (crew.held == p))[change[p, k] :])
        going = np.concatenate(leaving)
        # Both in the order of the stages: no other pairing has a shorter way in sum.
        going = going[np.lexsort((going, crew.near[going]))]
        stage[going] = np.repeat(np.arange(len(change)), np.maximum(change[:, k], 0))
    return stage


def _moves(crew: _Crew, stage: Ints) -> tuple[Move, ...]:
    """Who needs a copy. A stage's stayers are its sources in turn."""
    moved = np.flatnonzero(stage != crew.held)
    stay = {to: np.flatnonzero((stage == to) & (crew.held == to)) for to in np.unique(stage[moved])}
    taken = dict.fromkeys(stay, 0)
    moves = []
    for i in moved:
        to, said = stage[i], int(crew.said[i])
        source = stay[to][taken[to] % len(stay[to])]
        taken[to] += 1
        moves.append(
            Move(crew.workers[i], None if said < 0 else said, int(to), crew.workers[source])
        )
    return tuple(moves)


def _period_s(counts: Counts, speed: Floats, stage: Ints) -> float:
    times_s = (
        least_time(counts.goal, counts.cost_s[p] / speed[stage == p]) + counts.step_s[p]
        for p in range(counts.stages)
    )
    return float(max(times_s))


def _reason(
    problem: Problem, crew: _Crew, moves: tuple[Move, ...], before_s: float, after_s: float
) -> str:
    if not moves:
        return "nobody changes the stage"
    to_stages = list(dict.fromkeys(move.to_stage for move in moves))
    parts = [_gain(problem, crew, moves, to) for to in to_stages[:_SHOWN]]
    unnamed = sum(move.to_stage in to_stages[_SHOWN:] for move in moves)
    if unnamed:
        parts.append(f"{unnamed} more moves to {len(to_stages) - _SHOWN} more stages")
    parts.append(f"the busiest stage's work goes from {before_s:.4g} to {after_s:.4g} s a step")
    return "; ".join(parts)


def _gain(problem: Problem, crew: _Crew, moves: tuple[Move, ...], to_stage: int) -> str:
    """What one stage gets, e.g. ``stage 3 had 1 holder of 4: 0.2 moves there from stage 2``."""
    had = int((crew.held == to_stage).sum())
    comes = [move for move in moves if move.to_stage == to_stage]
    holders = "holder" if had == 1 else "holders"
    head = f"stage {to_stage} had {had} {holders} of {problem.shape.pipelines}"
    left_alone = any(int((crew.held == move.from_stage).sum()) == 2 for move in comes)
    if had == 1 and not left_alone:
        head = f"stage {to_stage} had a single holder, whose death would lose it"
    if len(comes) > 1:
        return f"{head}: {len(comes)} workers move there, {comes[0].worker} first"
    worker, from_stage, *_ = comes[0]
    if from_stage is None:
        return f"{head}: {worker} joins there"
    if from_stage == to_stage:
        return f"{head}: {worker} copies it again, its own copy is out of date"
    return f"{head}: {worker} moves there from stage {from_stage}"
