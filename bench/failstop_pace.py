"""How fast the others train on after deaths, beside other ways to go on, on the same runtime.

4 x 4 workers, 8 micro-batches a pipeline, memory for 8 micro-batches a worker. Only figures:
tables and bars are in ``failstop.py``.
"""

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from failstop_run import EMULATED, START_LIMIT_S, Job, Run
from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import DeviceConfig
from holdfast.control.join.costs import emulated_costs
from holdfast.observability.events import CheckpointSaved, Recovered, StepFinished, WorkerMoved
from holdfast.planner.assign.roles import unmoved
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.list_schedule import Board
from holdfast.planner.order.order import Order
from holdfast.planner.order.period import steady_period
from holdfast.planner.plan import Plan
from holdfast.planner.planning import best_plan
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.planner.prove.bounds import bound
from holdfast.planner.route.crossing import round_robin
from holdfast.schedule.operation import Shape

PER_PIPELINE, MEMORY = 8, 8
SIZE = Shape(4, 4, 4 * PER_PIPELINE)
DEATHS = {
    "1 dead": ("1.2",),
    "2 dead in two stages": ("1.1", "2.3"),
    "2 dead in one stage": ("0.2", "1.2"),
    "25 % dead, one a stage": ("0.0", "1.1", "2.2", "0.3"),
}
# Steps without a change until no better plan is to come: planning takes a second or two.
QUIET_STEPS, WARM_UP_STEPS = 10, 3
CHECKPOINT_STEPS = 10
MANY_STEPS = 10_000  # the run is ended from here
STEPS_LIMIT_S = 600.0

Place = AbstractContextManager[Path]


class Pace(NamedTuple):
    step_s: float  # median
    mean_s: float

    @classmethod
    def of(cls, steps: Sequence[StepFinished]) -> "Pace":
        times_s = [step.took_s for step in steps]
        return cls(statistics.median(times_s), statistics.mean(times_s))

    def times(self, factor: float) -> "Pace":
        return Pace(*(factor * seconds for seconds in self))


class Settled(NamedTuple):
    """After the last change. Periods are of the holders as they are then."""

    pace: Pace
    plan_s: float  # predicted by the plan in use
    refined_s: float  # by the last plan that the planner has to offer
    bound_s: float
    num_moves: int


def job_of(pipelines: int, microbatches: int, *settings: str, **other: Any) -> Job:
    """``microbatches``: a pipeline."""
    return Job(
        pipelines=pipelines,
        stages=SIZE.stages,
        microbatches=microbatches,
        steps=MANY_STEPS,
        settings=(f"schedule.memory={MEMORY}", *settings),
        **other,
    )


# --- Holdfast ---


def settled(dead: Sequence[str], num_steps: int, place: Place) -> Settled:
    """One death after the other, then so many steps after the last plan was adopted."""
    faults = [f"kill {worker} @ {3 + number}" for number, worker in enumerate(dead)]
    job = job_of(SIZE.pipelines, PER_PIPELINE, "checkpoint.every_steps=0", faults=faults)
    with place as folder, Run(job, folder) as run:

        def steady() -> list[StepFinished] | None:
            changes = run.of(Recovered)
            if not changes or changes[-1].members != job.num_workers - len(dead):
                return None
            since = [s for s in run.of(StepFinished) if s.at_s > changes[-1].resumed_s]
            return since[QUIET_STEPS:] if len(since) >= QUIET_STEPS + num_steps else None

        run.wait_for_step(1, START_LIMIT_S)
        pace = Pace.of(run.wait("the steps were steady", steady, STEPS_LIMIT_S))
    moves = run.of(WorkerMoved)
    moved = {parse_worker(move.worker): move.to_stage for move in moves}
    problem = problem_of(dead, moved)
    plan_s = run.of(Recovered)[-1].period_s
    limit_s = bound(Fleet.of(problem, unmoved(problem).stage_of)).period_s
    return Settled(pace, plan_s, best_plan(problem).period_s, limit_s, len(moves))


def problem_of(dead: Sequence[str], moved: Mapping[WorkerId, int]) -> Problem:
    """As the coordinator asks it. ``moved``: who holds another stage than its name says."""
    emulated = DeviceConfig(emulate=EMULATED.partition("=")[2]).durations_s()
    costs = emulated_costs(emulated, SIZE.stages)
    assert costs is not None
    everyone = [WorkerId(d, s) for d in range(SIZE.pipelines) for s in range(SIZE.stages)]
    live = [worker for worker in everyone if str(worker) not in dead]
    return Problem(
        shape=SIZE,
        costs=costs,
        memory=Memory(limit=float(MEMORY)),
        members=tuple(Member(worker, moved.get(worker, worker.stage)) for worker in live),
        two_stages=False,
        may_move=False,
    )


# --- other ways ---


def steady_pace(job: Job, num_steps: int, place: Place) -> Pace:
    """Of a run in which nothing happens."""
    with place as folder, Run(job, folder) as run:
        run.wait_for_step(1, START_LIMIT_S)
        run.wait_for_step(WARM_UP_STEPS + num_steps, STEPS_LIMIT_S)
    return Pace.of(run.of(StepFinished)[WARM_UP_STEPS:])


def num_whole(dead: Sequence[str]) -> int:
    """Pipelines that have lost nobody."""
    return SIZE.pipelines - len({parse_worker(worker).pipeline for worker in dead})


def dropped_pace(num_pipelines: int, num_steps: int, place: Place) -> Pace:
    """Zero-bubble on the pipelines that are left. They share the step's micro-batches; what they
    run more than that, because they share evenly, is taken off."""
    each = ceil(SIZE.microbatches / num_pipelines)
    job = job_of(num_pipelines, each, "checkpoint.every_steps=0")
    share = SIZE.microbatches / (num_pipelines * each)
    return steady_pace(job, num_steps, place).times(share)


def rerouted_pace(dead: Sequence[str], num_steps: int, place: Place) -> Pace:
    with place as folder:
        lanes = folder / "lanes.txt"
        lanes.write_text(rerouted(problem_of(dead, {})).schedule().dumps())
        ways = (f"schedule.file={lanes}", "optimizer.mode=global", "checkpoint.every_steps=0")
        job = job_of(SIZE.pipelines, PER_PIPELINE, *ways)
        return steady_pace(job, num_steps, nullcontext(folder))


def rerouted(problem: Problem) -> Plan:
    """The policy of ``published.rerouted_s``, with its lanes: the micro-batches of the dead
    go to their peers in turn, backwards come first and are never split, all stages step together.
    """
    problem = replace(problem, staggered=False)
    fleet = Fleet.of(problem, unmoved(problem).stage_of)
    routing = round_robin(fleet)
    template = routing.template
    stage = template.hosts.stage
    board = Board(template.graph(np.ones(template.route.shape, np.bool_)))
    policy = np.repeat([[k.BACKWARD_FIRST], [k.NEVER], [0], [0]], len(stage), axis=1)
    layout = board.lay_out(np.zeros_like(stage), policy)
    assert layout is not None, "memory admits a micro-batch a stage, so there is an order"
    whole = int((layout.last_end + template.tails[stage]).max() - layout.first_start.min())
    nothing = np.zeros((2, template.num_stages), np.int64)
    order = Order(whole, nothing[0], policy, nothing, layout, board)
    period_s = steady_period(routing, order, fleet) * fleet.units.tick_s
    return Plan(fleet, (), routing, order, period_s, bound(fleet), "re-routing alone")


class Restart(NamedTuple):
    first_step_s: float  # from the kill to the end of the first step after it
    caught_up_s: float  # and to the end of the last step that was finished before it
    num_lost: int  # finished steps that ran again
    step_s: float


def restart(rng: random.Random, place: Place) -> Restart:
    """The whole run is killed half-way between two checkpoints and resumed at once."""
    job = job_of(SIZE.pipelines, PER_PIPELINE, f"checkpoint.every_steps={CHECKPOINT_STEPS}")
    with place as folder:
        with Run(job, folder) as run:
            run.wait_for_step(1, START_LIMIT_S)
            run.wait_for_step(CHECKPOINT_STEPS + CHECKPOINT_STEPS // 2, STEPS_LIMIT_S)
            run.wait("a checkpoint", lambda: run.of(CheckpointSaved)[1:] or None, STEPS_LIMIT_S)
            time.sleep(rng.uniform(0, run.of(StepFinished)[-1].took_s))
            kill_s = run.kill_all()
            run.poll()
        steps = run.of(StepFinished)
        with Run(job, folder, resume=True) as again:
            again.wait_for_step(1, START_LIMIT_S)
            again.wait_for_step(run.next_step, STEPS_LIMIT_S)
    redone = again.of(StepFinished)
    caught_up = next(step for step in redone if step.step == steps[-1].step)
    return Restart(
        first_step_s=redone[0].at_s - kill_s,
        caught_up_s=caught_up.at_s - kill_s,
        num_lost=run.next_step - redone[0].step,
        step_s=Pace.of(steps[WARM_UP_STEPS:]).step_s,
    )
