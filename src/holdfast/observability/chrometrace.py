"""Events -> a trace for Perfetto and chrome://tracing: a process a pipeline, a row a stage.

One more process, "control", has a bar for each recovery. Knows no file.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.cluster import WorkerId, parse_worker
from holdfast.observability.events import (
    Event,
    FaultFired,
    Recovered,
    RunStarted,
    StepFinished,
    StepTakenBack,
    WorkerLost,
    WorkerStep,
)
from holdfast.observability.lines import seconds_after_fault

# Kind of operation -> (name, one of the colours that trace viewers know).
_KINDS = {
    "F": ("forward", "good"),
    "B": ("input gradient", "thread_state_runnable"),
    "W": ("weight gradient", "yellow"),
    "BW": ("whole backward", "thread_state_iowait"),
    "R": ("reduce", "grey"),
}
_OTHER = ("other", "generic_work")


def chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """The whole trace file; times are microseconds from the start of the run."""
    events = list(events)
    origin_s = _origin_s(events)
    workers = _workers(events)
    control = 1 + max((worker.pipeline for worker in workers), default=0)
    rows = [row for event in events for row in _rows(event, origin_s, control)]
    rows += _recoveries(events, origin_s, control)
    names = [*_names(workers), *_control_names(rows, control)]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *rows]}


def _workers(events: list[Event]) -> list[WorkerId]:
    """All that have a row: they ran, or something happened to them."""
    kinds = WorkerStep | WorkerLost | FaultFired
    names = {event.worker for event in events if isinstance(event, kinds)}
    return sorted(parse_worker(name) for name in names if name)


def _origin_s(events: list[Event]) -> float:
    """When the run started, or the first operation if that is earlier or all there is."""
    starts_s = [event.at_s for event in events if isinstance(event, RunStarted)]
    for event in events:
        if isinstance(event, WorkerStep):
            starts_s += [start_s for _, start_s, _ in event.ops]
    return min(starts_s, default=0.0)


def _rows(event: Event, origin_s: float, control: int) -> Iterator[dict[str, Any]]:
    match event:
        case WorkerStep():
            yield from _operations(event, origin_s)
        case StepFinished():
            finished = {"step": event.step, "loss": event.loss}
            after_s = event.at_s - origin_s
            yield _moment(f"step {event.step} finished", after_s, scope="g", args=finished)
        case StepTakenBack():
            taken = {"step": event.step, "reason": event.reason}
            after_s = event.at_s - origin_s
            moment = _moment(f"step {event.step} taken back", after_s, scope="t", args=taken)
            yield moment | _row_of(parse_worker(event.worker))
        case WorkerLost():
            lost = {"step": event.step, "cause": event.cause}
            name = f"worker {event.worker} lost"
            moment = _moment(name, event.at_s - origin_s, scope="t", args=lost)
            yield moment | {"cat": "fault"} | _row_of(parse_worker(event.worker))
        case FaultFired():
            fired = {"step": event.step, "point": event.point}
            moment = _moment(f"fault: {event.fault}", event.at_s - origin_s, scope="t", args=fired)
            # A join is injected into no worker.
            where = _row_of(parse_worker(event.worker)) if event.worker else {"pid": control}
            yield moment | {"cat": "fault"} | where


def _recoveries(events: list[Event], origin_s: float, control: int) -> Iterator[dict[str, Any]]:
    """A bar each, from the fault to the last first operation."""
    busy_s: list[float] = []  # until when each row is taken: bars of one row must not overlap
    found = [event for event in events if isinstance(event, Recovered)]
    for event in sorted(found, key=lambda event: event.fault_s):
        free = (row for row, until_s in enumerate(busy_s) if until_s <= event.fault_s)
        row = next(free, len(busy_s))
        busy_s[row : row + 1] = [event.resumed_s]
        yield {
            "name": " ".join([event.cause, *event.workers]),
            "cat": "recovery",
            "ph": "X",
            "ts": _microseconds(event.fault_s - origin_s),
            "dur": _microseconds(event.resumed_s - event.fault_s),
            "cname": "terrible",
            "args": _told(event),
            "pid": control,
            "tid": row,
        }


def _told(event: Recovered) -> dict[str, Any]:
    notice_s, plan_s, _ = seconds_after_fault(event)
    return {
        "step": event.step,
        "epoch": event.epoch,
        "seconds_to_notice": notice_s,
        "seconds_to_plan": plan_s,
        "redone": event.redone,
        "operations": event.operations,
        "members": event.members,
        "reason": event.reason,
    }


def _operations(event: WorkerStep, origin_s: float) -> Iterator[dict[str, Any]]:
    where = _row_of(parse_worker(event.worker))
    for text, start_s, end_s in event.ops:
        kind, colour = _KINDS.get(text.strip("0123456789"), _OTHER)
        yield {
            "name": text,
            "cat": kind,
            "ph": "X",
            "ts": _microseconds(start_s - origin_s),
            "dur": _microseconds(end_s - start_s),
            "cname": colour,
            "args": {"step": event.step, "op": text},
            **where,
        }


def _moment(name: str, after_s: float, *, scope: str, args: dict[str, Any]) -> dict[str, Any]:
    moment = {"name": name, "cat": "step", "ph": "i", "s": scope, "pid": 0, "tid": 0, "args": args}
    return moment | {"ts": _microseconds(after_s)}


def _names(workers: list[WorkerId]) -> Iterator[dict[str, Any]]:
    for pipeline in sorted({worker.pipeline for worker in workers}):
        name = {"name": f"pipeline {pipeline}"}
        yield {"name": "process_name", "ph": "M", "pid": pipeline, "tid": 0, "args": name}
        order = {"sort_index": pipeline}
        yield {"name": "process_sort_index", "ph": "M", "pid": pipeline, "tid": 0, "args": order}
    for worker in workers:
        name = {"name": f"stage {worker.stage} (worker {worker})"}
        yield {"name": "thread_name", "ph": "M", "args": name, **_row_of(worker)}
        order = {"sort_index": worker.stage}
        yield {"name": "thread_sort_index", "ph": "M", "args": order, **_row_of(worker)}


def _control_names(rows: list[dict[str, Any]], control: int) -> Iterator[dict[str, Any]]:
    """None if nothing is in its rows."""
    used = sorted({row["tid"] for row in rows if row["pid"] == control})
    name = {"name": "control"}
    if used:
        yield {"name": "process_name", "ph": "M", "pid": control, "tid": 0, "args": name}
        order = {"sort_index": -1}  # above the pipelines
        yield {"name": "process_sort_index", "ph": "M", "pid": control, "tid": 0, "args": order}
    for tid in used:
        yield {"name": "thread_name", "ph": "M", "pid": control, "tid": tid, "args": name}


def _row_of(worker: WorkerId) -> dict[str, int]:
    return {"pid": worker.pipeline, "tid": worker.stage}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
