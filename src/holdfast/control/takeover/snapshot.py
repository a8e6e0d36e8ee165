"""What of a run only its coordinator knows: one record, written whenever it has changed.

All else is asked for: workers tell what they hold, and tell once more what they had to say of
their steps and checkpoints. Data only; what is read is checked field by field.
"""

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_type_hints

from holdfast.errors import ProtocolError
from holdfast.observability.jsonfile import spelled_out
from holdfast.protocol.build import Misfit, builder
from holdfast.protocol.fields import (
    Hash,
    Host,
    Label,
    MachineName,
    Number,
    NumberOrNone,
    PartName,
    Pid,
    Port,
    Seconds,
    StageNumber,
    Step,
    WorkerName,
)
from holdfast.protocol.records import SaveRule
from holdfast.validation import Validation

SNAPSHOT = "snapshot"  # the kind of record
VERSION = 4

Phase = Literal["TRAINING", "RETURNING", "FINISHED", "FAILED"]
WorkerPhaseName = Literal[
    "ABSENT", "STARTING", "BUILDING", "READY", "COPYING", "MEMBER", "LOST", "FINISHED"
]


class CostRow(NamedTuple):
    """As ``schedule.Costs``."""

    forward_s: list[Seconds]
    input_s: list[Seconds]
    weight_s: list[Seconds]
    fused_s: list[Seconds]
    step_s: list[Seconds]
    link_s: Seconds


class CutRow(NamedTuple):
    layers: list[Number]
    costs: CostRow
    guessed: bool
    reason: str
    in_flight: Number


class SteadyRow(NamedTuple):
    schedule: str
    period_s: Seconds
    reason: str


class HelloKind(NamedTuple):
    """What most workers have said alike."""

    fingerprint: dict[Label, Label]
    traits: dict[Label, Label]
    num_layers: Number
    layer_hashes: list[Hash]
    cut: list[Number]


class HelloRow(NamedTuple):
    kind: Number  # its place among the kinds
    pid: Pid
    host: Host
    port: Port
    device_index: Number
    device_bytes: Number


class PartRow(NamedTuple):
    worker: WorkerName
    stage: StageNumber


class LogRow(NamedTuple):
    boundaries: list[StageNumber]
    limits: dict[StageNumber, Number]
    num_histories: Number
    began: Step


class TimesRow(NamedTuple):
    """Of no account for what comes next, but for limits and plans."""

    steps_s: list[Seconds]  # the newest
    stop_s: Seconds
    copy_s: Seconds


class NonfiniteRow(NamedTuple):
    first: int
    last: int
    where: str
    num_good: Number
    num_trained: Number
    num_rescaled: Number
    num_empty: Number
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    run_id: str
    address: str  # HOST:PORT that the workers were told
    resumed: str  # checkpoint that the run began from; empty: none
    phase: Phase
    epoch: Number
    next_step: Step  # about; it is not written for its own sake
    cut: CutRow
    first: SteadyRow
    steady: SteadyRow
    steady_from: Step
    planned_for: dict[WorkerName, StageNumber]
    stages: dict[WorkerName, StageNumber]  # of the members
    rolling_back: dict[WorkerName, StageNumber]
    workers: dict[WorkerName, WorkerPhaseName]
    hello_kinds: list[HelloKind]
    hellos: dict[WorkerName, HelloRow]
    parts: dict[PartName, PartRow]
    num_given: Number
    fired: list[str]  # faults
    joins_used: list[Number]  # join faults, by their place in the list
    seats: dict[WorkerName, MachineName]  # who was started on which machine
    by_hand: list[WorkerName]  # who was started by nobody of the run, and is not to be again
    left_out: list[WorkerName]  # who is to stay away
    draining: list[MachineName]  # that are to leave
    rules: list[SaveRule]
    compared_from: Step
    log: LogRow
    times: TimesRow
    nonfinite: NonfiniteRow
    validations: list[Validation]  # that are over
    validated: NumberOrNone  # newest version that nobody stands still for any more; -1: none


_BUILDERS = {
    name: builder(hint) for name, hint in get_type_hints(RunSnapshot, include_extras=True).items()
}


def to_record(snapshot: RunSnapshot) -> dict[str, Any]:
    values = {one.name: copy(getattr(snapshot, one.name)) for one in fields(snapshot)}
    values["validations"] = spelled_out(snapshot.validations)  # one may have found NaN
    return {"kind": SNAPSHOT, "version": VERSION, **values}


def _as_found(value: Any) -> Any:
    """What was spelled out."""
    match value:
        case "nan" | "inf" | "-inf":
            return float(value)
        case dict():
            return {name: _as_found(each) for name, each in value.items()}
        case list():
            return [_as_found(each) for each in value]
    return value


def from_record(record: Mapping[str, Any]) -> RunSnapshot:
    """ProtocolError: it was written by another version, or by nobody we know."""
    values: dict[str, Any] = json.loads(json.dumps(dict(record)))  # rows are lists, keys are text
    kind, version = values.pop("kind", None), values.pop("version", None)
    if (kind, version) != (SNAPSHOT, VERSION):
        raise ProtocolError(
            f"a record of kind {kind!r}, version {version!r}; expected {SNAPSHOT!r}, {VERSION}"
        )
    if values.keys() != _BUILDERS.keys():
        differ = sorted(values.keys() ^ _BUILDERS.keys())
        raise ProtocolError(f"a {SNAPSHOT} lacks these fields, or has them in vain: {differ}")
    values["validations"] = _as_found(values["validations"])
    built: dict[str, Any] = {}
    try:
        for name, build in _BUILDERS.items():
            built[name] = build(values[name])
    except Misfit as why:
        raise ProtocolError(f"a {SNAPSHOT}: {len(built)} fields are good, then {why}") from why
    return RunSnapshot(**built)
