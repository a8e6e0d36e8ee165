"""Workers come: they are started or join, say what they are, and get a stage."""

from dataclasses import dataclass

from holdfast.config import RunConfig
from holdfast.protocol.fields import (
    Hash,
    Host,
    Label,
    Number,
    PartName,
    Path,
    PathOrNone,
    Pid,
    Port,
    Seconds,
    Sha256,
    Sha256OrNone,
    Stage,
    StateOrNone,
    Step,
    Worker,
    WorkerOrNone,
)
from holdfast.protocol.records import LogOrder

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
class Ready:
    """worker -> coordinator: the stage is built."""

    worker: Worker


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


StartMessage = (
    AgentHello
    | StartWorkers
    | WorkerStarted
    | WorkerNotStarted
    | JoinRequest
    | JoinGranted
    | Hello
    | MeasureLayers
    | LayerCosts
    | Assign
    | Ready
    | ShareState
    | CopyState
    | Copied
)
