"""What happened in a run, as typed events in one JSON-lines file; every view is a reader of it.

``at_s`` and all other times are ``time.monotonic()`` of one machine. Emitting never raises.
"""

import json
import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, get_args, get_type_hints

from holdfast.errors import ConfigError
from holdfast.observability.event_files import EVENTS_FILE as EVENTS_FILE
from holdfast.observability.event_files import Rotation, all_files
from holdfast.observability.jsonfile import encode

_BEGINNING = '{"event": '
_MOST = 2**63 - 1

OpTime: TypeAlias = tuple[str, float, float]
"""Operation in text form (``2F5``: stage 2, forward, micro-batch 5), start, end in seconds."""

TransferTime: TypeAlias = tuple[str, str, int, int, float]
"""Source, "pipeline", "reduction" or "probe", count, bytes, median seconds under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    at_s: float
    pipelines: int
    stages: int
    microbatches: int  # of a step, over all pipelines
    steps: int  # the run ends after this many, those before a resume included
    schedule: str
    reason: str  # the planner's own words, shown as they are
    cut: tuple[int, ...]  # first layer of each stage after the first
    first_step: int = 0  # above 0: resumed from a checkpoint
    address: str = ""  # HOST:PORT where workers may join; empty: they may not
    join_with: str = ""  # words of the command by which they join, for the run's secret
    limits: str = ""  # after how long a silent worker is lost, and the like, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    at_s: float
    worker: str
    pid: int
    versions: Mapping[str, str]  # "python", "torch", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """Every stage has committed the step."""

    at_s: float
    step: int
    loss: float
    gradient_norm: float | None
    tokens: int
    took_s: float
    clipped: bool = False
    skipped: bool = False  # a gradient was not finite: parameters are as before the step


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStep:
    """All operations of one worker in one step; one event, because there are many."""

    at_s: float
    worker: str
    step: int
    ops: tuple[OpTime, ...]
    cpu_s: tuple[float, ...] = ()  # of each operation: time on the processor
    sizes: tuple[int, ...] = ()  # of each operation: elements of its input
    transfers: tuple[TransferTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTakenBack:
    """A worker had applied the step already and went back to the parameters before it."""

    at_s: float
    worker: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    at_s: float
    step: int
    path: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """A checkpoint could not be written; training goes on."""

    at_s: float
    step: int  # as in CheckpointSaved
    worker: str  # whose part it was; empty: the parts were there, but not the whole
    reason: str
    next_writer: str  # who tries it a little later; empty: nobody, before the next one is due
    newest: int  # step of the newest whole one; -1: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFired:
    """An injected fault acted."""

    at_s: float
    worker: str  # empty for a join
    fault: str  # as it was given
    step: int
    point: str  # empty for a join


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    at_s: float
    worker: str
    step: int
    cause: str  # "signal SIGKILL", "closed its connection", "silent for 2.1 s", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A change of who does what is complete: every member runs operations again."""

    at_s: float
    epoch: int
    step: int
    cause: str  # "death", "join", "move", "better plan", "interrupt", or some with " and "
    workers: tuple[str, ...]  # who was lost, has joined or moved
    fault_s: float  # when it happened; the first notice, if nobody knows
    notice_s: float
    plan_s: float  # when the plan was ready
    resumed_s: float  # when the last member began its first operation
    redone: int  # operations done again
    operations: int  # all that was left of the running steps
    members: int
    period_s: float  # that the plan predicts for a step; 0: unknown
    reason: str  # the planner's own words, shown as they are
    thrown_away: int = 0  # finished steps that will be trained again
    num_lost: int = 0  # of ``workers``


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """It has the state of its stage and takes part from now on."""

    at_s: float
    worker: str
    stage: int
    step: int
    copied_bytes: int
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMoved:
    """It gave up its stage to help at another one."""

    at_s: float
    worker: str
    from_stage: int
    to_stage: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionDropped:
    """Somebody at the launcher's port had no business there, or said what it may not say."""

    at_s: float
    who: str  # as it has proven; "strangers": many who have proven nothing
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFailed:
    at_s: float
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinUnfinished:
    """The run ended before somebody who was on the way took part."""

    at_s: float
    worker: str
    fault: str  # the join that was ordered; empty: none was
    state: str  # "starting", "loading the job" or "copying the state"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReplaced:
    """A process was started in the place of a lost one. It joins while the others go on."""

    at_s: float
    worker: str
    number: int  # of the times it was tried lately
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WentBack:
    """A loss could not be made up for. All went back; the steps from ``to_step`` on run again."""

    at_s: float
    lost_stage: int
    to_step: int  # optimizer steps that the state gone back to has had, as in CheckpointSaved
    checkpoint: str  # its directory; empty: a copy in memory, or the initial parameters
    reason: str
    thrown_away: int = 0  # finished steps that will be trained again


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChosen:
    """How often checkpoints are taken from now on."""

    at_s: float
    first: int  # version that is saved first
    every: int  # steps
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBegan:
    """Stages that nobody holds are computed again, from a checkpoint and the log."""

    at_s: float
    stages: tuple[int, ...]  # that were lost
    replayed: tuple[int, ...]  # those and whatever lies between them and the next logged borders
    from_step: int
    to_step: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRebuilt:
    """The replay is done; somebody will load the state."""

    at_s: float
    stages: tuple[int, ...]
    replayed: tuple[int, ...]
    version: int  # optimizer steps that the state has had
    workers: tuple[str, ...]
    operations: int  # F, B and W that were run for it
    read_bytes: int  # from logs
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChanged:
    """Which borders are logged, or that a worker's log has stopped or begun again."""

    at_s: float
    worker: str  # empty: of all workers
    step: int
    logging: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """Who or what is slow. Told again when the factor has changed."""

    at_s: float
    step: int  # in which it is told
    cause: str  # detection.diagnosis.Cause
    subject: str  # "1.0", "0.0-0.1"; a machine's name; "stage 3", "data"
    factor: float  # operations take so many times as long; of a link: its transfers
    excess_s: float  # of a link: seconds more a transfer; else 0
    since: int  # step
    confidence: float  # 0 to 1
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlownessOver:
    at_s: float
    step: int
    cause: str
    subject: str
    since: int  # the step from which on it was as before


@dataclass(frozen=True, slots=True, kw_only=True)
class MitigationChosen:
    """What is done about slowness, and why; also that nothing is done."""

    at_s: float
    step: int
    action: str  # mitigation.options.Action
    subjects: tuple[str, ...]
    reason: str
    period_s: float  # of a step as it is now, predicted
    new_period_s: float  # after it, predicted
    cost_s: float  # of training time


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSwitched:
    """The same members go over to other lanes, without a stop."""

    at_s: float
    step: int  # the first that runs them
    cause: str
    took_s: float  # until all had the new lanes; training went on
    period_s: float  # of a step, predicted; 0: unknown
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something about the job, or the machine, that a user should know; each line once a run."""

    at_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStuck:
    """It is alive, but has been in one operation for far longer than usual."""

    at_s: float
    worker: str
    step: int
    operation: str  # F, B, W, BW, load (data), optimizer; mute: not known, no heartbeat comes
    microbatch: int  # -1: none
    seconds: float
    usual_s: float  # the longest usual one; 0: not known yet
    where: str = ""  # the innermost call of the user's own code
    stack: str = ""  # of its own thread, innermost call first
    path: str = ""  # of the file with the stacks of all its threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """By Ctrl-C, SIGTERM or SIGHUP: the run ends after the running step, with a checkpoint."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    at_s: float
    parameters_sha256: str | None
    peak_memory_bytes: Mapping[str, int]  # of each worker
    kept_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of each worker: most that its kept boundary tensors ever took."""
    old_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of each worker: most that it held so that a step could be taken back, or run again."""
    log_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of each worker: what it has written to its log."""


Event: TypeAlias = (
    RunStarted
    | WorkerReady
    | StepFinished
    | WorkerStep
    | StepTakenBack
    | ConnectionDropped
    | CheckpointSaved
    | CheckpointFailed
    | FaultFired
    | WorkerLost
    | Recovered
    | WorkerJoined
    | WorkerMoved
    | JoinFailed
    | JoinUnfinished
    | WorkerReplaced
    | WentBack
    | IntervalChosen
    | ReplayBegan
    | StageRebuilt
    | LogChanged
    | Diagnosed
    | SlownessOver
    | MitigationChosen
    | PlanSwitched
    | Warned
    | WorkerStuck
    | Interrupted
    | RunFailed
    | RunFinished
)
_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Event)}
_FIELDS = {cls: tuple(each.name for each in fields(cls)) for cls in _CLASSES.values()}


class JsonLines:
    """Writes each event as one line, at once and whole, so that a crash loses nothing before it."""

    def __init__(self, file: BinaryIO, rotation: Rotation | None = None) -> None:
        self._file = file  # unbuffered: what failed to be written is not tried again
        self._rotation = rotation
        self._lock = threading.Lock()
        self.num_dropped = 0  # reported at the end of the run

    @classmethod
    def open(cls, path: Path) -> "JsonLines":
        return cls(path.open("ab", buffering=0))

    def emit(self, event: Event) -> None:
        with self._lock:
            try:
                line = encode_event(event).encode() + b"\n"
                whole = self._file.write(line) == len(line)
            # The disk is full, the file is closed, or a value has no form in JSON.
            except (OSError, ValueError, TypeError):
                whole = False
            self.num_dropped += not whole
            self._rotate()

    def _rotate(self) -> None:
        rotation = self._rotation
        if rotation is None or rotation.most_bytes is None:
            return
        try:
            if self._file.tell() > rotation.most_bytes:
                before, self._file = self._file, rotation.next()
                before.close()
        except (OSError, ValueError):
            self._rotation = None  # one large file is better than none

    def close(self) -> None:
        self._file.close()


def encode_event(event: Event) -> str:
    values = {name: getattr(event, name) for name in _FIELDS[type(event)]}
    return encode({"event": type(event).__name__, **values})


def decode_event(line: str) -> Event:
    """Raises ValueError for anything but a line that :func:`encode_event` wrote."""
    try:
        values = json.loads(line)
        kind = values.pop("event")
        readers = _READERS[kind]
        read = {name: readers[name](value) for name, value in values.items()}
        return _CLASSES[kind](**read)  # type: ignore[no-any-return]
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as why:
        raise ValueError(f"not an event: {why!r}") from why


def read_events(path: Path) -> list[Event]:
    """The events of a file and of older ones beside it, of a run that has ended or still writes.

    A torn line (the writer was killed, or the disk was full) is left out.
    """
    files = all_files(path)
    events = [event for file in files for event in _events_of(file)]
    return events if all_files(path) == files else read_events(path)  # one was begun meanwhile


def _events_of(path: Path) -> list[Event]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigError(f"cannot read events from {path}: {why}") from why
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(decode_event(line))
        except json.JSONDecodeError as why:
            if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
                raise ConfigError(_foreign(path, number, why)) from why
        except ValueError as why:
            raise ConfigError(_foreign(path, number, why)) from why
    return events


def _foreign(path: Path, number: int, why: ValueError) -> str:
    return f"{path}:{number}: not written by this version of Holdfast: {why}"


_Reader: TypeAlias = Callable[[Any], Any]


def _only(kind: type[Any]) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:  # a bool is no number
            raise TypeError(f"{reprlib.repr(value)}: expected {kind.__name__}")
        return value

    return read


_text, _list, _dict = _only(str), _only(list), _only(dict)


def _whole(value: Any) -> int:
    if type(value) is not int or not -_MOST <= value <= _MOST:
        raise TypeError(f"{reprlib.repr(value)}: expected a whole number of at most 64 bits")
    return value


def _maybe(read: _Reader) -> _Reader:
    return lambda value: None if value is None else read(value)


def _all(read: _Reader) -> _Reader:
    return lambda values: tuple(map(read, _list(values)))


def _by_name(read: _Reader) -> _Reader:
    return lambda values: {name: read(value) for name, value in _dict(values).items()}


def _op_times(ops: Iterable[tuple[str, float, float]]) -> tuple[OpTime, ...]:
    return tuple((_text(name), float(start_s), float(end_s)) for name, start_s, end_s in ops)


def _transfer_times(rows: Iterable[TransferTime]) -> tuple[TransferTime, ...]:
    return tuple(
        (_text(who), _text(kind), _whole(count), _whole(size), float(moved_s))
        for who, kind, count, size, moved_s in rows
    )


# What JSON changes on the way: tuples become lists, and NaN and infinity are written as text.
_READ: dict[Any, _Reader] = {
    bool: _only(bool),
    int: _whole,
    float: float,
    float | None: _maybe(float),
    str: _text,
    str | None: _maybe(_text),
    tuple[int, ...]: _all(_whole),
    tuple[str, ...]: _all(_text),
    tuple[float, ...]: _all(float),
    tuple[OpTime, ...]: _op_times,
    tuple[TransferTime, ...]: _transfer_times,
    Mapping[str, str]: _by_name(_text),
    Mapping[str, int]: _by_name(_whole),
}
_READERS = {
    name: {field: _READ[hint] for field, hint in get_type_hints(cls).items()}
    for name, cls in _CLASSES.items()
}
