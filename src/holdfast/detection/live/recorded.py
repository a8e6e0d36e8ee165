"""What the events of a run tell of slowness: what the run itself found, what the same detector
finds in the recorded times afterwards, and how fast steps were before, during and after.

Prints nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeVar

from holdfast.cluster import WorkerId, parse_worker
from holdfast.detection.diagnosis import Cause, Diagnosis, Over
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.live.watcher import Watcher
from holdfast.detection.observation import OpTime, StepObservation, Transfer
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.observability.throughput import counted, tokens_per_s
from holdfast.schedule.operation import Kind, parse_op

_MACHINE = "the machine"  # of events that do not tell machines apart
_NO_TIMES = (Cause.MODEL.value, Cause.DATA.value)  # there from the first step to the last
_NEAR_STEPS = 20  # this many before and after are compared with


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Median seconds of a step; None: there were no such steps."""

    before_s: float | None
    during_s: float | None  # nothing was done about it, or not yet
    mitigated_s: float | None
    after_s: float | None


@dataclass(frozen=True, kw_only=True)
class SlowEpisode:
    cause: str
    subject: str
    factor: float  # the largest that was told, with its evidence
    excess_s: float
    since: int  # step
    told: int  # step
    until: int | None  # first step as before; None: to the end of the run
    confidence: float
    evidence: str
    speeds: Speeds | None = None


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    source: str
    num_steps: int
    step_s: float  # median
    tokens_per_s: float
    counted: str  # "tokens", or "samples" of a job that has none
    by_run: tuple[SlowEpisode, ...]  # as the run itself told
    by_replay: tuple[SlowEpisode, ...]  # as found in the recorded times
    num_worker_steps: int  # with times; 0: nothing to look at afterwards
    mitigations: tuple[events.MitigationChosen, ...]
    faults: tuple[events.FaultFired, ...]


def look(source: str, recorded: Iterable[events.Event]) -> RunOutcome:
    recorded = list(recorded)
    steps = _finished(source, recorded)
    if not steps:
        raise ConfigError(f"{source}: no step of this run has finished; there is nothing to judge")
    started = next((each for each in recorded if isinstance(each, events.RunStarted)), None)
    chosen = tuple(each for each in recorded if isinstance(each, events.MitigationChosen))
    changed = _changed(recorded)
    warm = list(steps.values())[1:] or list(steps.values())

    def timed(found: Iterable[SlowEpisode]) -> tuple[SlowEpisode, ...]:
        return tuple(replace(each, speeds=_speeds(each, steps, changed)) for each in found)

    return RunOutcome(
        source=source,
        num_steps=len(steps),
        step_s=median(each.took_s for each in warm),
        tokens_per_s=tokens_per_s(warm) or 0.0,
        counted=counted(started, warm),
        by_run=timed(_episodes(_told(source, recorded))),
        by_replay=timed(_episodes(_watched(source, recorded))),
        num_worker_steps=sum(bool(e.ops) for e in recorded if isinstance(e, events.WorkerStep)),
        mitigations=chosen,
        faults=tuple(each for each in recorded if isinstance(each, events.FaultFired)),
    )


_E = TypeVar("_E", bound=events.Event)
_T = TypeVar("_T")


def _read(source: str, event: _E, meaning: Callable[[_E], _T]) -> _T:
    """Types were checked when the event was read from its file; what it means, only here."""
    try:
        return meaning(event)
    except ValueError as why:
        raise ConfigError(
            f"{source}: {type(event).__name__} with at_s = {event.at_s}: not written by this "
            f"version of Holdfast: {why}; read it with the version that wrote it"
        ) from why


def _finished(source: str, recorded: Iterable[events.Event]) -> dict[int, events.StepFinished]:
    """As each step finished last."""
    last = {}
    for each in recorded:
        if isinstance(each, events.StepFinished):
            _read(source, each, lambda step: _check_times([step.took_s]))
            last[each.step] = each
    return dict(sorted(last.items()))


def _check_times(times_s: Iterable[float]) -> None:
    for time_s in times_s:
        if not 0 <= time_s < math.inf:
            raise ValueError(f"{time_s} s; expected finite times of 0 or more")


def _changed(recorded: Iterable[events.Event]) -> list[int]:
    """First steps of plans that were chosen against slowness and came into force."""
    steps, is_chosen = [], False
    for event in recorded:
        if isinstance(event, events.MitigationChosen):
            is_chosen = event.new_period_s < event.period_s
        elif is_chosen and isinstance(event, events.Recovered | events.PlanSwitched):
            steps.append(event.step + isinstance(event, events.Recovered))  # a whole step
            is_chosen = False
    return steps


_Told = tuple[int, Diagnosis | Over]  # with the step in which it is told


def _told(source: str, recorded: Iterable[events.Event]) -> Iterator[_Told]:
    for event in recorded:
        match event:
            case events.Diagnosed():
                yield event.step, _read(source, event, _diagnosis)
            case events.SlownessOver(subject=subject, since=since):
                cause = _read(source, event, _cause)
                yield event.step, Over(cause, subject, since, ())
            case events.WorkerLost():
                yield event.step, _gone(event)
            case _:
                pass


def _diagnosis(event: events.Diagnosed) -> Diagnosis:
    return Diagnosis(cause=_cause(event), workers=(), **_measured(event))


def _measured(told: events.Diagnosed | Diagnosis) -> dict[str, Any]:
    """What an event, a diagnosis and a slowness all say."""
    names = ("subject", "factor", "excess_s", "since", "confidence", "evidence")
    return {name: getattr(told, name) for name in names}


def _cause(event: events.Diagnosed | events.SlownessOver) -> Cause:
    return Cause(event.cause)


def _watched(source: str, recorded: Iterable[events.Event]) -> Iterator[_Told]:
    """The detector, fed with what was recorded. Nobody can be measured any more: no benchmarks."""
    watcher = Watcher({}, WatchSettings(validate=False))
    steps: dict[int, list[StepObservation]] = {}
    for event in recorded:
        match event:
            case events.WorkerReady():
                watcher.joined(_read(source, event, _worker), event.machine or _MACHINE)
            case events.WorkerLost():
                watcher.lost(_read(source, event, _worker))
                yield event.step, _gone(event)
            case events.WorkerStep(ops=ops) if ops:
                steps.setdefault(event.step, []).append(_read(source, event, observed))
            case events.StepFinished(step=step):
                for each in steps.pop(step, []):
                    watcher.observe(each)
                for told in watcher.conclude(step):
                    if isinstance(told, Diagnosis | Over):
                        yield step, told
            case _:
                pass


def _worker(event: events.WorkerReady | events.WorkerLost) -> WorkerId:
    return parse_worker(event.worker)


def _gone(event: events.WorkerLost) -> Over:
    """Whoever is lost is not slow any more."""
    return Over(Cause.COMPUTE, event.worker, event.step, ())


def observed(event: events.WorkerStep) -> StepObservation:
    """A worker that helped at a second stage is judged by the one it did most for."""
    ops = [parse_op(text) for text, _, _ in event.ops]
    stage = Counter(op.stage for op in ops).most_common(1)[0][0]
    nothing = (0,) * len(ops)
    rows = zip(ops, event.ops, event.cpu_s or nothing, event.sizes or nothing, strict=True)
    times = [
        OpTime(op.kind.value, op.microbatch or 0, start_s, end_s, cpu_s, size)
        for op, (_, start_s, end_s), cpu_s, size in rows
        if op.stage == stage and op.kind is not Kind.R
    ]
    _check_times(time_s for row in times for time_s in (row.end_s - row.start_s, row.cpu_s))
    moved = [
        Transfer(parse_worker(source), kind, count, num_bytes, moved_s)
        for source, kind, count, num_bytes, moved_s in event.transfers
    ]
    _check_times(abs(row.moved_s) for row in moved)
    return StepObservation(
        parse_worker(event.worker), stage, event.step, tuple(times), tuple(moved), event.at_s
    )


def _episodes(told: Iterable[_Told]) -> list[SlowEpisode]:
    """From the first word of each slowness to the word that it is over."""
    found: list[SlowEpisode] = []
    running: dict[tuple[Cause, str], int] = {}
    for step, each in told:
        key = (each.cause, each.subject)
        at = running.get(key)
        if isinstance(each, Over):
            if at is not None:
                found[at] = replace(found[at], until=each.since)
                del running[key]
        elif at is None:
            running[key] = len(found)
            found.append(_begun(each, step))
        elif (each.factor, each.excess_s) > (found[at].factor, found[at].excess_s):
            first = found[at]
            found[at] = replace(_begun(each, first.told), since=first.since)
    return found


def _begun(told: Diagnosis, step: int) -> SlowEpisode:
    return SlowEpisode(cause=told.cause.value, told=step, until=None, **_measured(told))


def _speeds(
    slow: SlowEpisode, steps: Mapping[int, events.StepFinished], changed: Iterable[int]
) -> Speeds | None:
    if slow.cause in _NO_TIMES:
        return None
    warm, last = min(steps) + 1, max(steps) + 1
    until = last if slow.until is None else slow.until
    acted = min((step for step in changed if slow.since < step < until), default=until)

    def middle_s(first: int, end: int) -> float | None:
        # The first step of a run warms up.
        within = [each.took_s for s, each in steps.items() if max(first, warm) <= s < end]
        return median(within) if within else None

    return Speeds(
        before_s=middle_s(slow.since - _NEAR_STEPS, slow.since),
        during_s=middle_s(slow.since, acted),
        mitigated_s=middle_s(acted, until),
        after_s=middle_s(until, until + _NEAR_STEPS),
    )
