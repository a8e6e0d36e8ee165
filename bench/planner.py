"""How good and how fast plans are: nearness to the bound, throughput beside published policies,
time to the first plan, slow workers, and certified optima of small cases.

All simulated: F = B = W = 1, links 5 % of that, nothing is trained. Counts of workers are
pipelines x stages; memory is in forwarded micro-batches a worker, S the number of stages.

    .venv/bin/python bench/planner.py [--quick]
"""

import argparse
import gc
import json
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np

from holdfast.baselines.compare import HOLDFAST, compare
from holdfast.baselines.published import POLICIES
from holdfast.cluster import WorkerId
from holdfast.planner.plan import Plan
from holdfast.planner.planning import best_plan, first_plan, refine
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.planner.prove.bounds import bounds
from holdfast.planner.prove.certificate import certify
from holdfast.planner.prove.checker import violations
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape

LINK_S = 0.05
SEEDS = (1, 2)
# Plans of up to 16 x 8 workers are also checked, operation by operation.
MOST_CHECKED = 16 * 8
CERTIFY_LIMIT_S = 60.0

Case = TypeVar("Case")
Found = TypeVar("Found")
Figures = dict[str, Any]


def cluster(pipelines: int, stages: int, dead: frozenset[WorkerId] = frozenset()) -> list[Member]:
    return [
        Member(WorkerId(pipeline, stage), stage)
        for pipeline in range(pipelines)
        for stage in range(stages)
        if WorkerId(pipeline, stage) not in dead
    ]


def dead_workers(pipelines: int, stages: int, percent: int, seed: int) -> frozenset[WorkerId]:
    """At random, but never all holders of a stage."""
    everyone = [member.worker for member in cluster(pipelines, stages)]
    num = max(1, round(len(everyone) * percent / 100)) if percent else 0
    rng = random.Random(seed)
    while True:
        dead = frozenset(rng.sample(everyone, num))
        if len({worker.stage for worker in everyone if worker not in dead}) == stages:
            return dead


def problem_of(
    members: Sequence[Member],
    shape: tuple[int, int, int],
    memory: float,
    link_s: float = LINK_S,
    **other: Any,
) -> Problem:
    """``shape``: pipelines, stages, micro-batches a pipeline."""
    pipelines, stages, per_pipeline = shape
    return Problem(
        shape=Shape(pipelines, stages, pipelines * per_pipeline),
        costs=Costs.uniform(stages, link_s=link_s),
        memory=Memory(limit=memory),
        members=tuple(members),
        **other,
    )


def checked(plan: Plan, problem: Problem) -> Plan:
    if len(problem.members) <= MOST_CHECKED:
        wrong = violations(plan.schedule(), problem, plan.holders)
        if wrong:
            sys.exit(f"an unsound plan: {wrong[0]}")
    return plan


def on_all_cores(run: Callable[[Case], Found], cases: Sequence[Case]) -> Iterator[Found]:
    """In the order of the cases; nothing in them is timed."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(run, cases)


def headline(text: str) -> None:
    print(f"\n{text}", flush=True)


# --- 1. nearness to the bound ---


class NearCase(NamedTuple):
    pipelines: int
    stages: int
    memory: float  # in stages
    percent: int
    seed: int


def near(case: NearCase) -> tuple[float, float, str]:
    """First and refined plan over the bound, and what the bound is."""
    pipelines, stages, memory, percent, seed = case
    members = cluster(pipelines, stages, dead_workers(pipelines, stages, percent, seed))
    shape = (pipelines, stages, 4 * stages)
    problem = problem_of(members, shape, memory * stages, two_stages=False)
    plans = list(refine(problem))
    bound_s = plans[0].bound.period_s
    first, last = (checked(plan, problem).period_s / bound_s for plan in (plans[0], plans[-1]))
    return first, last, plans[0].bound.limit


def nearness(quick: bool) -> Figures:
    headline("1. Period over the bound: first plan, refined plan (the worst of the seeds)")
    sizes = [(4, 4), (8, 4)] if quick else [(4, 4), (8, 4), (8, 8), (16, 8), (16, 16), (32, 16)]
    dead = [(0, 1), *product((5, 10), SEEDS[:1] if quick else SEEDS)]
    cells = list(product(sizes, (1.5, 2.0, 3.0), dead))
    cases = [NearCase(*size, memory, *of_dead) for size, memory, of_dead in cells]
    worst: dict[bool, list[float]] = {True: [0.0, 0.0], False: [0.0, 0.0]}
    rows: dict[tuple[Any, ...], list[tuple[float, float, str]]] = {}
    print(f"{'size':>6}{'memory':>8}{'dead':>6}{'first':>9}{'refined':>9}  limit")
    for case, found in zip(cases, on_all_cores(near, cases), strict=True):
        rows.setdefault(case[:4], []).append(found)
        if case.seed == (dead[-1][1] if case.percent else 1):
            firsts, lasts, limits = zip(*rows[case[:4]], strict=True)
            size, names = f"{case.pipelines}x{case.stages}", ", ".join(dict.fromkeys(limits))
            print(
                f"{size:>6}{case.memory:>7}S{case.percent:>5}%"
                f"{max(firsts):9.4f}{max(lasts):9.4f}  {names}",
                flush=True,
            )
        of_memory = worst[case.memory >= 2]
        of_memory[:] = max(of_memory[0], found[0]), max(of_memory[1], found[1])
    return {
        "worst_of_bound_2S": round(worst[True][1], 4),
        "worst_of_bound_1_5S": round(worst[False][1], 4),
        "worst_first_of_bound_2S": round(worst[True][0], 4),
        "worst_first_of_bound_1_5S": round(worst[False][0], 4),
    }


# --- 2. throughput beside published policies ---


class ThroughputCase(NamedTuple):
    pipelines: int
    stages: int
    percent: int
    seed: int

    @property
    def cell(self) -> str:
        return f"{self.pipelines}x{self.stages}@{self.percent}%"


def throughput_of(case: ThroughputCase) -> dict[str, float]:
    """Of each policy, as a share of what the live workers could do without a bubble."""
    pipelines, stages, percent, seed = case
    members = cluster(pipelines, stages, dead_workers(pipelines, stages, percent, seed))
    problem = problem_of(members, (pipelines, stages, 4 * stages), 2.0 * stages)
    plan = checked(best_plan(problem), problem)
    live = len(members) / (pipelines * stages)
    return {row.name: row.of_peak / live for row in compare(problem, plan=plan)}


def throughput(quick: bool) -> Figures:
    headline("2. Throughput over the fault-scaled ideal (the worst of the seeds); memory 2S")
    sizes = [(8, 4)] if quick else [(8, 4), (16, 8), (32, 16)]
    cells = product(sizes, (5, 10), SEEDS[:1] if quick else SEEDS)
    cases = [ThroughputCase(d, s, percent, seed) for (d, s), percent, seed in cells]
    table: dict[str, dict[str, float]] = {}
    ahead = True
    for case, found in zip(cases, on_all_cores(throughput_of, cases), strict=True):
        ahead &= all(found[policy.name] < found[HOLDFAST] for policy in POLICIES)
        for name, share in found.items():
            row = table.setdefault(name, {})
            row[case.cell] = min(row.get(case.cell, share), share)
    names = list(dict.fromkeys(case.cell for case in cases))
    print(f"{'':30}" + "".join(f"{name:>11}" for name in names))
    for name, row in table.items():
        print(f"{name:30}" + "".join(f"{row[cell]:11.3f}" for cell in names), flush=True)
    of_ideal = {cell: round(share, 4) for cell, share in table[HOLDFAST].items()}
    return {"of_ideal": of_ideal, "ahead_everywhere": ahead}


# --- 3. time to the first plan ---


def changed(
    members: list[Member], number: int, gone: list[WorkerId], rng: random.Random
) -> list[Member]:
    """A death, a slowdown, a join, in turn. ``gone``: who may join again."""
    at = rng.randrange(len(members))
    if number % 3 == 0:
        gone.append(members[at].worker)
        return members[:at] + members[at + 1 :]
    if number % 3 == 1:
        slower = members[at]._replace(speed=members[at].speed * 0.8)
        return [*members[:at], slower, *members[at + 1 :]]
    return [*members, Member(gone.pop(), None)]


def with_slow(members: Sequence[Member], num_speeds: int, rng: random.Random) -> list[Member]:
    """Every tenth worker slow, at one of so many speeds from 0.5 to 0.9."""
    speeds = np.linspace(0.5, 0.9, num_speeds).tolist()
    slow = set(rng.sample(range(len(members)), len(members) // 10))
    return [
        member._replace(speed=rng.choice(speeds)) if at in slow else member
        for at, member in enumerate(members)
    ]


def after(plan: Plan) -> list[Member]:
    """Everyone where the plan has put it."""
    fleet = plan.fleet
    rows = zip(fleet.workers, fleet.stage.tolist(), fleet.speed.tolist(), strict=True)
    return [Member(*row) for row in rows]


def planned(pipelines: int, stages: int, num_speeds: int, num_changes: int) -> list[list[float]]:
    """[seconds to the plan, from there to all its lanes, of the core for both], a row a change."""
    rng = random.Random(pipelines)
    dead = dead_workers(pipelines, stages, 5, seed=1)
    members = with_slow(cluster(pipelines, stages, dead), num_speeds, rng)
    shape, memory = (pipelines, stages, 16), 2.0 * stages
    plan = first_plan(problem_of(members, shape, memory))
    times_s: list[list[float]] = []
    gone: list[WorkerId] = []
    for number in range(num_changes):
        problem = problem_of(changed(after(plan), number, gone, rng), shape, memory)
        gc.collect()  # what the last check has left is no part of planning
        start_s, busy_s = time.perf_counter(), time.process_time()
        plan = first_plan(problem)
        planned_s = time.perf_counter()
        plan.tables()
        end_s = time.perf_counter()
        times_s.append([planned_s - start_s, end_s - planned_s, time.process_time() - busy_s])
        checked(plan, problem)
    return times_s


def first_plans(quick: bool) -> Figures:
    headline("3. From a change to the first plan and all its lanes, ms, on one core")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    sizes = [(8, 8), (32, 8), (64, 16), (256, 16), (1024, 16)][: 2 if quick else None]
    planned(8, 8, 8, 3)  # compiles
    # On a busy machine the core's own time says more than the clock.
    print(f"{'size':>8}{'speeds':>8}{'plan':>9}{'lanes':>9}{'median':>9}{'max':>9}{'max CPU':>9}")
    longest_s: dict[int, float] = {}
    usual_s: dict[int, float] = {}
    for (pipelines, stages), num_speeds in product(sizes, (1, 8)):
        times_s = planned(pipelines, stages, num_speeds, 6 if quick else 15)
        sums_s = [plan_s + lanes_s for plan_s, lanes_s, _ in times_s]
        plan_s, lanes_s, _ = map(statistics.median, zip(*times_s, strict=True))
        busiest_s = max(row[2] for row in times_s)
        columns_s = (plan_s, lanes_s, statistics.median(sums_s), max(sums_s), busiest_s)
        cells = "".join(f"{seconds * 1e3:9.1f}" for seconds in columns_s)
        print(f"{f'{pipelines}x{stages}':>8}{num_speeds:>8}{cells}", flush=True)
        workers = pipelines * stages
        longest_s[workers] = max(longest_s.get(workers, 0.0), columns_s[3])
        usual_s[workers] = max(usual_s.get(workers, 0.0), columns_s[2])
    os.sched_setaffinity(0, cores)
    slope = np.polyfit(np.log(list(usual_s)), np.log(list(usual_s.values())), 1)[0]
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"time grows with workers to the power of {slope:.2f}; peak {peak_bytes / 1e6:.0f} MB")
    return {
        "first_plan_s": {str(workers): round(s, 4) for workers, s in longest_s.items()},
        "exponent": round(float(slope), 3),
        "peak_bytes": peak_bytes,
    }


# --- 4. slow workers ---


class SlowCase(NamedTuple):
    pipelines: int
    num_slow: int
    speed: float
    memory: float  # in stages


def slow(case: SlowCase) -> tuple[float, float, str]:
    """Capacity over the period, capacity over what whole micro-batches allow, the named limit."""
    pipelines, num_slow, speed, memory = case
    stages, stage = 8, 3
    members = [
        member._replace(speed=speed)
        if member.stage == stage and member.worker.pipeline < num_slow
        else member
        for member in cluster(pipelines, stages)
    ]
    problem = problem_of(members, (pipelines, stages, 32), memory * stages, two_stages=False)
    plan = checked(best_plan(problem), problem)
    limits_s = {limit.limit: limit.period_s for limit in bounds(plan.fleet)}
    work_s = limits_s["work"]
    return work_s / plan.period_s, work_s / limits_s["granularity"], plan.bound.limit


def fail_slow(quick: bool) -> Figures:
    headline("4. Slow holders of one stage, 8 stages, 32 micro-batches: capacity over the period")
    speeds = (0.5, 0.67)
    groups = [(2, 1), (4, 1)] if quick else [(2, 1), (4, 1), (8, 1), (4, 2), (4, 3)]
    cells = product((3.0, 1.5), groups, speeds)
    cases = [SlowCase(*group, speed, memory) for memory, group, speed in cells]
    worst = {3.0: 1.0, 1.5: 1.0}
    print(f"{'slow':>8}{'speed':>7}{'memory':>8}{'reached':>9}{'whole micro-batches':>21}  limit")
    for case, (share, whole, limit) in zip(cases, on_all_cores(slow, cases), strict=True):
        worst[case.memory] = min(worst[case.memory], share)
        print(
            f"{f'{case.num_slow} of {case.pipelines}':>8}{case.speed:>7}{case.memory:>7}S"
            f"{share:9.4f}{whole:21.4f}  {limit}"
        )
    return {
        "slow_of_capacity_3S": round(worst[3.0], 4),
        "slow_of_capacity_1_5S": round(worst[1.5], 4),
    }


# --- 5. certified optima ---


class SmallCase(NamedTuple):
    shape: tuple[int, int, int]
    num_dead: int
    memory: float = 2.0  # in stages
    link_s: float = 0.0


SMALL_CASES = (
    *(SmallCase(shape, num) for shape in ((2, 4, 8), (3, 4, 6), (4, 4, 8)) for num in (0, 1)),
    SmallCase((2, 4, 8), 0, memory=1.5),
    SmallCase((3, 4, 6), 1, memory=1.5),
    SmallCase((2, 4, 8), 0, link_s=LINK_S),
    SmallCase((3, 4, 6), 1, memory=1.5, link_s=LINK_S),
)


def certified(limit_s: float) -> Figures:
    headline("5. Small cases: period over the best order of the same routes, where that is proven")
    ratios = []
    print(f"{'case':>7}{'dead':>6}{'memory':>8}{'link':>6}{'period':>9}{'bound':>9}{'took s':>8}")
    for shape, num_dead, memory, link_s in SMALL_CASES:
        members = cluster(*shape[:2], frozenset([WorkerId(1, 2)][:num_dead]))
        problem = problem_of(members, shape, memory * shape[1], link_s, two_stages=False)
        plan = checked(best_plan(problem), problem)
        proof = certify(plan.schedule(), problem, limit_s=limit_s, known_period_s=plan.period_s)
        size = "x".join(map(str, shape))
        print(
            f"{size:>7}{num_dead:>6}{memory:>7}S{link_s:>6}{plan.period_s:9.3f}"
            f"{proof.bound_s:9.3f}{proof.took_s:8.1f}{'' if proof.proven else '  not proven'}",
            flush=True,
        )
        if proof.proven:
            ratios.append(plan.period_s / proof.bound_s)
    return {"worst_of_proven": round(max(ratios), 4), "num_proven": len(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small sample of each section")
    quick = parser.parse_args().quick
    figures = first_plans(quick) | nearness(quick) | throughput(quick) | fail_slow(quick)
    if not quick:
        figures |= certified(CERTIFY_LIMIT_S)
    print(f"\n{json.dumps(figures)}")


if __name__ == "__main__":
    main()
