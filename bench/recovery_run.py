"""One loss of a stage, 20 steps past the checkpoint, and what it cost with one way to recover.

Every run goes on from the same checkpoint, must have fired its kill, and must end with the same
parameters as the undisturbed run, bit by bit. Only figures: tables and bars are elsewhere.
"""

import shutil
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from failstop_run import START_LIMIT_S, Ran, Run, RunError, records
from holdfast.observability.events import (
    Event,
    FaultFired,
    Recovered,
    RunFinished,
    RunStarted,
    StageRebuilt,
    StepFinished,
    WentBack,
)
from holdfast.planner.logs.replay_time import ReplayCosts, swift_replay_s
from holdfast.schedule.operation import Kind
from recovery_cases import CHECKPOINT_STEP, WAYS, Case, Way

LIMIT_S = 300.0
_READ_BYTES_PER_S = 1e9  # assumed of a log that was just written


class Clean(NamedTuple):
    """The undisturbed run of a case."""

    sha256: str
    step_s: float
    forward_s: tuple[float, ...]  # of a micro-batch at each stage
    backward_s: tuple[float, ...]  # B and W


class Outcome(NamedTuple):
    """Seconds count from the fault."""

    working_s: float  # until the last worker runs operations of a step again
    finished_s: float  # until the step in which the worker died is finished
    steps_again: int  # by all workers
    replayed_steps: int  # of the lost stage, by those who replay it
    operations_again: int  # F, B and W, those of the replay included
    num_replayers: int
    replay_s: float | None
    why: str  # why all went back, if they did


# --- before ---


def prepare(case: Case, folder: Path) -> None:
    """A run directory with the checkpoint from which all others go on."""
    settings = (*case.task.settings, "checkpoint.every_steps=0")
    with Run(replace(case.task, steps=CHECKPOINT_STEP, settings=settings), folder) as run:
        to_the_end(run)


def to_the_end(run: Run) -> RunFinished:
    run.wait("its first step", lambda: run.of(StepFinished) or None, START_LIMIT_S)
    return run.wait("its end", lambda: next(iter(run.of(RunFinished)), None), LIMIT_S)


def undisturbed(case: Case, prepared: Path, folder: Path) -> Clean:
    shutil.copytree(prepared / "run", folder / "run")
    with Run(case.job(Way()), folder, resume=True) as run:
        finished = to_the_end(run)
    ends_s = [step.at_s for step in run.of(StepFinished)]
    steps_s = [b - a for a, b in pairwise(ends_s[1:])]
    forward_s, backward_s = operation_times(run.events, case.task.stages)
    return Clean(
        sha256=_checked(finished.parameters_sha256),
        step_s=statistics.median(steps_s),
        forward_s=forward_s,
        backward_s=backward_s,
    )


def _checked(sha256: str | None) -> str:
    if not sha256:
        raise RunError("the run has no SHA-256 of its parameters")
    return sha256


def operation_times(
    events: Sequence[Event], num_stages: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Medians at each stage: of F, and of B and W together."""

    def median_s(stage: int, *kinds: Kind) -> float:
        times_s = [r.end_s - r.start_s for r in ran if r.op.stage == stage and r.op.kind in kinds]
        return statistics.median(times_s) if times_s else 0.0

    ran = list(records(events))
    stages = range(num_stages)
    whole = [median_s(s, Kind.BW) for s in stages]
    split = [median_s(s, Kind.B) + median_s(s, Kind.W) for s in stages]
    forward_s = tuple(median_s(s, Kind.F) for s in stages)
    return forward_s, tuple(b or w for b, w in zip(split, whole, strict=True))


# --- the loss ---


def recover(case: Case, name: str, clean: Clean, prepared: Path, folder: Path) -> Outcome:
    way = WAYS[name]
    shutil.copytree(prepared / "run", folder / "run")
    with Run(case.job(way, case.fault), folder, resume=True) as run:
        fault = run.wait(f"'{case.fault}'", lambda: next(iter(run.of(FaultFired)), None), LIMIT_S)
        if way.restarts:
            run.kill_all()
            run.poll()
            with Run(case.job(way), folder, resume=True) as again:
                finished = to_the_end(again)
            events = [*run.events, *again.events]
        else:
            finished = to_the_end(run)
            events = run.events
    if finished.parameters_sha256 != clean.sha256:
        raise RunError(f"{case.name}, {name}: the parameters differ from the undisturbed run's")
    return outcome(events, fault)


def outcome(events: Sequence[Event], fault: FaultFired) -> Outcome:
    """``events``: of the run, and of the one that was started after it, if there was one."""
    after = [event for event in events if event.at_s > fault.at_s]
    ended = [e for e in after if isinstance(e, StepFinished) and e.step == fault.step]
    rebuilt = [event for event in after if isinstance(event, StageRebuilt)]
    back = [event for event in after if isinstance(event, WentBack)]
    starts = [event.first_step for event in after if isinstance(event, RunStarted)]
    to_step = min([fault.step, *starts, *(event.to_step for event in back)])
    replayed = sum(event.operations for event in rebuilt)
    return Outcome(
        working_s=_working_s(after, ended[0].at_s) - fault.at_s,
        finished_s=ended[0].at_s - fault.at_s,
        steps_again=fault.step - to_step,
        replayed_steps=max((event.version - CHECKPOINT_STEP for event in rebuilt), default=0),
        operations_again=_num_again(events, fault) + replayed,
        num_replayers=max((len(event.workers) for event in rebuilt), default=0),
        replay_s=sum(event.took_s for event in rebuilt) if rebuilt else None,
        why="; ".join(event.reason for event in back),
    )


Done = tuple[int, int, Kind, int | None]  # step, stage, kind, micro-batch


def _num_again(events: Sequence[Event], fault: FaultFired) -> int:
    """Operations that were run before the fault and once more after it, whoever ran them.

    Of steps that all those who ran them could report; the last report of the dead never came, but
    it had ended all steps before the one in which it died.
    """
    ran = list(records(events))
    before = [one for one in ran if one.start_s < fault.at_s]
    own = [one for one in before if one.worker == fault.worker]
    last = max((one.step for one in own), default=fault.step)
    unheard = [
        one._replace(step=step)
        for step in range(last + 1, fault.step)
        for one in own
        if one.step == last
    ]
    again = set(_parts(one for one in ran if one.start_s > fault.at_s))
    return len(again & set(_parts([*before, *unheard])))


def _parts(ran: Iterable[Ran]) -> Iterator[Done]:
    """B and W of one that was run as a whole."""
    for one in ran:
        kinds = (Kind.B, Kind.W) if one.op.kind is Kind.BW else (one.op.kind,)
        for kind in kinds:
            if kind is not Kind.R:
                yield one.step, one.op.stage, kind, one.op.microbatch


def _working_s(after: Sequence[Event], until_s: float) -> float:
    """When the last worker began its first operation; after a restart nobody else tells it."""
    changes = [e for e in after if isinstance(e, Recovered) and e.num_lost]
    resumed_s = [change.resumed_s for change in changes if change.plan_s < until_s]
    if resumed_s:
        return max(resumed_s)
    first_s: dict[str, float] = {}
    for one in records(after):
        first_s[one.worker] = min(one.start_s, first_s.get(one.worker, one.start_s))
    return max(first_s.values())


# --- what models say ---


def predicted_s(case: Case, clean: Clean, num_helpers: int) -> tuple[float, float]:
    """Of the replay: by SWIFT's own model, and by the planner's, which has operation times."""
    shape = case.task.shape
    swift_s = swift_replay_s(
        lost_steps=case.lost_steps,
        step_s=clean.step_s,
        num_microbatches=shape.microbatches,
        num_helpers=num_helpers,
        num_replayed=1,
        num_stages=shape.stages,
    )
    nothing = (0,) * (shape.stages - 1)
    costs = ReplayCosts(
        forward_s=clean.forward_s,
        backward_s=clean.backward_s,
        activation_bytes=nothing,
        gradient_bytes=nothing,
        num_microbatches=shape.microbatches,
        num_helpers=num_helpers,
        interval_steps=1,
        lost_steps=case.lost_steps,
        log_bytes_per_s=_READ_BYTES_PER_S,
        disk_bytes_per_s=_READ_BYTES_PER_S,
    )
    return swift_s, costs.times.lost_s(case.stage, case.stage, case.stage)


def crew_size(case: Case, way: Way) -> int:
    """Who takes part in a replay: at most all survivors; 0: there is none."""
    survivors = case.task.num_workers - 1
    wanted = way.num_helpers or 0
    return survivors if wanted < 0 else min(wanted, survivors)
