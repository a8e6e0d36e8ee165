"""What holds for every plan, over random clusters in random health."""

from dataclasses import replace
from itertools import chain, pairwise
from random import Random

import pytest

from helpers.wide import first
from holdfast.cluster import WorkerId
from holdfast.planner import planning
from holdfast.planner.plan import Plan
from holdfast.planner.planning import best_plan, refine
from holdfast.planner.problem import LinkCost, LinkCosts, Member, Memory, Problem
from holdfast.planner.prove.bounds import bound, bounds
from holdfast.planner.prove.certificate import certify
from holdfast.planner.prove.checker import violations
from holdfast.schedule import validity
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind, Shape, makes, needs
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.timeline import steady_period_s

# Durations are whole ticks, 2^-20 of the longest operation: so much may rounding add up to.
TICKS = 1e-5

# Random problems here; many more in tests/chaos.
NUM_BLOCKS, BLOCK = 8, 25

# --- random problems ---


def draw(seed: str, most_each: int = 12) -> Problem:
    """A cluster of up to 6 x 6 in any health. Every stage has a live holder.

    ``most_each``: micro-batches a pipeline.
    """
    chance = Random(seed)
    pipelines, stages = chance.randint(1, 6), chance.randint(1, 6)
    shape = Shape(pipelines, stages, pipelines * min(most_each, chance.choice([1, 2, 3, 5, 8, 12])))
    members = draw_members(chance, pipelines, stages)
    workers = [member.worker for member in members]
    costs = draw_costs(chance, stages)
    return Problem(
        shape=shape,
        costs=costs,
        memory=draw_memory(chance, stages, workers),
        members=members,
        links=draw_links(chance, stages, workers, costs.link_s),
        staggered=chance.random() < 0.7,
        horizon_steps=chance.choice([1, 10, 1000]),
        move_s=chance.choice([0.0, 1.0, 30.0]),
        two_stages=chance.random() < 0.6,
        may_move=chance.random() < 0.8,
    )


def draw_members(chance: Random, pipelines: int, stages: int) -> tuple[Member, ...]:
    dead, slow, stale = (chance.choice([0.0, 0.1, 0.3]) for _ in range(3))
    speeds = chance.choice([(0.5,), (0.25, 0.5, 0.8), tuple(chance.random() for _ in range(4))])
    members = []
    for stage in range(stages):
        sound = chance.randrange(pipelines)  # so that no stage is lost
        for pipeline in range(pipelines):
            speed = chance.choice(speeds) + 0.01 if chance.random() < slow else 1.0
            version, holds = 1, stage
            if pipeline != sound:
                speed = speed if chance.random() >= dead else chance.choice([0.0, -1.0])
                version = 0 if chance.random() < stale else 1
                holds = chance.randrange(stages) if chance.random() < 0.05 else stage
            if speed >= 0:
                members.append(Member(WorkerId(pipeline, stage), holds, min(speed, 1.0), version))
    for extra in range(chance.choice([0, 0, 0, 1, 3])):
        members.append(Member(WorkerId(pipelines + extra, 0), None, chance.choice([1.0, 0.5])))
    chance.shuffle(members)
    return tuple(members)


def draw_costs(chance: Random, stages: int) -> Costs:
    kind = chance.choice(["equal", "whole", "any"])
    link_s = chance.choice([0.0, 0.05, 0.5, 3.0])
    step_s = chance.choice([0.0, 0.1, 2.0])
    if kind == "equal":
        fused_s = chance.choice([None, 1.6, 2.5])
        return Costs.uniform(stages, fused_s=fused_s, step_s=step_s, link_s=link_s)

    def row(least: int = 1) -> tuple[float, ...]:
        if kind == "whole":
            return tuple(float(chance.randint(least, 5)) for _ in range(stages))
        return tuple(chance.uniform(least, 5.0) for _ in range(stages))

    forward_s, input_s, weight_s = row(), row(), row(0)
    sums = [b + w for b, w in zip(input_s, weight_s, strict=True)]
    fused_s = tuple(s * chance.choice([0.7, 0.9, 1.0, 1.2]) for s in sums)
    return Costs(
        forward_s=forward_s,
        input_s=input_s,
        weight_s=weight_s,
        fused_s=chance.choice([(), fused_s]),
        step_s=tuple(step_s * chance.random() for _ in range(stages)),
        link_s=link_s,
    )


def draw_memory(chance: Random, stages: int, workers: list[WorkerId]) -> Memory:
    held = pending = ()
    if chance.random() < 0.4:
        held = tuple(chance.uniform(0.3, 2.0) for _ in range(stages))
        pending = tuple(each * chance.choice([0.0, 0.5, 0.9, 1.0]) for each in held)
    least = max(held, default=1.0)
    limits = {}
    if chance.random() < 0.3:
        some = chance.sample(workers, chance.randint(1, len(workers)))
        limits = {worker: least * chance.uniform(1.0, 2.0 * stages) for worker in some}
    limit = least * chance.choice([1.0, 1.5, stages, stages + 1, 2 * stages, 100])
    return Memory(limit=limit, held=held, pending=pending, limits=limits)


def draw_links(chance: Random, stages: int, workers: list[WorkerId], usual_s: float) -> LinkCosts:
    if chance.random() < 0.6:
        return LinkCosts()
    unusual = {}
    for _ in range(chance.randint(0, 4)):
        pair = sorted((chance.choice(workers), chance.choice(workers)))
        delay_s = usual_s * chance.choice([0.0, 1.0, 1.0]) + chance.choice([0.0, 1.0, 4.0])
        if pair[0] != pair[1]:
            unusual[pair[0], pair[1]] = LinkCost(delay_s, chance.choice([10.0, 20.0]))
    boundary_bytes = tuple(chance.randint(0, 20) for _ in range(stages - 1))
    return LinkCosts(
        bytes_s=chance.choice([20.0, float("inf")]),
        boundary_bytes=chance.choice([(), boundary_bytes]),
        unusual=unusual,
    )


# --- another way to the steady period ---


def evaluated_s(plan: Plan) -> float:
    """Seconds a step in the long run: every worker follows its lane, as early as it can.

    Straight from the lanes' text, operation by operation; a reduction is a meeting of the stage's
    holders (global optimizer: of all); a worker with two stages steps them one after the other.
    """
    problem, schedule = plan.fleet.problem, plan.schedule()
    run = _Run(problem, schedule)
    history = [dict.fromkeys(schedule.lanes, 0.0)]
    for _ in schedule.lanes:
        history.append(run.step(history[-1]))
        for lag in range(1, min(4, len(history))):
            growth = [history[-1][w] - history[-1 - lag][w] for w in schedule.lanes]
            if max(growth) - min(growth) <= 1e-9 * max(history[-1].values()):
                return max(growth) / lag
    last = len(history) - 1
    return max(
        min((history[last][w] - history[n][w]) / (last - n) for n in range(last))
        for w in schedule.lanes
    )


class _Run:
    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.speed = {member.worker: member.speed for member in problem.members}
        self.order = [(w, op) for w, op in validity.walk(schedule).order if op.kind is not Kind.R]
        self.holds = {
            worker: [op.stage for op in lane if op.kind is Kind.R]
            for worker, lane in schedule.lanes.items()
        }

    def step(self, free_s: dict[WorkerId, float]) -> dict[WorkerId, float]:
        """When each worker is done with the step, if it is free for it at ``free_s``."""
        free_s, made = dict(free_s), {}
        costs, problem = self.problem.costs, self.problem
        for worker, op in self.order:
            for fact in needs(op, problem.shape):
                at_s, maker = made[fact]
                boundary = min(fact.stage, op.stage)
                hop_s = problem.hop_s(boundary, maker, worker) if fact.stage != op.stage else 0.0
                free_s[worker] = max(free_s[worker], at_s + hop_s)
            free_s[worker] += costs.duration_s(op) / self.speed[worker]
            made.update(dict.fromkeys(makes(op), (free_s[worker], worker)))
        return {worker: self.reduced_s(worker, free_s) for worker in free_s}

    def reduced_s(self, worker: WorkerId, came_s: dict[WorkerId, float]) -> float:
        ends_s = []
        for stage in self.holds[worker]:
            met_s = [
                at_s + (self.problem.costs.link_s if other != worker else 0.0)
                for other, at_s in came_s.items()
                if other == worker or self.meet(other, stage)
            ]
            ends_s.append(max(met_s))
        return max(ends_s) + sum(self.problem.costs.step_s[s] for s in self.holds[worker])

    def meet(self, other: WorkerId, stage: int) -> bool:
        """A hot spare has nothing to bring, so nobody waits for it."""
        ran = {op.stage for op in self.schedule.lanes[other] if op.kind is not Kind.R}
        return stage in ran if self.problem.staggered else bool(ran)


# --- what must hold ---


def faults(problem: Problem, *, again: bool = True) -> list[str]:
    """Everything that is wrong with the plans for ``problem``. ``again``: ask twice."""
    plans = list(refine(problem))
    found = list(chain.from_iterable(_faults_of(plan, problem) for plan in plans))
    periods_s = [plan.period_s for plan in plans]
    if any(after > before for before, after in pairwise(periods_s)):
        found.append(f"refined to the worse: {periods_s}")
    if again:
        others = list(refine(replace(problem, members=problem.members[::-1])))
        if [p.schedule() for p in others] != [p.schedule() for p in plans]:
            found.append("the same question has two answers")
    return found


def _faults_of(plan: Plan, problem: Problem) -> list[str]:
    found = violations(plan.schedule(), problem, plan.holders)
    found += _wrong_copies(plan, problem)
    if found:
        return found
    real_s, least_s = evaluated_s(plan), plan.bound.period_s
    if real_s < least_s * (1 - 1e-7) or plan.period_s < least_s * (1 - TICKS):
        found.append(f"{plan.routing.name}: {plan.period_s}, {real_s} s below {plan.bound}")
    # Like pipelines are planned as the slowest of them, with as many micro-batches as any.
    even = all((group.numbers >= 0).all() for group in plan.routing.groups)
    exact = even and all(member.speed == 1 for member in problem.members)
    if real_s > plan.period_s * (1 + TICKS) or (exact and real_s < plan.period_s * (1 - TICKS)):
        found.append(f"{plan.routing.name}: period {plan.period_s} but its lanes take {real_s}")
    return found


def _wrong_copies(plan: Plan, problem: Problem) -> list[str]:
    """Who has not the state of its stage must copy it, from one that has it and stays."""
    now = {m.worker: (m.stage, m.version) for m in problem.members if m.speed > 0}
    newest = {stage: max(v for s, v in now.values() if s == stage) for stage, _ in now.values()}
    later = dict(zip(plan.fleet.workers, plan.fleet.stage.tolist(), strict=True))
    has = {worker for worker, stage in later.items() if now[worker] == (stage, newest[stage])}
    comes = {move.worker: move for move in plan.moves}
    found = [f"{worker} needs a copy" for worker in later.keys() - has - comes.keys()]
    return found + [
        f"{move} is wrong"
        for worker, move in comes.items()
        if worker in has or move.source not in has or later[move.source] != move.to_stage
    ]


# --- the tests ---


@pytest.mark.parametrize("block", first(2, range(NUM_BLOCKS)))
def test_every_plan_is_sound_in_any_health(monkeypatch, block):
    """Sound, above its bound, never worse than the one before it, and as fast as it says."""
    monkeypatch.setattr(planning, "NUM_TRIALS", 3)
    for number in range(block * BLOCK, (block + 1) * BLOCK):
        problem = draw(f"unit-{number}", most_each=5)
        assert faults(problem, again=number % 5 == 0) == [], f"unit-{number}"


def test_the_random_problems_have_everything_in_them():
    problems = [draw(f"unit-{number}") for number in range(NUM_BLOCKS * BLOCK)]
    members = list(chain.from_iterable(problem.members for problem in problems))
    assert {member.stage is None for member in members} == {True, False}
    assert {0.0, 1.0} < {member.speed for member in members}
    assert {member.version for member in members} == {0, 1}
    assert any(problem.memory.limits for problem in problems)
    assert any(problem.memory.pending != problem.memory.held for problem in problems)
    assert any(problem.links.unusual for problem in problems)
    for flag in ("staggered", "two_stages", "may_move"):
        assert {getattr(problem, flag) for problem in problems} == {True, False}


def test_for_equal_workers_the_timeline_finds_the_same_period(monkeypatch):
    monkeypatch.setattr(planning, "NUM_TRIALS", 5)
    num_compared = 0
    for number in range(40):
        given = draw(f"equal-{number}", most_each=5)
        members = tuple(member._replace(speed=1.0) for member in given.members)
        problem = replace(given, members=members, links=LinkCosts(), two_stages=False)
        plan = best_plan(problem)
        if all((group.numbers >= 0).all() for group in plan.routing.groups):
            staggered = problem.staggered
            period_s = steady_period_s(plan.schedule(), problem.costs, staggered=staggered)
            assert plan.period_s == pytest.approx(period_s, rel=TICKS), f"equal-{number}"
            num_compared += 1
    assert num_compared > 20


def tiny(seed: str) -> Problem:
    """A few micro-batches on up to four workers of any speed; costs are whole seconds."""
    chance = Random(seed)
    pipelines, stages = chance.choice([(1, 2), (2, 2), (1, 3), (2, 1)])

    def row() -> tuple[float, ...]:
        return tuple(float(chance.randint(1, 3)) for _ in range(stages))

    members = [
        Member(WorkerId(d, s), s, chance.choice([1.0, 1.0, 0.5]))
        for d in range(pipelines)
        for s in range(stages)
        if d == 0 or chance.random() < 0.8
    ]
    return Problem(
        shape=Shape(pipelines, stages, pipelines * chance.randint(1, 3)),
        costs=Costs(row(), row(), row(), link_s=chance.choice([0.0, 1.0]), step_s=row()),
        memory=Memory(limit=float(chance.randint(1, 4))),
        members=tuple(members),
        staggered=chance.random() < 0.7,
        two_stages=False,
    )


@pytest.mark.parametrize("number", range(12))
def test_no_bound_is_above_the_optimum(number):
    pytest.importorskip("ortools")
    problem = tiny(f"tiny-{number}")
    plan = best_plan(problem)
    certificate = certify(plan.schedule(), problem, limit_s=60.0)
    assert certificate.proven
    assert certificate.optimum_s <= plan.period_s * (1 + 1e-6)
    for limit in (*bounds(plan.fleet), bound(plan.fleet), plan.bound):
        assert limit.period_s <= certificate.optimum_s * (1 + 1e-6), limit


def test_a_link_faster_than_usual_breaks_no_bound():
    workers = WorkerId(0, 0), WorkerId(0, 1)
    problem = Problem(
        shape=Shape(1, 2, 1),
        costs=Costs.uniform(2, link_s=1.0),
        memory=Memory(limit=2.0),
        members=tuple(Member(worker, worker.stage) for worker in workers),
        links=LinkCosts(unusual={workers: LinkCost(0.0)}),
    )
    plan = best_plan(problem)
    assert plan.period_s >= plan.bound.period_s * (1 - 1e-6)
