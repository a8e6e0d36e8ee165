"""Every message between launcher, agent and workers, and nothing else. Add a message here first.

Tensors never travel here: they go from worker to worker over ``transport``.
"""

from dataclasses import dataclass

from holdfast.config import RunConfig
from holdfast.protocol.fields import (
    Attempt,
    ExitCode,
    ExitStatus,
    Hash,
    Host,
    Label,
    Layer,
    Microbatch,
    MicrobatchOrNone,
    Number,
    NumberOrNone,
    PartFile,
    PartName,
    Path,
    PathOrNone,
    Pid,
    PidOrNone,
    Port,
    Progress,
    Rebuilt,
    Seconds,
    Sha256,
    Sha256OrNone,
    Stage,
    StateOrNone,
    Step,
    StepOrBefore,
    Worker,
    WorkerOrNone,
)
from holdfast.protocol.records import (
    Address,
    HalfDone,
    Kept,
    LinkProbe,
    LogOrder,
    MicrobatchLoss,
    OperationTime,
    SaveRule,
    StepLosses,
    Transfers,
    Verdict,
)

SAMPLES = "len(Job.data)"  # the trait of a job that is about its data


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello:
    """agent -> coordinator, once: ready to start workers."""

    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """coordinator -> agent."""

    workers: list[Worker]
    job: Path  # path of the job file
    job_sha256: Sha256
    run_dir: Path  # all that is named later is below it
    resumed: PathOrNone  # checkpoint that the run went on from; empty: none
    config: RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """agent -> coordinator."""

    worker: Worker
    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNotStarted:
    """agent -> coordinator: it was tried for some seconds."""

    worker: Worker
    reason: str  # one line


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """agent -> coordinator, as soon as the process is gone."""

    worker: Worker
    pid: Pid
    how: str  # in words, for people: "exit code 1" or "signal SIGKILL"
    code: ExitStatus = 0  # below 0: the number of the signal that ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """joiner -> coordinator: may I take the place of a missing worker?

    Answered with JoinGranted or Stop; then the connection is closed. Whoever was granted a place
    comes back as a worker.
    """

    worker: WorkerOrNone  # the place it wants; empty: any
    pid: Pid
    fingerprint: dict[Label, Label]
    job_sha256: Sha256OrNone  # of its own job file; empty: it has none and takes the run's


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGranted:
    """coordinator -> whoever asked to join."""

    worker: Worker
    job: Path  # path of the job file
    job_sha256: Sha256
    run_dir: Path  # all that is named later is below it
    resumed: PathOrNone  # checkpoint that the run went on from; empty: none
    config: RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """worker -> coordinator, once the job is loaded and the data port is open."""

    worker: Worker
    pid: Pid
    fingerprint: dict[Label, Label]  # all that the bits of a result depend on, besides the job
    traits: dict[Label, Label]  # of the job, besides its file and layers: equal on all workers
    num_layers: Number
    layer_hashes: list[Hash]  # of each layer as the job has built it: equal on all workers
    cut: list[Number]  # the job's own wish; empty: none
    host: Host
    port: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureLayers:
    """coordinator -> one worker: time the layers, to cut them into equal stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """worker -> coordinator."""

    worker: Worker
    forward_s: list[Seconds]
    backward_s: list[Seconds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """coordinator -> worker: the stage to build. Again, when it is to hold another one."""

    stage: Stage
    cut: list[Number]
    checkpoint: StateOrNone  # to load from; empty: start anew
    first_step: Step  # optimizer steps that the state to start from has had
    beat_s: Seconds  # send a heartbeat this often
    wait_s: Seconds  # longest wait for a tensor from another worker
    faults: list[str]  # to be injected into this worker, as they were given
    part: PartName  # directory of its parts of checkpoints, in the checkpoint: nobody else's
    log: LogOrder | None  # None: nothing is logged


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVolume:
    """worker -> coordinator, after its first logged step: what a border takes a step."""

    worker: Worker
    step: Step
    activation_bytes: Number  # of its own micro-batches, to the next stage
    gradient_bytes: Number  # to the stage before
    tied_bytes: Number  # of parameters that another stage has too


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBorders:
    """coordinator -> worker: which borders are logged from now on. Takes effect at once."""

    borders: list[Stage]
    limit_bytes: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """worker -> coordinator: its log has stopped, or begins again after a checkpoint."""

    worker: Worker
    step: Step
    logging: bool
    reason: str  # one line
    num_bytes: Number  # written so far, in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """coordinator -> worker: a checkpoint is whole. No log of a step before it is of use."""

    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """coordinator -> each of the crew: run some stages' steps again, from a checkpoint and the log.

    The worker's own stage and all that it holds stay as they are.
    """

    epoch: Number  # be in this one meanwhile
    stages: list[Stage]  # neighbours: run as if they were one stage
    lost: list[Stage]  # those of them whose state is to be written
    cut: list[Number]
    checkpoint: StateOrNone  # to start from; empty: the beginning
    first_step: Step
    version: Step  # stop before this step
    crew: list[Worker]  # micro-batches go to them in turn; the first one writes
    addresses: dict[Worker, Address]  # of the crew
    into: Rebuilt  # name for the state
    log: LogOrder  # its limit is nobody's
    beat_s: Seconds
    wait_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """worker -> coordinator: its share is done, and what it was to write is on disk."""

    worker: Worker
    epoch: Number
    num_operations: Number  # F, B and W that it has run
    num_bytes: Number  # read from logs
    took_s: Seconds
    losses: list[StepLosses]  # of the last steps, if known


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFailed:
    """worker -> coordinator: the log does not reach so far, or the job's own code raised."""

    worker: Worker
    epoch: Number
    reached: StepOrBefore  # steps before this one could be replayed
    reason: str  # one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """worker -> coordinator: the stage is built."""

    worker: Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """worker -> coordinator, from a thread of its own: the process is not stopped."""

    worker: Worker
    epoch: Number
    step: Step  # it runs operations of this one
    attempt: Attempt  # of this step
    done: Number  # how many of them it has finished, of its lane of this step
    operation: Label  # that its own thread is busy with: F, B, W, BW, load, optimizer; empty: none
    number: NumberOrNone  # of this operation: another one has another
    microbatch: MicrobatchOrNone  # -1: none
    busy_s: Seconds  # how long it has been in it, by its own clock
    longest: dict[Label, Seconds]  # of each kind that it has ended since the last one
    saving: bool = False  # it writes a part of a checkpoint, or tries to once more


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowStack:
    """coordinator -> agent, or a worker that it has not started: write down where its threads are.

    A worker does so aside.
    """

    pid: PidOrNone  # 0: your own


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAt:
    """coordinator -> agent: a worker is silent; look at its process."""

    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRuns:
    """agent -> coordinator, after a LookAt: it runs. Of one that is stopped nothing is said."""

    worker: Worker
    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGone:
    """worker -> coordinator: the connection to another worker broke, or a wait ran out."""

    worker: Worker
    epoch: Number
    lost: WorkerOrNone  # empty: somebody is stuck, but it is not known who


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """coordinator -> member: stop at the next operation boundary and tell what you have."""

    epoch: Number  # the one to come


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """worker -> coordinator, the answer to Halt: all that planning the rest needs to know."""

    worker: Worker
    epoch: Number  # of the Halt
    reduced: StepOrBefore  # steps whose gradient is reduced here; it is in step ``reduced`` now
    oldest: StepOrBefore  # it has the weights to run operations of this step and later ones again
    attempt: Attempt  # of step ``reduced``
    progress: dict[Microbatch, Progress]  # of step ``reduced``
    kept: list[Kept]
    verdicts: dict[Step, Verdict]  # of those that it has heard
    kept_bytes: Number  # most that kept boundary tensors ever took
    done: Number  # operations finished of its lane of step ``reduced``
    saving: Step  # newest version whose part it has written or is writing; 0: none
    commits: list[Step]  # versions of its state that it has a copy of in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """coordinator -> member: what to run from now on. The first one starts the training."""

    epoch: Number
    stages: dict[Worker, Stage]  # every member and the stage it holds
    addresses: dict[Worker, Address]
    running: list[HalfDone]  # the oldest first
    schedule: str  # of every step from ``first_step`` on
    first_step: Step
    end_step: Step  # stop and save when this many steps are done
    verdicts: dict[Step, Verdict]  # as in Tell, of all members together
    saved: dict[Stage, Step]
    """Stage -> newest version whose part of a checkpoint is on disk or being written."""
    saves: list[SaveRule]  # as in SaveAt


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

    worker: Worker
    epoch: Number
    number: Number
    step: Step  # k: the newest that it has begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """coordinator -> member, when all have answered: what was offered holds from a step on."""

    epoch: Number
    number: Number
    first_step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """coordinator -> member: go back to a copy in memory. What was done since is forgotten."""

    epoch: Number  # of the Proceed that follows
    version: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAt:
    """coordinator -> worker: which versions are saved. All rules so far; only their end is new."""

    rules: list[SaveRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOnce:
    """coordinator -> member: save this version as well. Takes effect aside.

    Who has come past it already does nothing, unless it was the last one.
    """

    step: Step
    writers: dict[Stage, Worker]  # stage -> who writes its part; others: as ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """worker -> coordinator: the first operation after a Proceed has begun."""

    worker: Worker
    epoch: Number
    at_s: Seconds  # time.monotonic() of the worker's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """coordinator -> member: copy your stage's state to ``to``, then each update that follows."""

    to: Worker
    host: Host
    port: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """coordinator -> joiner whose stage is built: take the state from ``source``."""

    source: Worker
    epoch: Number  # be in this epoch while copying


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """joiner -> coordinator: it has the state of this version, made by an update of its own."""

    worker: Worker
    source: Worker  # whom it has copied it from
    version: Step
    num_bytes: Number  # of the state that was copied


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFired:
    """worker -> coordinator, just before an injected fault acts."""

    worker: Worker
    fault_kind: Label  # one of faults.FaultKind
    fault: Label  # as it was given
    step: Step
    attempt: Attempt
    point: Label
    done: Number  # operations finished of its lane of this step
    at_s: Seconds  # time.monotonic() of the worker's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """worker -> coordinator after each of its steps.

    Losses and tokens of all micro-batches come from every holder of the last stage.
    """

    worker: Worker
    step: Step
    losses: list[MicrobatchLoss]
    num_tokens: Number
    norm: float
    clipped: bool
    skipped: bool
    taken_back: bool
    nonfinite: bool  # its own stage's gradient held NaN or Inf
    operations: list[OperationTime]
    transfers: list[Transfers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """coordinator -> member: measure, at the beginning of a step. Takes effect aside."""

    step: Step  # the first step to do it in, or the next one that begins
    compute: bool  # a short benchmark of its own arithmetic
    links: list[LinkProbe]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """worker -> coordinator: its benchmark. What came over links is in the StepReports."""

    worker: Worker
    step: Step
    wall_s: Seconds
    cpu_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """worker -> coordinator: its layers of a checkpoint are on disk."""

    worker: Worker
    step: Step
    directory: PartName  # as in Assign
    layers: list[Number]
    digests: dict[PartFile, Sha256]  # file -> sha256
    sizes: dict[PartFile, Number]  # file -> bytes
    hashes: dict[Layer, Hash]  # as in StateHashes
    state: dict[Label, Label | None]  # what is not a tensor, e.g. the LR schedule's
    took_s: Seconds
    copy_s: Seconds  # of that: for a copy beside the training; 0: it was taken before


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFailed:
    """worker -> coordinator: its part could not be written, although it was tried again."""

    worker: Worker
    step: Step
    reason: str  # one line


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHashes:
    """worker -> coordinator, from every holder that writes no part: replicas must agree."""

    worker: Worker
    step: Step  # optimizer steps that the state has had
    hashes: dict[Layer, Hash]  # layer -> hash of parameters, buffers, optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """worker -> coordinator: all steps done."""

    worker: Worker
    digests: dict[Layer, Sha256]  # layer -> sha256 of its parameters
    peak_memory_bytes: Number
    kept_bytes: Number  # most that kept boundary tensors ever took
    log_bytes: Number  # written to its log, in all
    old_bytes: Number  # most that was held so that a step could be taken back, or run again


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """worker -> coordinator: the job's own code raised. It lives, and holds its state."""

    worker: Worker
    epoch: Number
    step: Step  # it cannot be run
    exit_code: ExitCode
    reason: str  # one line
    details: str  # traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """worker -> coordinator: something about the job that its user should know."""

    worker: Worker
    reason: str  # one line, the same from whoever says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """worker -> coordinator, before it ends by itself."""

    worker: Worker
    lost: WorkerOrNone  # the worker whose end made this one fail; empty: the fault is its own
    exit_code: ExitCode
    reason: str  # one line
    details: str  # traceback; empty for the user's own mistakes
    scarce: bool = False  # its machine is out of something: another process may find it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """coordinator -> worker or agent: end now, in good order."""

    reason: str


Message = (
    AgentHello
    | StartWorkers
    | WorkerStarted
    | WorkerNotStarted
    | WorkerExited
    | JoinRequest
    | JoinGranted
    | Hello
    | MeasureLayers
    | LayerCosts
    | Assign
    | LogVolume
    | LogBorders
    | LogState
    | Sealed
    | Replay
    | Replayed
    | ReplayFailed
    | Ready
    | Heartbeat
    | ShowStack
    | LookAt
    | WorkerRuns
    | PeerGone
    | Halt
    | Tell
    | Proceed
    | Offer
    | Offered
    | Adopt
    | Restore
    | SaveAt
    | SaveOnce
    | Resumed
    | ShareState
    | CopyState
    | Copied
    | FaultFired
    | StepReport
    | Probe
    | Probed
    | CheckpointPart
    | PartFailed
    | StateHashes
    | Finished
    | JobFailed
    | Warned
    | Failed
    | Stop
)
