"""Who came, who was lost, and how the others went on."""

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.observability.events.timed import Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFired(Timed):
    """An injected fault acted."""

    worker: str  # empty for a join
    fault: str  # as it was given
    step: int
    point: str  # empty for a join


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Timed):
    worker: str
    step: int
    cause: str  # "signal SIGKILL", "closed its connection", "no heartbeat for 2.1 s", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCame(Timed):
    """Its agent has connected: workers can be started there."""

    machine: str
    slots: int
    num_here: int  # machines, with it
    num_wanted: int
    memory_bytes: int = 0  # 0: not known
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLost(Timed):
    """With all its workers, at once."""

    machine: str
    cause: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDrains(Timed):
    """It is to leave: its workers go as soon as nothing is lost with them."""

    machine: str
    reason: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDrained(Timed):
    """All its workers have gone, and nothing was lost."""

    machine: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom(Timed):
    """A worker is needed and no machine has a free slot: it is started when one comes."""

    worker: str
    machines: str  # that are here


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStuck(Timed):
    """It is alive, but has been in one operation for far longer than usual."""

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
class Recovered(Timed):
    """A change of who does what is complete: every member runs operations again."""

    epoch: int
    step: int
    cause: str  # "death", "join", "move", "interrupt", "coordinator", ... or some with " and "
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
class WorkerJoined(Timed):
    """It has the state of its stage and takes part from now on."""

    worker: str
    stage: int
    step: int
    copied_bytes: int
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMoved(Timed):
    """It gave up its stage to help at another one."""

    worker: str
    from_stage: int
    to_stage: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReplaced(Timed):
    """A process was started in the place of a lost one. It joins while the others go on."""

    worker: str
    number: int  # of the times it was tried lately
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFailed(Timed):
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinUnfinished(Timed):
    """The run ended before somebody who was on the way took part."""

    worker: str
    fault: str  # the join that was ordered; empty: none was
    state: str  # "starting", "loading the job" or "copying the state"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionDropped(Timed):
    """Somebody at the launcher's port had no business there, or said what it may not say."""

    who: str  # as it has proven; "strangers": many who have proven nothing
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver(Timed):
    """The coordinator was lost; this one goes on for it, in the step where the workers are."""

    step: int  # the first that is not finished
    workers: tuple[str, ...]  # who still holds its state
    took_s: float  # until they were back
    unix_s: float = 0.0  # as in RunStarted
    schema: int = 0


WorkerEvent: TypeAlias = (
    FaultFired
    | WorkerLost
    | MachineCame
    | MachineLost
    | MachineDrains
    | MachineDrained
    | NoRoom
    | WorkerStuck
    | Recovered
    | WorkerJoined
    | WorkerMoved
    | WorkerReplaced
    | JoinFailed
    | JoinUnfinished
    | ConnectionDropped
    | TookOver
)
