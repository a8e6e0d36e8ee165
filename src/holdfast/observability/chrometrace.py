"""Events -> a trace for Perfetto and chrome://tracing: a process a pipeline, a row a stage."""

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.cluster import WorkerId, parse_worker
from holdfast.observability.events import (
    Event,
    RunStarted,
    StepFinished,
    StepTakenBack,
    WorkerStep,
)

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
    workers = sorted(
        {parse_worker(event.worker) for event in events if isinstance(event, WorkerStep)}
    )
    rows = [row for event in events for row in _rows(event, origin_s)]
    return {"displayTimeUnit": "ms", "traceEvents": [*_names(workers), *rows]}


def _origin_s(events: list[Event]) -> float:
    """When the run started, or the first operation if that is earlier or all there is."""
    starts_s = [event.at_s for event in events if isinstance(event, RunStarted)]
    for event in events:
        if isinstance(event, WorkerStep):
            starts_s += [start_s for _, start_s, _ in event.ops]
    return min(starts_s, default=0.0)


def _rows(event: Event, origin_s: float) -> Iterator[dict[str, Any]]:
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


def _row_of(worker: WorkerId) -> dict[str, int]:
    return {"pid": worker.pipeline, "tid": worker.stage}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
