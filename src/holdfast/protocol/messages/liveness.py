"""Who is alive, what went wrong, and the end."""

from dataclasses import dataclass

from holdfast.protocol.fields import (
    AttemptNumber,
    ExitCode,
    Label,
    Layer,
    MicrobatchOrNone,
    Number,
    NumberOrNone,
    Seconds,
    Sha256,
    Step,
    WorkerName,
    WorkerOrNone,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """worker -> coordinator, from a thread of its own: the process is not stopped."""

    worker: WorkerName
    epoch: Number
    step: Step  # it runs operations of this one
    attempt: AttemptNumber  # of this step
    done: Number  # how many of them it has finished, of its lane of this step
    operation: Label  # that its own thread is busy with: F, B, W, BW, load, optimizer; empty: none
    number: NumberOrNone  # of this operation: another one has another
    microbatch: MicrobatchOrNone  # -1: none
    busy_s: Seconds  # how long it has been in it, by its own clock
    longest: dict[Label, Seconds]  # of each kind that it has ended since the last one
    saving: bool = False  # it writes a part of a checkpoint, or tries to once more
    renewed: Number = 0  # the newest renewal of its lease that has come


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """coordinator -> worker, several times a lease: go on committing. The same for nearly all."""

    number: Number  # one more than the last
    answers: Number  # the renewal that the worker's last heartbeat told of
    for_s: Seconds  # from when it first told so, by its own clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAsk:
    """coordinator -> worker on another machine: what does your clock say? Answered aside."""

    asked_s: Seconds  # time.monotonic() of the coordinator's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTold:
    """worker -> coordinator: the answer, at once."""

    worker: WorkerName
    asked_s: Seconds  # as it was asked
    heard_s: Seconds  # time.monotonic() of the worker's machine
    sent_s: Seconds  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGone:
    """worker -> coordinator: the connection to another worker broke, or a wait ran out."""

    worker: WorkerName
    epoch: Number
    lost: WorkerOrNone  # empty: somebody is stuck, but it is not known who


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """worker -> coordinator, just before an injected fault acts."""

    worker: WorkerName
    fault_kind: Label  # one of faults.FaultKind
    fault: Label  # as it was given
    step: Step
    attempt: AttemptNumber
    point: Label
    done: Number  # operations finished of its lane of this step
    at_s: Seconds  # time.monotonic() of the worker's machine; translated where it is heard


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """worker -> coordinator: the job's own code raised. It lives, and holds its state."""

    worker: WorkerName
    epoch: Number
    step: Step  # it cannot be run
    exit_code: ExitCode
    reason: str  # one line
    details: str  # traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWarning:
    """worker -> coordinator: something about the job that its user should know."""

    worker: WorkerName
    reason: str  # one line, the same from whoever says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """worker -> coordinator, before it ends by itself."""

    worker: WorkerName
    lost: WorkerOrNone  # the worker whose end made this one fail; empty: the fault is its own
    exit_code: ExitCode
    reason: str  # one line
    details: str  # traceback; empty for the user's own mistakes
    scarce: bool = False  # its machine is out of something: another process may find it


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """worker -> coordinator: all steps done."""

    worker: WorkerName
    digests: dict[Layer, Sha256]  # layer -> sha256 of its parameters
    peak_memory_bytes: Number
    kept_bytes: Number  # most that kept boundary tensors ever took
    log_bytes: Number  # written to its log, in all
    old_bytes: Number  # most that was held so that a step could be taken back, or run again
    peak_device_bytes: Number = 0  # 0: the device is the processor


@dataclass(frozen=True, slots=True, kw_only=True)
class StillHere:
    """coordinator -> worker, now and then: there is no need to look for another one."""

    next_step: Step  # all steps before it are on record: nobody will ask for them again
    heard: Step  # reports of all steps before it have come


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """coordinator -> worker or agent: end now, in good order."""

    reason: str
    is_over: bool = False  # the run: nothing that a worker has on its own machine is of use


LivenessMessage = (
    Heartbeat
    | Renewal
    | ClockAsk
    | ClockTold
    | PeerGone
    | FaultReport
    | JobFailed
    | WorkerWarning
    | Failed
    | Finished
    | StillHere
    | Stop
)
