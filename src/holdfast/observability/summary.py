"""A run in one small JSON file: what it computed, how fast, with what."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from holdfast.errors import ConfigError
from holdfast.observability import events as happened
from holdfast.observability.jsonfile import write_json
from holdfast.observability.lines import seconds_after_fault
from holdfast.observability.throughput import counted, tokens_per_s
from holdfast.validation import Validation

EventKind = TypeVar("EventKind", bound=happened.Event)
SUMMARY_FILE = "summary.json"  # inside the directory of a run


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One change of who does what; seconds count from the fault."""

    step: int
    cause: str
    workers: tuple[str, ...]  # who was lost, has joined or moved
    seconds_to_notice: float
    seconds_to_plan: float
    seconds_to_resume: float  # until the last member began its first operation
    redone: int  # operations done again
    operations: int  # all that was left of the running steps
    members: int
    period_s: float  # that the plan predicts for a step; 0: unknown
    reason: str
    thrown_away: int  # finished steps that were trained again


@dataclass(frozen=True, kw_only=True)
class Summary:
    outcome: str  # "finished", "unfinished" or "failed: ..."
    steps: int  # finished in this run
    first_step: int
    losses: tuple[float, ...]  # one a step, in order
    parameters_sha256: str | None
    step_s: float | None  # median; the first step warms up and is left out
    tokens_per_s: float | None  # likewise without the first step
    counted: str = "tokens"  # or "samples": what these are, if the job has no tokens
    workers: tuple[str, ...]
    peak_memory_bytes: Mapping[str, int]  # of each worker
    peak_device_bytes: Mapping[str, int]  # of each worker with a device of its own
    kept_bytes: Mapping[str, int]  # of each worker: most that kept boundary tensors ever took
    num_taken_back: int
    skipped_steps: tuple[int, ...]
    recoveries: tuple[Recovery, ...]
    faults_fired: tuple[str, ...]  # injected ones, as they were given
    joins: tuple[Mapping[str, Any], ...]  # worker, stage, step, copied_bytes, took_s
    moves: tuple[Mapping[str, Any], ...]  # worker, from_stage, to_stage, step, reason
    went_back: tuple[Mapping[str, Any], ...]  # lost_stage, to_step, checkpoint, reason
    checkpoints_failed: tuple[Mapping[str, Any], ...]  # step, worker, reason, next_writer, newest
    rebuilt: tuple[Mapping[str, Any], ...]  # stages, replayed, version, workers, operations, ...
    old_bytes: Mapping[str, int]  # of each worker: most that was held to take a step back
    log_bytes: Mapping[str, int]  # of each worker: written to its log
    log_changes: tuple[Mapping[str, Any], ...]  # worker, step, logging, reason
    diagnoses: tuple[Mapping[str, Any], ...]  # cause, subject, factor, since, evidence, ...
    slowness_over: tuple[Mapping[str, Any], ...]  # cause, subject, step, since
    mitigations: tuple[Mapping[str, Any], ...]  # action, subjects, step, reason, period_s, ...
    switches: tuple[Mapping[str, Any], ...]  # cause, step, took_s, period_s, reason
    num_lost: int  # workers, each time
    replaced: tuple[Mapping[str, Any], ...]  # worker, number, limit
    steps_thrown_away: int  # finished, then gone back on and trained again
    unfinished_joins: tuple[Mapping[str, Any], ...]  # worker, fault, state
    warnings: tuple[str, ...]
    validations: tuple[Validation, ...] = ()
    stopped_early: str = ""  # why; empty: it was not
    versions: Mapping[str, str]
    config: Mapping[str, Any]


def summarize(events: Iterable[happened.Event], *, config: Mapping[str, Any]) -> Summary:
    """Fold the events of a run. A step that finished twice counts as it finished last."""
    events = list(events)
    steps = sorted(_last_by_step(events).values(), key=lambda event: event.step)
    ready = {event.worker: event for event in _of(events, happened.WorkerReady)}
    finished = _of(events, happened.RunFinished)
    started = _of(events, happened.RunStarted)
    return Summary(
        outcome=_outcome(events),
        steps=len(steps),
        first_step=started[0].first_step if started else 0,
        losses=tuple(event.loss for event in steps),
        parameters_sha256=finished[-1].parameters_sha256 if finished else None,
        step_s=_median_s(steps),
        tokens_per_s=tokens_per_s(_warm(steps)),
        counted=counted(started[-1] if started else None, _warm(steps)),
        workers=tuple(sorted(ready)),
        peak_memory_bytes=finished[-1].peak_memory_bytes if finished else {},
        peak_device_bytes=finished[-1].peak_device_bytes if finished else {},
        kept_bytes=finished[-1].kept_bytes if finished else {},
        num_taken_back=len(_of(events, happened.StepTakenBack)),
        skipped_steps=tuple(event.step for event in steps if event.skipped),
        recoveries=tuple(map(_recovery, _of(events, happened.Recovered))),
        faults_fired=tuple(event.fault for event in _of(events, happened.FaultFired)),
        joins=_untimed(events, happened.WorkerJoined),
        moves=_untimed(events, happened.WorkerMoved),
        went_back=_untimed(events, happened.WentBack),
        checkpoints_failed=_untimed(events, happened.CheckpointFailed),
        rebuilt=_untimed(events, happened.StageRebuilt),
        old_bytes=finished[-1].old_bytes if finished else {},
        log_bytes=finished[-1].log_bytes if finished else {},
        log_changes=_untimed(events, happened.LogChanged),
        diagnoses=_untimed(events, happened.Diagnosed),
        slowness_over=_untimed(events, happened.SlownessOver),
        mitigations=_untimed(events, happened.MitigationChosen),
        switches=_untimed(events, happened.PlanSwitched),
        num_lost=len(_of(events, happened.WorkerLost)),
        replaced=_untimed(events, happened.WorkerReplaced),
        steps_thrown_away=sum(event.thrown_away for event in _of(events, happened.WentBack)),
        unfinished_joins=_untimed(events, happened.JoinUnfinished),
        warnings=tuple(event.reason for event in _of(events, happened.Warned)),
        validations=_validations(events),
        stopped_early="".join(event.reason for event in _of(events, happened.StoppedEarly)[-1:]),
        versions=_versions(ready.values()),
        config=config,
    )


def write_summary(path: Path, summary: Summary | Mapping[str, Any]) -> None:
    values = asdict(summary) if isinstance(summary, Summary) else dict(summary)
    write_json(path, values, indent=2)


def read_summary(path: Path) -> Summary:
    """ConfigError: it is none, or one of another version."""
    try:
        values = json.loads(path.read_text())
        values["recoveries"] = [Recovery(**_tuples(one)) for one in values["recoveries"]]
        values["losses"] = [float(loss) for loss in values["losses"]]  # NaN is written as text
        values["validations"] = [_validation(*one) for one in values.get("validations", ())]
        return Summary(**_tuples(values))
    except (OSError, ValueError, TypeError, KeyError) as why:
        raise ConfigError(
            f"{path}: not written by this version of Holdfast, or broken off: {why}"
        ) from why


def _validation(step: int, loss: Any, metrics: Mapping[str, Any]) -> Validation:
    """NaN is written as text."""
    return Validation(step, float(loss), {name: float(value) for name, value in metrics.items()})


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _last_by_step(events: Iterable[happened.Event]) -> dict[int, happened.StepFinished]:
    """Steps that were gone back on and have not run again are not finished."""
    last: dict[int, happened.StepFinished] = {}
    for event in events:
        if isinstance(event, happened.StepFinished):
            last[event.step] = event
        elif isinstance(event, happened.WentBack):
            last = {step: done for step, done in last.items() if step < event.to_step}
    return last


def _validations(events: Iterable[happened.Event]) -> tuple[Validation, ...]:
    """What was gone back on and has not been found again does not count."""
    last: dict[int, Validation] = {}
    for event in events:
        if isinstance(event, happened.Validated):
            last[event.step] = Validation(event.step, event.loss, dict(event.metrics))
        elif isinstance(event, happened.WentBack):
            last = {step: one for step, one in last.items() if step <= event.to_step}
    return tuple(one for _, one in sorted(last.items()))


def _recovery(event: happened.Recovered) -> Recovery:
    notice_s, plan_s, resumed_s = seconds_after_fault(event)
    own = {f.name: getattr(event, f.name) for f in fields(Recovery) if hasattr(event, f.name)}
    return Recovery(
        seconds_to_notice=notice_s, seconds_to_plan=plan_s, seconds_to_resume=resumed_s, **own
    )


def _of(events: Iterable[happened.Event], kind: type[EventKind]) -> list[EventKind]:
    return [event for event in events if isinstance(event, kind)]


def _untimed(events: Iterable[happened.Event], kind: type[EventKind]) -> tuple[dict[str, Any], ...]:
    """All events of one kind, each without the moment it happened."""
    found = (asdict(event) for event in _of(events, kind))
    return tuple({name: value for name, value in d.items() if name != "at_s"} for d in found)


def _outcome(events: Iterable[happened.Event]) -> str:
    for event in reversed(list(events)):
        if isinstance(event, happened.RunFailed):
            return f"failed: {event.reason}"
        if isinstance(event, happened.RunFinished):
            return "finished"
    return "unfinished"


def _median_s(steps: list[happened.StepFinished]) -> float | None:
    return median(event.took_s for event in _warm(steps)) if steps else None


def _warm(steps: list[happened.StepFinished]) -> list[happened.StepFinished]:
    return steps[1:] or steps


def _versions(ready: Iterable[happened.WorkerReady]) -> dict[str, str]:
    """Of each library; two workers that differ show as "2.6 / 2.7"."""
    found: dict[str, set[str]] = {}
    for event in ready:
        for name, version in event.versions.items():
            found.setdefault(name, set()).add(version)
    return {name: " / ".join(sorted(versions)) for name, versions in sorted(found.items())}
