"""Events as four tables of plain values: steps, operations, transfers, and all that is rare."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from holdfast.observability.events import (
    Event,
    RunStarted,
    StepFinished,
    TookOver,
    WorkerStep,
    encode_event,
)

Value: TypeAlias = int | float | str | bool | None
Row: TypeAlias = tuple[Value, ...]

_OP = re.compile(r"([0-9]+)([A-Z]+)([0-9]*)")
_STAMP = {"launch": int, "unix_s": float, "at_s": float}

# Steps count from 0. ``unix_s`` is empty if the launch did not say what time of day it was.
TABLES: Mapping[str, Mapping[str, type]] = {
    "steps": {
        **_STAMP,
        "step": int,
        "loss": float,
        "gradient_norm": float,
        "tokens": int,
        "took_s": float,
        "clipped": bool,
        "skipped": bool,
        "empty": bool,
        "loss_scale": float,
        "lr": float,
    },
    "operations": {
        "launch": int,
        "step": int,
        "worker": str,
        "operation": str,
        "stage": int,
        "kind": str,
        "microbatch": int,
        "start_s": float,
        "end_s": float,
        "cpu_s": float,
        "elements": int,
    },
    "transfers": {
        "launch": int,
        "step": int,
        "worker": str,
        "source": str,
        "what": str,
        "number": int,
        "bytes": int,
        "median_s": float,
    },
    "events": {**_STAMP, "event": str, "step": int, "worker": str, "values": str},
}


class TableRow(NamedTuple):
    table: str
    values: Row


def table_rows(events: Iterable[Event]) -> Iterator[TableRow]:
    """Of all events of a run, in their order."""
    launch, ahead_s = 0, None
    for event in events:
        if isinstance(event, RunStarted | TookOver):
            launch += 1
            ahead_s = event.unix_s - event.at_s if event.unix_s else None
        if isinstance(event, WorkerStep):
            yield from _work(event, launch)
            continue
        stamp = (launch, None if ahead_s is None else event.at_s + ahead_s, event.at_s)
        if isinstance(event, StepFinished):
            yield TableRow("steps", (*stamp, *_step(event)))
        else:
            yield TableRow("events", (*stamp, *_rare(event)))


def _step(event: StepFinished) -> Row:
    return tuple(getattr(event, name) for name in TABLES["steps"] if name not in _STAMP)


def _rare(event: Event) -> Row:
    step, worker = getattr(event, "step", None), getattr(event, "worker", None)
    values = json.loads(encode_event(event))
    for name in ("event", "at_s"):
        del values[name]
    return type(event).__name__, step, worker, json.dumps(values)


def _work(event: WorkerStep, launch: int) -> Iterator[TableRow]:
    head = (launch, event.step, event.worker)
    for number, (text, start_s, end_s) in enumerate(event.ops):
        match = _OP.fullmatch(text)
        parts: Row = (None, text, None)
        if match:
            parts = (int(match[1]), match[2], int(match[3]) if match[3] else None)
        cpu_s = event.cpu_s[number] if number < len(event.cpu_s) else None
        size = event.sizes[number] if number < len(event.sizes) else None
        yield TableRow("operations", (*head, text, *parts, start_s, end_s, cpu_s, size))
    for transfer in event.transfers:
        yield TableRow("transfers", (*head, *transfer))
