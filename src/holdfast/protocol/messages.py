"""Every message between launcher, agent and workers, and nothing else. Add a message here first.

Tensors never travel here: they go from worker to worker over ``transport``.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello:
    """agent -> coordinator, once: ready to start workers."""

    token: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """coordinator -> agent."""

    workers: list[str]
    job: str  # path of the job file
    job_sha256: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """agent -> coordinator."""

    worker: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """agent -> coordinator, as soon as the process is gone."""

    worker: str
    pid: int
    how: str  # "exit code 1" or "signal SIGKILL"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """somebody -> coordinator, instead of a hello: may I take the place of a missing worker?

    Answered with JoinGranted or Stop; then the connection is closed. Whoever was granted a place
    comes back as a worker, with its token.
    """

    worker: str  # the place it wants; empty: any
    pid: int
    fingerprint: dict[str, str]
    job_sha256: str  # of its own job file; empty: it has none and takes the run's


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGranted:
    """coordinator -> whoever asked to join."""

    worker: str
    token: str
    job: str  # path of the job file
    job_sha256: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """worker -> coordinator, once the job is loaded and the data port is open."""

    token: str
    worker: str
    pid: int
    fingerprint: dict[str, str]  # all that the bits of a result depend on
    num_layers: int
    cut: list[int]  # the job's own wish; empty: none
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureLayers:
    """coordinator -> one worker: time the layers, to cut them into equal stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """worker -> coordinator."""

    worker: str
    forward_s: list[float]
    backward_s: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """coordinator -> worker: the stage to build. Again, when it is to hold another one."""

    stage: int
    cut: list[int]
    checkpoint: str  # directory to load from; empty: start anew
    first_step: int  # optimizer steps that the state to start from has had
    run_dir: str
    beat_s: float  # send a heartbeat this often
    wait_s: float  # longest wait for a tensor from another worker
    faults: list[str]  # to be injected into this worker, as they were given


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """worker -> coordinator: the stage is built."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """worker -> coordinator, from a thread of its own: the process is not stopped."""

    worker: str
    epoch: int
    step: int  # it runs operations of this one
    attempt: int  # of this step
    done: int  # how many of them it has finished, of its lane of this step


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGone:
    """worker -> coordinator: the connection to another worker broke, or a wait ran out."""

    worker: str
    epoch: int
    lost: str  # empty: somebody is stuck, but it is not known who


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """coordinator -> member: stop at the next operation boundary and tell what you have."""

    epoch: int  # the one to come


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """worker -> coordinator, the answer to Halt: all that planning the rest needs to know."""

    worker: str
    epoch: int  # of the Halt
    reduced: int  # steps whose gradient is reduced here; it is in step ``reduced`` now
    oldest: int  # it has the weights to run operations of this step and later ones again
    attempt: int  # of step ``reduced``
    progress: dict[str, int]  # of step ``reduced``: micro-batch -> lineage.Progress
    kept: list[list[Any]]  # [step, [micro-batches of kept activations], [... of kept gradients]]
    verdicts: dict[str, list[Any]]  # step -> [norm, scale or null, skip], of those it has heard
    kept_bytes: int  # most that kept boundary tensors ever took
    done: int  # operations finished of its lane of step ``reduced``
    saving: int  # newest version whose part it has written or is writing; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """coordinator -> member: what to run from now on. The first one starts the training."""

    epoch: int
    stages: dict[str, int]  # every member and the stage it holds
    addresses: dict[str, list[Any]]  # member -> [host, port]
    running: list[dict[str, Any]]
    """Half-done steps, the oldest first, each with
    ``step``, ``attempt``;
    ``schedule``: text form of the lanes that end it;
    ``sources``: [what, stage, micro-batch, worker] of kept tensors to be sent again;
    ``copies``: stage (as text) -> worker that has its reduced gradient: whoever else of the
    stage has R in its lane gets it from there."""
    schedule: str  # of every step from ``first_step`` on
    first_step: int
    end_step: int  # stop and save when this many steps are done
    verdicts: dict[str, list[Any]]  # as in Tell, of all members together
    saved: dict[str, int]
    """Stage -> newest version whose part of a checkpoint is on disk or being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """worker -> coordinator: the first operation after a Proceed has begun."""

    worker: str
    epoch: int
    at_s: float  # time.monotonic() of the worker's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """coordinator -> member: copy your stage's state to ``to``, then each update that follows."""

    to: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """coordinator -> joiner whose stage is built: take the state from ``source``."""

    source: str
    epoch: int  # be in this epoch while copying


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """joiner -> coordinator: it has the state of this version, made by an update of its own."""

    worker: str
    source: str  # whom it has copied it from
    version: int
    num_bytes: int  # of the state that was copied


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFired:
    """worker -> coordinator, just before an injected fault acts."""

    worker: str
    fault: str  # as it was given
    step: int
    attempt: int
    point: str
    done: int  # operations finished of its lane of this step
    at_s: float  # time.monotonic() of the worker's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """worker -> coordinator after each of its steps.

    Losses and tokens of all micro-batches come from every holder of the last stage.
    """

    worker: str
    step: int
    losses: list[list[float]]  # [micro-batch, loss]
    num_tokens: int
    norm: float
    clipped: bool
    skipped: bool
    taken_back: bool
    operations: list[list[Any]]  # [text, start_s, end_s]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """worker -> coordinator: its layers of a checkpoint are on disk."""

    worker: str
    step: int
    directory: str
    layers: list[int]
    digests: dict[str, str]  # file -> sha256
    state: dict[str, Any]  # what is not a tensor, e.g. the LR schedule's
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """worker -> coordinator: all steps done."""

    worker: str
    digests: dict[str, str]  # layer -> sha256 of its parameters
    peak_memory_bytes: int
    kept_bytes: int  # most that kept boundary tensors ever took


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """worker -> coordinator, before it ends by itself."""

    token: str
    worker: str
    lost: str  # the worker whose end made this one fail; empty: the fault is its own
    exit_code: int
    reason: str  # one line
    details: str  # traceback; empty for the user's own mistakes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """coordinator -> worker or agent: end now, in good order."""

    reason: str


Message = (
    AgentHello
    | StartWorkers
    | WorkerStarted
    | WorkerExited
    | JoinRequest
    | JoinGranted
    | Hello
    | MeasureLayers
    | LayerCosts
    | Assign
    | Ready
    | Heartbeat
    | PeerGone
    | Halt
    | Tell
    | Proceed
    | Resumed
    | ShareState
    | CopyState
    | Copied
    | FaultFired
    | StepReport
    | CheckpointPart
    | Finished
    | Failed
    | Stop
)
