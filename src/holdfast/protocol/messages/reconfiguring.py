"""Who does what from now on: stop, tell what there is, go on by another plan."""

from dataclasses import dataclass, field

from holdfast.protocol.fields import (
    AttemptNumber,
    Microbatch,
    Number,
    ProgressNumber,
    Seconds,
    StageNumber,
    Step,
    StepOrBefore,
    WorkerName,
)
from holdfast.protocol.records import (
    Address,
    HalfDone,
    KeptRow,
    SaveRule,
    VerdictRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """coordinator -> member: stop at the next operation boundary and tell what you have."""

    epoch: Number  # the one to come


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """worker -> coordinator, the answer to Halt: all that planning the rest needs to know."""

    worker: WorkerName
    epoch: Number  # of the Halt
    reduced: StepOrBefore  # steps whose gradient is reduced here; it is in step ``reduced`` now
    oldest: StepOrBefore  # it has the weights to run operations of this step and later ones again
    attempt: AttemptNumber  # of step ``reduced``
    progress: dict[Microbatch, ProgressNumber]  # of step ``reduced``
    kept: list[KeptRow]
    verdicts: dict[Step, VerdictRow]  # of those that it has heard
    kept_bytes: Number  # most that kept boundary tensors ever took
    done: Number  # operations finished of its lane of step ``reduced``
    saving: Step  # newest version whose part it has written or is writing; 0: none
    commits: list[Step]  # versions of its state that it has a copy of in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """coordinator -> member: what to run from now on. The first one starts the training."""

    epoch: Number
    stages: dict[WorkerName, StageNumber]  # every member and the stage it holds
    addresses: dict[WorkerName, Address]
    running: list[HalfDone]  # the oldest first
    schedule: str  # of every step from ``first_step`` on
    first_step: Step
    end_step: Step  # stop and save when this many steps are done
    verdicts: dict[Step, VerdictRow]  # as in Inventory, of all members together
    saved: dict[StageNumber, Step]
    """Stage -> newest version whose part of a checkpoint is on disk or being written."""
    saves: list[SaveRule]  # as in SaveAt
    validated: StepOrBefore = -1  # validations up to this version are over, or not wanted
    scored: list[Microbatch] = field(default_factory=list)  # of the next one: it is known already


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """worker -> coordinator: the first operation after a Proceed has begun."""

    worker: WorkerName
    epoch: Number
    at_s: Seconds  # time.monotonic() of the worker's machine; translated where it is heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """coordinator -> member: go back to a copy in memory. What was done since is forgotten."""

    epoch: Number  # of the Proceed that follows
    version: Step


OFFER_AHEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """coordinator -> member: other lanes for the same members, without a stop. Takes effect aside.

    Whoever is in step k begins no step k + OFFER_AHEAD before it has heard from which step on
    they hold.
    """

    epoch: Number
    number: Number
    schedule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """worker -> coordinator, at once: the lanes are here."""

    worker: WorkerName
    epoch: Number
    number: Number
    step: Step  # k: the newest that it has begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """coordinator -> member, when all have answered: what was offered holds from a step on."""

    epoch: Number
    number: Number
    first_step: Step


ReconfigurationMessage = Halt | Inventory | Proceed | Resumed | Restore | Offer | Offered | Adopt
