"""The simulator beside real emulated runs: the same cluster, the same faults at the same points.

Real worker processes sleep instead of computing. For each layout a run of its own measures what
operations and processes take (``costs run``): it is not among those that are compared, and nothing
is fitted to these. Then every case is run for real and in virtual time, message by message and
interval by interval.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from attempts import Attempts, headline
from failstop_run import START_LIMIT_S, Job, Run
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.cluster import WorkerId
from holdfast.config import DeviceConfig
from holdfast.control.join.costs import emulated_costs
from holdfast.observability.events import Event, RunFinished, StepFinished
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.planner.planning import refine
from holdfast.planner.problem import Member
from holdfast.runtime.probe.probing import EMULATED_FORWARDS
from holdfast.schedule.operation import Shape
from holdfast.simulator.costs.from_run import run_costs
from holdfast.simulator.costs.measured_times import ProcessTimes, measured_times, warm_steps
from holdfast.simulator.messages.scenario import Scenario
from holdfast.simulator.messages.virtual_run import VirtualRun
from simulate_lost import Window, ends_s, error, forward_s, throughput, time_lost_s
from simulate_real_intervals import in_intervals

LAYOUTS = {"2x2": (2, 2), "4x2": (4, 2), "4x4": (4, 4)}
PER_PIPELINE = 4
STEPS_AFTER, COSTS_STEPS_AFTER = 22, 24  # after the first fault
OP_MS = {"2x2": 20, "4x2": 20, "4x4": 30}  # 16 processes on two cores need time for themselves
RUN_LIMIT_S, VIRTUAL_LIMIT_S = 600.0, 600.0
SEEDS = (1, 2, 3)
DISTURBED = 0.02  # operations took so much more or less than in the costs run
SAVES_EVERY = 5
LOGGED = ("recovery.log=boundary", f"checkpoint.every_steps={SAVES_EVERY}")
CASES = ["no failure", "one kill", "two kills", "kill, join", "slow x2", "lost stage"]


@dataclass(frozen=True)
class Case:
    """``faults`` as for ``--fault``; ``windows``: where time is lost."""

    name: str
    faults: tuple[str, ...] = ()
    settings: tuple[str, ...] = ("workers.replace=0",)
    windows: tuple[Window, ...] = ()


class Found(NamedTuple):
    """Of one run, real or simulated."""

    steps_s: float  # steps a second
    lost_s: float | None


def first_fault(shape: Shape) -> int:
    """Links have been measured, and some steps were as usual. Counted from 0."""
    return warm_steps(shape) + 5


def after_checkpoint(step: int) -> int:
    """Some steps after the next one, so that there is something to replay."""
    return SAVES_EVERY * (step // SAVES_EVERY + 1) + 3


def cases(shape: Shape) -> list[Case]:
    """Steps of faults are counted from 1, those of windows from 0."""
    first, stay = first_fault(shape), ("workers.replace=0",)
    lost = after_checkpoint(first)
    stage = tuple(f"kill {d}.1 @ {lost + 1}.B1" for d in range(shape.pipelines))
    one = f"kill 1.1 @ {first + 1}.B1"
    other = f"kill 0.{2 * (shape.stages > 2)} @ {first + 11}.F1"
    slow = f"slow 1.0 @ {first + 1}-{first + 14} x2"
    return [
        Case("no failure"),
        Case("one kill", (one,), stay, (Window(first),)),
        Case("two kills", (one, other), stay, (Window(first), Window(first + 10))),
        Case("kill, join", (one,), (), (Window(first, until="join"),)),
        Case("slow x2", (slow,), stay, (Window(first, steps=16),)),
        Case("lost stage", stage, LOGGED, (Window(lost),)),
    ]


@dataclass(frozen=True)
class Layout:
    name: str
    shape: Shape
    op_ms: int

    @classmethod
    def of(cls, name: str, op_ms: int | None) -> "Layout":
        pipelines, stages = LAYOUTS[name]
        shape = Shape(pipelines, stages, pipelines * PER_PIPELINE)
        return cls(name, shape, op_ms or OP_MS[name])

    @property
    def steps(self) -> int:
        return first_fault(self.shape) + STEPS_AFTER

    @property
    def costs_steps(self) -> int:
        return costs_calm(self.shape) + COSTS_STEPS_AFTER

    @property
    def emulated(self) -> str:
        return ",".join(f"{kind}={self.op_ms}ms" for kind in "FBW")

    @property
    def settings(self) -> tuple[str, ...]:
        return (f"device.emulate={self.emulated}", "checkpoint.every_steps=0")

    def job(self, case: Case, steps: int) -> Job:
        shape = self.shape
        return Job(
            pipelines=shape.pipelines,
            stages=shape.stages,
            microbatches=PER_PIPELINE,
            steps=steps,
            settings=("workers.replace=3", *self.settings, *case.settings),
            faults=case.faults,
        )


# --- real ---


@dataclass(frozen=True)
class Runs:
    """Real runs, each in a directory of its own; ``again``: those that were kept there, not new
    ones."""

    attempts: Attempts
    keep: Path | None
    again: bool

    def events(self, layout: Layout, case: Case, number: int, steps: int) -> list[Event] | None:
        name = "-".join([layout.name, *case.name.replace(",", "").split(), str(number)])
        kept = self.keep and self.keep / name
        if self.again and kept is not None:
            return read_events(kept / "run" / EVENTS_FILE)
        if kept is None:
            return self.attempts.attempt_in_place(name, lambda at: ran(layout, case, at, steps))
        kept.mkdir(parents=True)
        return self.attempts.attempt(name, lambda: ran(layout, case, kept, steps))


def ran(layout: Layout, case: Case, folder: Path, steps: int) -> list[Event]:
    with Run(layout.job(case, steps), folder) as run:
        run.wait("its first step", lambda: run.of(StepFinished) or None, START_LIMIT_S)
        run.wait("its end", lambda: next(iter(run.of(RunFinished)), None), RUN_LIMIT_S)
        return list(run.events)


class Costs(NamedTuple):
    """What the costs run has measured; ``calm_s``: a step before its first fault, on average."""

    times: ProcessTimes
    job: JobCosts
    calm_s: float
    calm: Sequence[Event]


def costs_case(shape: Shape) -> Case:
    """After many calm steps a worker dies and is started again; later a stage is lost."""
    calm = costs_calm(shape)
    lost = after_checkpoint(calm + 12)
    stage = (f"kill {pipeline}.0 @ {lost + 1}.F1" for pipeline in range(shape.pipelines))
    return Case("costs", (f"kill 0.1 @ {calm + 1}.F1", *stage), LOGGED)


def costs_calm(shape: Shape) -> int:
    return warm_steps(shape) + 14


def measured(events: Sequence[Event]) -> Costs:
    """From the costs run, and what a trial of the planner takes on this machine."""
    times, job = measured_times("costs run", events), run_costs("costs run", events)
    at_s, first, last = ends_s(events), warm_steps(job.shape), costs_calm(job.shape) - 1
    calm_s = (at_s[last] - at_s[first]) / (last - first)
    forwards_s = EMULATED_FORWARDS * times.usual_s("0F")
    beside = {"trial": (trial_s(job),), "benchmark": (forwards_s,)}
    return Costs(ProcessTimes({**times.rows, **beside}), job, calm_s, events)


def trial_s(job: JobCosts) -> float:
    """CPU seconds of one trial of the planner's search, for this job."""
    shape, count = job.shape, 0
    workers = [WorkerId(d, s) for d in range(shape.pipelines) for s in range(shape.stages)]
    problem = job.problem(tuple(Member(worker, worker.stage) for worker in workers[1:]))

    def between() -> None:
        nonlocal count
        count += 1

    start_s = time.thread_time()
    for _ in refine(problem, between=between):
        pass
    return (time.thread_time() - start_s) / max(count, 1)


# --- in virtual time ---


def simulated(layout: Layout, case: Case, times: ProcessTimes, seed: int) -> list[Event]:
    usual = ("checkpoint.at_end=false", "workers.replace=3")
    world = VirtualRun(
        Scenario(
            seed=str(seed),
            shape=layout.shape,
            steps=layout.steps,
            settings=(*usual, *layout.settings, *case.settings),
            faults=case.faults,
            measured=times,
        )
    )
    world.run(VIRTUAL_LIMIT_S)
    if world.failure is not None or not world.is_over:
        raise RuntimeError(f"{layout.name}, {case.name}: no end in virtual time: {world.failure}")
    return world.events


def judged(events: Sequence[Event], case: Case, shape: Shape) -> Found:
    warm = warm_steps(shape)
    lost_s = time_lost_s(events, case.windows, warm) if case.windows else None
    return Found(throughput(events), lost_s)


def middle(found: Sequence[Found]) -> Found:
    lost = [one.lost_s for one in found if one.lost_s is not None]
    rate = statistics.median(one.steps_s for one in found)
    return Found(rate, statistics.median(lost) if lost else None)


# --- beside each other ---


class Pair(NamedTuple):
    """A real run, and what the simulator makes of it. ``pace``: how much longer operations took
    than in the costs run; far from 1 the machine had something else to do."""

    real: Found
    messages: Found
    intervals_steps_s: float
    pace: float
    load: float


class Row(NamedTuple):
    """Of a case in a layout: medians of its rounds."""

    layout: str
    case: str
    pair: Pair

    @classmethod
    def of(cls, layout: str, case: str, pairs: Sequence[Pair]) -> "Row":
        median = statistics.median
        return cls(
            layout,
            case,
            Pair(
                middle([one.real for one in pairs]),
                middle([one.messages for one in pairs]),
                median(one.intervals_steps_s for one in pairs),
                max((one.pace for one in pairs), key=lambda pace: abs(pace - 1)),
                max(one.load for one in pairs),
            ),
        )

    @property
    def is_disturbed(self) -> bool:
        return abs(self.pair.pace - 1) > DISTURBED

    @property
    def errors(self) -> tuple[float, float | None, float]:
        """Of throughput, of the time lost, and of throughput by intervals."""
        real, found, lost = self.pair.real, self.pair.messages, None
        if real.lost_s is not None and found.lost_s is not None:
            lost = error(found.lost_s, real.lost_s)
        by_intervals = error(self.pair.intervals_steps_s, real.steps_s)
        return error(found.steps_s, real.steps_s), lost, by_intervals


def rows(runs: Runs, layout: Layout, chosen: Sequence[str], rounds: int) -> Iterator[Row]:
    """Rounds of all cases, each with a costs run of its own: what else the machine does differs
    from hour to hour, and meets all of them."""
    some = [case for case in cases(layout.shape) if case.name in chosen]
    found: dict[str, list[Pair]] = {case.name: [] for case in some}
    for number in range(rounds):
        calm = runs.events(layout, costs_case(layout.shape), number, layout.costs_steps)
        costs = None if calm is None else measured(calm)
        for case in some if costs is not None else ():
            assert costs is not None
            events = runs.events(layout, case, number, layout.steps)
            found[case.name] += [] if events is None else [pair(layout, case, costs, events)]
    for case in some:
        if found[case.name]:
            yield Row.of(layout.name, case.name, found[case.name])


def pair(layout: Layout, case: Case, costs: Costs, events: Sequence[Event]) -> Pair:
    in_messages = middle(
        [judged(simulated(layout, case, costs.times, n), case, layout.shape) for n in SEEDS]
    )
    steps = range(warm_steps(layout.shape), first_fault(layout.shape))
    pace = forward_s(events, steps) / forward_s(costs.calm, steps)
    load = os.getloadavg()[0]
    return Pair(
        judged(events, case, layout.shape),
        in_messages,
        by_intervals(layout, case, costs),
        pace,
        load,
    )


def by_intervals(layout: Layout, case: Case, costs: Costs) -> float:
    emulated = DeviceConfig(emulate=layout.emulated).durations_s()
    planned = emulated_costs(emulated, layout.shape.stages)
    assert planned is not None
    return in_intervals(
        replace(costs.job, costs=planned),  # as the coordinator plans
        costs.times,
        case.faults,
        layout.steps,
        replaces="workers.replace=0" not in case.settings,
        saves_every=SAVES_EVERY if case.settings == LOGGED else 0,
        calm_s=costs.calm_s,
    )


def add_flags(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--layout", action="append", choices=list(LAYOUTS), help="only these")
    group.add_argument("--case", action="append", choices=CASES, help="only these")
    group.add_argument("--rounds", type=int, default=3, help="real runs of a case (3)")
    group.add_argument("--op-ms", type=int, help="of F, B and W (20; 4x4: 30)")
    group.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs' directories")
    group.add_argument("--again", action="store_true", help="those in --keep, and no new ones")


def real(args: argparse.Namespace) -> dict[str, Any]:
    """Also prints the table. The last line's figures: means over the rows."""
    quick = args.quick
    layouts = args.layout or (["2x2"] if quick else list(LAYOUTS))
    chosen = args.case or (["one kill"] if quick else CASES)
    rounds = 1 if quick else args.rounds
    attempts = Attempts("simulate-real")
    runs = Runs(attempts, args.keep, args.again)
    headline("Real emulated runs beside the simulator: steps/s, and s lost by what happened")
    print("*: operations took over 2 % more or less than in the costs run: other work beside")
    print(
        f"{'':16}{'load':>6}{'pace':>6}{'real':>9}{'msg':>9}{'':8}{'ivals':>9}{'':8}{'lost':>9}{'msg':>9}"
    )
    found: list[Row] = []
    for name in layouts:
        for row in rows(runs, Layout.of(name, args.op_ms), chosen, rounds):
            found.append(row)
            print(line(row), flush=True)
    return means(found) | {"failures": attempts.failures}


def line(row: Row) -> str:
    real, found, ivals, pace, load = row.pair
    rate, lost, by_intervals = row.errors
    text = f"{row.layout} {row.case:11}{'*' if row.is_disturbed else ' '}{load:6.1f}{pace:6.2f}"
    text += f"{real.steps_s:9.4f}{found.steps_s:9.4f}{rate:7.1%} {ivals:9.4f}{by_intervals:7.1%} "
    if lost is not None:
        text += f"{real.lost_s:9.3f}{found.lost_s:9.3f}{lost:7.0%}"
    return text


def means(found: Sequence[Row]) -> dict[str, Any]:
    errors = [row.errors for row in found]
    lost = [one[1] for one in errors if one[1] is not None]

    def mean(values: Sequence[float]) -> float | None:
        return round(statistics.fmean(values), 4) if values else None

    return {
        "error_throughput": mean([one[0] for one in errors]),
        "error_stall": mean(lost),
        "error_throughput_intervals": mean([one[2] for one in errors]),
        "real_cells": len(found),
        "real_cells_disturbed": sum(row.is_disturbed for row in found),
    }
