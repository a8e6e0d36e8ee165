"""What a run's events say of its speed and of time that was lost. The same for real and simulated.

Pure: knows no run, only the steps that became final, and when.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from holdfast.observability.events import Event, Recovered, StepFinished, WorkerStep
from holdfast.schedule.operation import Kind, parse_op


class Window(NamedTuple):
    """From the end of the step before ``step`` to the end of the last of so many ``steps``.

    ``until``: or to the end of the first step after a change with this cause. Counted from 0.
    """

    step: int
    steps: int = 2
    until: str = ""


def ends_s(events: Sequence[Event]) -> dict[int, float]:
    """When each step was final; of one that ran again, the last time."""
    return {event.step: event.at_s for event in events if isinstance(event, StepFinished)}


def throughput(events: Sequence[Event]) -> float:
    """Steps a second, from the end of the first to the end of the last."""
    at_s = ends_s(events)
    first, last = min(at_s), max(at_s)
    return (last - first) / (at_s[last] - at_s[first])


def time_lost_s(events: Sequence[Event], windows: Sequence[Window], warm: int) -> float:
    """How much longer all windows took than as many usual steps.

    Usual is the median of the steps since the window before, or since step ``warm``.
    """
    at_s, since, lost_s = ends_s(events), warm, 0.0
    for window in windows:
        first, last = window.step - 1, window.step + window.steps - 1
        if window.until:
            last = _after_change(events, at_s, window.until)
        usual_s = statistics.median(b - a for a, b in pairwise(_part(at_s, since - 1, first)))
        lost_s += at_s[last] - at_s[first] - (last - first) * usual_s
        since = last + 1
    return lost_s


def _part(at_s: Mapping[int, float], first: int, last: int) -> list[float]:
    return [at_s[step] for step in range(first, last + 1)]


def _after_change(events: Sequence[Event], at_s: Mapping[int, float], cause: str) -> int:
    changes = [e for e in events if isinstance(e, Recovered) and cause in e.cause]
    if not changes:
        raise ValueError(f"no change by {cause} in this run: expected one")
    return min(step for step, end_s in at_s.items() if end_s > changes[0].resumed_s)


def forward_s(events: Sequence[Event], steps: range) -> float:
    """Mean of all forwards in these steps."""
    return statistics.fmean(
        end_s - start_s
        for event in events
        if isinstance(event, WorkerStep) and event.step in steps
        for text, start_s, end_s in event.ops
        if parse_op(text).kind is Kind.F
    )


def error(simulated: float, real: float) -> float:
    return abs(simulated / real - 1)
