"""What the coordinator wants done: messages to send, and everything else. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.cluster import WorkerId
from holdfast.errors import HoldfastError
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import Address
from holdfast.storage.manifest import Part
from holdfast.validation import Validation


@dataclass(frozen=True, slots=True)
class Send:
    to: WorkerId
    message: messages.Message


@dataclass(frozen=True, slots=True)
class _WorkerEffect:
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a process (or thread) for a worker that is missing."""

    worker: WorkerId
    machine: str = ""  # empty: there are no agents, the workers are threads


@dataclass(frozen=True, slots=True)
class ReleaseMachine:
    """Nobody is left there: its agent may end."""

    machine: str


@dataclass(frozen=True, slots=True)
class FenceMachine:
    """Close the connection of a lost machine's agent: should it live, it ends its workers."""

    machine: str


@dataclass(frozen=True, slots=True)
class CheckLinks:
    """Have the agent of a machine try to reach the members on others."""

    machine: str
    others: Mapping[str, Address]  # by the names of their machines


class Fence(_WorkerEffect):
    """Close the connection of a lost worker: whatever it still does reaches nobody."""


class AskStack(_WorkerEffect):
    """Have a worker write down where its threads are, in a file of the run directory."""


class LookAtWorker(_WorkerEffect):
    """Have the agent of a silent worker look whether its process runs; it tells only if so."""


@dataclass(frozen=True, slots=True)
class ReportStuck:
    """Emit the event, with the stack that the worker has written down."""

    event: events.WorkerStuck
    pid: int


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Make the run directory: from here on there is something to keep."""

    traits: Mapping[str, str]  # what checkpoints are to say of the job and of the machine
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SealCheckpoint:
    """All parts of a checkpoint are on disk: make it one that can be resumed."""

    step: int
    parts: tuple[Part, ...]
    took_s: float
    keeps_more: bool = False  # somebody may still read the oldest of those that are kept
    validations: tuple[Validation, ...] = ()  # so far
    best: int | None = None  # step of a checkpoint that is kept besides the newest


@dataclass(frozen=True, slots=True)
class PointToBest:
    """Write down which checkpoint is that of the best validation. It is whole."""

    step: int
    judged_by: str
    value: float


class SealFailed(HoldfastError):
    """The parts stay where they are: it can be tried again."""

    def __init__(self, seal: SealCheckpoint, reason: str) -> None:
        super().__init__(reason)
        self.seal = seal


SealResult = SealCheckpoint | SealFailed  # it is whole, or not


@dataclass(frozen=True, slots=True)
class Discard:
    """A directory that nobody will read any more."""

    directory: str


@dataclass(frozen=True, slots=True)
class ClearLogs:
    """Whatever the workers have logged: it is of steps that will run again."""


@dataclass(frozen=True, slots=True)
class TrimLogs:
    """A checkpoint is whole: what these workers, who are gone, have logged before is not needed."""

    workers: tuple[WorkerId, ...]
    run: str  # as the workers know it
    step: int


@dataclass(frozen=True, slots=True)
class CheckLead:
    """Nothing that follows is done by one that another coordinator has taken over from."""


@dataclass(frozen=True, slots=True)
class TellAgents:
    """To all that are there, or to that of one machine."""

    message: messages.Message
    machine: str = ""


@dataclass(frozen=True, slots=True)
class WriteDown:
    """Before anything that follows is done: a successor could not find it out otherwise."""

    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Emit:
    event: events.Event


Effect = (
    Send
    | StartWorker
    | Fence
    | FenceMachine
    | ReleaseMachine
    | CheckLinks
    | AskStack
    | LookAtWorker
    | ReportStuck
    | OpenRun
    | SealCheckpoint
    | PointToBest
    | Discard
    | ClearLogs
    | TrimLogs
    | CheckLead
    | TellAgents
    | WriteDown
    | Emit
)
