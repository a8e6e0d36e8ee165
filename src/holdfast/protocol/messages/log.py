"""The log of boundary tensors, and the replay of a stage from it."""

from dataclasses import dataclass

from holdfast.protocol.fields import (
    Host,
    Number,
    Rebuilt,
    RunId,
    Seconds,
    StageNumber,
    StateOrNone,
    Step,
    StepOrBefore,
    WorkerName,
)
from holdfast.protocol.records import Address, LogOrder, StepLosses


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVolume:
    """worker -> coordinator, after its first logged step: what a boundary takes a step."""

    worker: WorkerName
    step: Step
    activation_bytes: Number  # of its own micro-batches, to the next stage
    gradient_bytes: Number  # to the stage before
    tied_bytes: Number  # of parameters that another stage has too


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBoundaries:
    """coordinator -> worker: which boundaries are logged from now on. Takes effect at once."""

    boundaries: list[StageNumber]
    limit_bytes: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """worker -> coordinator: its log has stopped, or begins again after a checkpoint."""

    worker: WorkerName
    step: Step
    logging: bool
    reason: str  # one line
    num_bytes: Number  # written so far, in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """coordinator -> each of the crew: run some stages' steps again, from a checkpoint and the log.

    The worker's own stage and all that it holds stay as they are.
    """

    epoch: Number  # be in this one meanwhile
    stages: list[StageNumber]  # neighbours: run as if they were one stage
    lost: list[StageNumber]  # those of them whose state is to be written
    cut: list[Number]
    checkpoint: StateOrNone  # to start from; empty: the beginning
    first_step: Step
    version: Step  # stop before this step
    crew: list[WorkerName]  # micro-batches go to them in turn; the first one writes
    addresses: dict[WorkerName, Address]  # of the crew
    into: Rebuilt  # name for the state
    log: LogOrder  # its limit is nobody's
    keepers: dict[Host, list[Address]]  # of each machine that has logs: workers that serve them
    beat_s: Seconds
    wait_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TidyLogs:
    """coordinator -> one worker of each machine: logs there that nobody needs are to go, aside.

    Those of another history, and of workers that are not there any more what was before ``step``.
    """

    run: RunId
    step: Step
    gone: list[WorkerName]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLogs:
    """coordinator -> worker, aside: from now on copy the logs of this machine, and of no other."""

    keepers: dict[Host, list[Address]]  # those who serve them, by machine; empty: copy nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """worker -> coordinator: its share is done, and what it was to write is on disk."""

    worker: WorkerName
    epoch: Number
    num_operations: Number  # F, B and W that it has run
    num_bytes: Number  # read from logs
    took_s: Seconds
    losses: list[StepLosses]  # of the last steps, if known


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFailed:
    """worker -> coordinator: the log does not reach so far, or the job's own code raised."""

    worker: WorkerName
    epoch: Number
    reached: StepOrBefore  # steps before this one could be replayed
    reason: str  # one line


LogMessage = (
    LogVolume | LogBoundaries | LogState | Replay | TidyLogs | CopyLogs | Replayed | ReplayFailed
)
