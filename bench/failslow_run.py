"""One run of a case in one way, and what its records say: pace, who was named, stalls.

Times come from ``StepFinished`` and from the records of operations. No tables, no bars.
"""

import os
import signal
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from failslow_cases import FIRST, MODES, WARM_UP_STEPS, Case, lanes_without
from failstop_run import START_LIMIT_S, Job, Run, RunError, records
from holdfast.detection.diagnosis import Cause
from holdfast.faults.fault import parse_fault
from holdfast.mitigation.options import Action
from holdfast.observability.events import (
    Diagnosed,
    Event,
    FaultFired,
    MitigationChosen,
    PlanSwitched,
    Recovered,
    RunFinished,
    StepFinished,
)
from holdfast.schedule.operation import Kind

LIMIT_S = 900.0
FAULTS = (Cause.COMPUTE, Cause.LINK, Cause.MACHINE)  # the other causes are no faults
AROUND = 2  # steps before a switch, and as many from it on, that may be longer for it
NEIGHBOURS = 4  # steps on either side of those, with which they are compared
_POLL_S = 0.2


class Watched(Run):
    """Read only when it has ended: to follow it takes time from its workers."""

    def __enter__(self) -> "Watched":
        return self

    def to_the_end(self) -> None:
        self.wait_for_end()
        if not self.of(RunFinished):
            raise RunError(f"the run failed: {self.last_words()}")

    def wait_for_end(self) -> None:
        until_s = time.monotonic() + START_LIMIT_S + LIMIT_S
        while self._process.poll() is None:
            if time.monotonic() > until_s:
                raise RunError(f"the run did not end in time: {self.last_words()}")
            time.sleep(_POLL_S)
        self.poll()

    def interrupt(self) -> float:
        """As with Ctrl-C: it writes a checkpoint and ends. When that was."""
        at_s = time.monotonic()
        os.kill(self._process.pid, signal.SIGINT)
        return at_s


# --- step times and stalls ---


def step_times(events: Iterable[Event]) -> dict[int, float]:
    """Seconds from the end of the step before to the end of each: pauses count."""
    ends_s = {event.step: event.at_s for event in events if isinstance(event, StepFinished)}
    return {step: at_s - ends_s[step - 1] for step, at_s in ends_s.items() if step - 1 in ends_s}


class Gap(NamedTuple):
    """Nobody runs an operation."""

    begin_s: float
    end_s: float


def gaps(events: Sequence[Event]) -> list[Gap]:
    """Reductions are left out: most of their time is waiting."""
    spans = sorted((one.start_s, one.end_s) for one in records(events) if one.op.kind is not Kind.R)
    found, busy_s = [], spans[0][1] if spans else 0.0
    for start_s, end_s in spans:
        if start_s > busy_s:
            found.append(Gap(busy_s, start_s))
        busy_s = max(busy_s, end_s)
    return found


def longest_s(found: Sequence[Gap], begin_s: float, end_s: float) -> float:
    """Of the parts of gaps that lie between. ``found``: one after the other."""
    first = bisect_right(found, begin_s, key=lambda gap: gap.end_s)
    last = bisect_left(found, end_s, key=lambda gap: gap.begin_s)
    parts = (min(gap.end_s, end_s) - max(gap.begin_s, begin_s) for gap in found[first:last])
    return max(parts, default=0.0)


class Switch(NamedTuple):
    """``stall_s``: the longest time around it in which nobody runs an operation, less the usual
    longest one of a step. ``excess_s``: what the steps around it took more than their neighbours.
    """

    step: int
    cause: str
    stall_s: float
    excess_s: float | None  # None: it has no neighbours, something else has changed as well


def switches(events: Sequence[Event], changes: Iterable[int] = ()) -> list[Switch]:
    """``changes``: steps from which on somebody was slower or faster than before."""
    ends_s = {event.step: event.at_s for event in events if isinstance(event, StepFinished)}
    switched = [event for event in events if isinstance(event, PlanSwitched)]
    idle, times_s, at = gaps(events), step_times(events), [event.step for event in switched]
    near = {step for k in at for step in range(k - AROUND, k + AROUND)}
    calm = [step for step in times_s if step not in near and step >= WARM_UP_STEPS]
    usual_s = statistics.median([longest_s(idle, ends_s[s - 1], ends_s[s]) for s in calm] or [0.0])
    found = []
    for event in switched:
        first, last = event.step - AROUND - 1, event.step + AROUND - 1
        if first not in ends_s or last not in ends_s:
            continue  # the run began, or ended, meanwhile
        stall_s = longest_s(idle, ends_s[first], ends_s[last]) - usual_s
        excess_s = _excess_s(times_s, event.step, at, sorted(changes))
        found.append(Switch(event.step, event.cause, max(0.0, stall_s), excess_s))
    return found


def _excess_s(
    times_s: dict[int, float], k: int, switched: Sequence[int], changes: Sequence[int]
) -> float | None:
    first, end = k - AROUND, k + AROUND
    others = [step for step in switched if step != k]
    apart = sorted([*changes, *(o - AROUND for o in others), *(o + AROUND for o in others)])
    if any(first < step < end for step in apart):
        return None
    since = max((step for step in apart if step <= first), default=0)
    until = min((step for step in apart if step >= end), default=end + NEIGHBOURS)
    before = range(max(since, first - NEIGHBOURS), first)
    after = range(end, min(until, end + NEIGHBOURS))
    sides = [[times_s[s] for s in side if s in times_s] for side in (before, after)]
    if not all(sides):
        return None
    usual_s = sum(AROUND * statistics.mean(side) for side in sides)
    return sum(times_s[step] for step in range(first, end)) - usual_s


# --- a case ---


class Measured(NamedTuple):
    """Seconds are of a step, unless the name says otherwise."""

    healthy_s: float  # median before the fault
    step_s: float  # mean of the disturbed ones, with every pause
    steady_s: float  # median of the last third of them
    after_s: float  # median of the last third of those after them
    delays: dict[str, int | None]  # of each slow one: steps until it was named; None: never
    wrong: tuple[str, ...]  # who was named and was not slow
    actions: tuple[str, ...]  # what was done, one after the other, with its step
    switches: tuple[Switch, ...]
    stop_s: float  # the longest that a change took which stops everyone; 0: there was none
    pause_s: float  # of a restart, to the end of its first step


def measured(
    events: Sequence[Event],
    case: Case,
    num_disturbed: int,
    *,
    acts: bool = True,
    pause_s: float = 0.0,
) -> Measured:
    """``acts``: False if it only tells what it would do."""
    times_s = step_times(events)
    last = FIRST + num_disturbed
    if missing := set(range(WARM_UP_STEPS, last)) - times_s.keys():
        raise RunError(f"there is no record of step {min(missing)}")
    fired = {event.fault for event in events if isinstance(event, FaultFired)}
    wanted = {str(parse_fault(slow.fault(num_disturbed))) for slow in case.slow}
    if unfired := wanted - fired:
        raise RunError(f"it never fired: {', '.join(sorted(unfired))}")
    named = _named(events)
    stops_s = [e.resumed_s - e.notice_s for e in events if isinstance(e, Recovered)]
    disturbed = [times_s[step] for step in range(FIRST, last)]
    after = [seconds for step, seconds in times_s.items() if step >= last] or disturbed
    return Measured(
        healthy_s=statistics.median(times_s[step] for step in range(WARM_UP_STEPS, FIRST)),
        step_s=statistics.mean(disturbed),
        steady_s=statistics.median(disturbed[-(num_disturbed // 3 or 1) :]),
        after_s=statistics.median(after[-(len(after) // 3 or 1) :]),
        delays=_delays(case, num_disturbed, named),
        wrong=tuple(sorted({event.subject for event in named} - set(case.subjects))),
        actions=_actions(events) if acts else (),
        switches=tuple(switches(events, case.changes(num_disturbed))),
        stop_s=max(stops_s, default=0.0),
        pause_s=pause_s,
    )


def _named(events: Iterable[Event]) -> list[Diagnosed]:
    return [e for e in events if isinstance(e, Diagnosed) and e.cause in list(FAULTS)]


def _delays(case: Case, num_disturbed: int, named: Sequence[Diagnosed]) -> dict[str, int | None]:
    """From the first step in which it was slow."""
    found: dict[str, int | None] = {}
    for subject in case.subjects:
        spans = [s.steps(num_disturbed) for s in case.slow if s.subject == subject]
        first = FIRST + min(span[0] for span in spans)
        told = [event.step for event in named if event.subject == subject and event.step >= first]
        found[subject] = min(told) - first if told else None
    return found


def _actions(events: Iterable[Event]) -> tuple[str, ...]:
    chosen = (event for event in events if isinstance(event, MitigationChosen))
    return tuple(f"{one.action} @ {one.step}" for one in chosen if one.action != Action.WAIT)


def run_case(case: Case, way: str, num_disturbed: int, folder: Path) -> Measured:
    job = case.job(way, num_disturbed)
    if way == "restart":
        return _restarted(case, job, num_disturbed, folder)
    with Watched(job, folder) as run:
        run.to_the_end()
    return measured(run.events, case, num_disturbed, acts=MODES[way] != "observe")


def _restarted(case: Case, job: Job, num_disturbed: int, folder: Path) -> Measured:
    """Interrupted when the slow one is named, and resumed at once without it."""
    (worker,) = case.subjects
    lanes = folder / "lanes.txt"  # written before, so that planning is no part of the pause
    lanes.write_text(lanes_without(case, worker).dumps())

    def told() -> bool:
        return any(event.subject == worker for event in _named(run.events))

    with Watched(job, folder) as run:
        run.wait_for_step(1, START_LIMIT_S)
        run.wait(f"{worker} was named", told, LIMIT_S)
        since_s = run.interrupt()
        run.wait_for_end()
    settings = (*job.settings, f"schedule.file={lanes}")
    with Watched(replace(job, settings=settings, faults=()), folder, resume=True) as again:
        again.to_the_end()
    pause_s = again.of(StepFinished)[0].at_s - since_s
    events = [*run.events, *again.events]
    return measured(events, case, num_disturbed, acts=False, pause_s=pause_s)


# --- nothing happens ---


class Calm(NamedTuple):
    """A run in which nothing was injected."""

    num_steps: int
    whole_s: float
    step_s: float
    named: tuple[str, ...]
    num_mitigations: int
    lost_s: float  # by what was done about slowness; below 0: it helped


def calm_of(events: Sequence[Event]) -> Calm:
    """For each mitigation: how much longer its steps were than those beside them, and stalls."""
    times_s = {s: t for s, t in step_times(events).items() if s >= WARM_UP_STEPS}
    if not times_s:
        raise RunError(f"fewer than {WARM_UP_STEPS + 1} steps in the time there was")
    chosen = [e.action for e in events if isinstance(e, MitigationChosen)]
    stops_s = [e.resumed_s - e.notice_s for e in events if isinstance(e, Recovered)]
    stalls_s = [
        max(0.0, one.stall_s if one.excess_s is None else one.excess_s) for one in switches(events)
    ]
    longer_s = [_longer_s(times_s, span) for span in mitigated(events, max(times_s) + 1)]
    return Calm(
        num_steps=len(times_s),
        whole_s=sum(times_s.values()),
        step_s=statistics.median(times_s.values()),
        named=tuple(f"{event.subject} ({event.cause})" for event in _named(events)),
        num_mitigations=sum(action not in (Action.WAIT, Action.BACK) for action in chosen),
        lost_s=sum(longer_s) + sum(stalls_s) + sum(stops_s),
    )


def mitigated(events: Iterable[Event], end: int) -> list[range]:
    """Steps that ran with lanes made for somebody slow; those before and after are at home."""
    spans: list[range] = []
    begin: int | None = None
    for event in events:
        if not isinstance(event, PlanSwitched):
            continue
        if event.cause != Action.BACK:
            begin = event.step if begin is None else begin
        elif begin is not None:
            spans.append(range(begin, event.step))
            begin = None
    return spans if begin is None else [*spans, range(begin, max(begin, end))]


def _longer_s(times_s: dict[int, float], span: range) -> float:
    """Beside as many steps, but at least some, on either side."""
    width = max(len(span), 10)
    beside = [*range(span.start - width, span.start), *range(span.stop, span.stop + width)]
    usual_s = [times_s[step] for step in beside if step in times_s]
    own_s = [times_s[step] for step in span if step in times_s]
    if not usual_s or not own_s:
        return 0.0
    return (statistics.median(own_s) - statistics.median(usual_s)) * len(own_s)


def run_calm(job: Job, minutes: float, folder: Path) -> Calm:
    """Mitigation is on. Ended from here."""
    settings = (*job.settings, "mitigation.mode=holdfast")
    with Watched(replace(job, steps=1_000_000, settings=settings), folder) as run:
        run.wait_for_step(WARM_UP_STEPS, START_LIMIT_S)
        time.sleep(60 * minutes)
        if not run.poll():
            raise RunError(f"the run ended by itself: {run.last_words()}")
    return calm_of(run.events)


def median_step_s(job: Job, mode: str, num_steps: int, folder: Path) -> float:
    settings = (*job.settings, f"mitigation.mode={mode}")
    steps = WARM_UP_STEPS + num_steps
    with Watched(replace(job, steps=steps, settings=settings), folder) as run:
        run.to_the_end()
    times_s = step_times(run.events)
    return statistics.median(times_s[step] for step in range(WARM_UP_STEPS, steps))
