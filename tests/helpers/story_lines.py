"""What happened in a story, in short lines: messages, events and whatever else is to be done.

Names are those of the classes. Which fields are shown depends on their names only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import groupby
from typing import Any, NamedTuple

from holdfast.control.effects import Effect, Emit, ReportStuck, Send
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import HalfDone
from holdfast.schedule.schedule import loads

# Said all the time, or no news beside what follows from it.
_HIDDEN = (
    messages.Heartbeat,
    messages.StepReport,
    messages.StateHashes,
    messages.Resumed,
    messages.Ready,
    messages.WorkerStarted,
    messages.WorkerRuns,
    events.WorkerStep,
)
# fmt: off
_SHOWN = {
    "action", "cause", "checkpoint", "compute", "crew", "end_step", "factor", "fault",
    "first_step", "from_stage", "from_step", "how", "kept", "limit", "links", "lost", "lost_stage",
    "members", "newest", "next_writer", "number", "operation", "progress", "reached", "redone",
    "reduced", "replayed", "since", "skipped", "source", "stage", "stages", "state", "step",
    "subject", "subjects", "thrown_away", "to", "to_stage", "to_step", "version", "workers",
    "writers",
}
# fmt: on
_HIDDEN_IF_0 = {"thrown_away", "redone", "number"}
_WITH_REASON = (
    events.JoinFailed,
    events.WentBack,
    events.CheckpointFailed,
    events.RunFailed,
    messages.ReplayFailed,
    messages.PartFailed,
)


class Line(NamedTuple):
    sign: str  # "->", "<-", "event" or nothing
    who: str
    text: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        first = " ".join(part for part in (self.sign, self.who, self.text) if part)
        return "\n".join([first, *(f"   {detail}" for detail in self.details)])


def lines_of(happened: Iterable[Effect | messages.Message | str]) -> list[str]:
    """One line for what many are told, or say, at once."""
    lines = [line for one in happened for line in _line(one)]
    joined = []
    for _, same in groupby(lines, key=lambda line: line._replace(who="")):
        group = list(same)
        who = " ".join(dict.fromkeys(line.who for line in group))
        joined += str(group[0]._replace(who=who)).splitlines()
    return joined


def _line(one: Effect | messages.Message | str) -> Iterator[Line]:
    if isinstance(one, _HIDDEN) or isinstance(getattr(one, "event", None), _HIDDEN):
        return
    match one:
        case str():
            yield Line("", "", one)
        case Send():
            yield Line("->", str(one.to), _text(one.message), tuple(_lanes(one.message)))
        case Emit(event=events.StepFinished()):
            name = type(one.event).__name__
            yield Line(f"event {name}", str(one.event.step), _fields(one.event, hidden="step"))
        case Emit() | ReportStuck():
            name, who = type(one.event).__name__, getattr(one.event, "worker", "")
            yield Line(f"event {name}", who, _fields(one.event))
        case _ if isinstance(one, Effect):
            yield Line(type(one).__name__, str(getattr(one, "worker", "")), _fields(one))
        case _:
            yield Line("<-", str(getattr(one, "worker", "")), _text(one))


def _text(message: messages.Message) -> str:
    return f"{type(message).__name__} {_fields(message)}".strip()


def _fields(one: Any, hidden: str = "") -> str:
    shown = []
    for name in (field.name for field in fields(one)):
        value = getattr(one, name)
        if name == "epoch":
            shown.insert(0, f"e{value}")
        elif name in _SHOWN and name != hidden and not _is_empty(name, value):
            shown.append(f"{name}={_short(value)}")
        elif name == "reason" and isinstance(one, _WITH_REASON) and value:
            shown.append(f"reason={_short(value)}")
    return " ".join(shown)


def _is_empty(name: str, value: Any) -> bool:
    if value == 0 and not isinstance(value, bool):
        return name in _HIDDEN_IF_0
    return value is None or value is False or value in ("", (), [], {})


def _short(value: Any) -> str:
    match value:
        case str():
            return f'"{value}"' if " " in value else value
        case float():
            return f"{value:.2g}"
        case Mapping():
            return ",".join(f"{key}:{_short(each)}" for key, each in value.items())
        case tuple() if hasattr(value, "_fields"):
            return "/".join(_short(each) or "-" for each in value)
        case list() | tuple():
            return ",".join(map(_short, value))
    return str(value)


def _lanes(message: messages.Message) -> Iterator[str]:
    """What is left to do of half-done steps."""
    halves = [
        half
        for field in fields(message)
        if isinstance(rows := getattr(message, field.name), list)
        for half in rows
        if isinstance(half, HalfDone)
    ]
    for half in halves:
        yield f"step {half.step} is to be ended:"
        for worker, lane in loads(half.schedule).lanes.items():
            yield f"  {worker}: {' '.join(map(str, lane))}".rstrip()
        for stage, worker in half.copies.items():
            yield f"  {worker} has the reduced gradient of stage {stage}"
