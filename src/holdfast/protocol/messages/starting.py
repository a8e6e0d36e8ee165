"""Workers come: they are started or join, say what they are, and get a stage."""

from dataclasses import dataclass

from holdfast.protocol.fields import (
    Hash,
    Host,
    Label,
    Number,
    PartName,
    Pid,
    Port,
    Seconds,
    Sha256OrNone,
    StageNumber,
    StateOrNone,
    Step,
    WorkerName,
    WorkerOrNone,
)
from holdfast.protocol.messages.what_to_run import WhatToRun
from holdfast.protocol.records import LayerSize, LogOrder

WEIGHTS = "the weights that the run starts from"  # the trait of those, if there are any
MODEL = "Job.model"  # the trait of a job that has one, and no list of layers
SAMPLES = "len(Job.data)"  # the trait of a job that is about its data
MICROBATCH_SIZE = "Job.microbatch_size"
WEIGHT = "Job.weight"  # only of a job that has it
VALIDATION_SAMPLES = "len(Job.validation)"  # only of a job that has it, and so is the next one
METRICS = "Job.metrics"  # names, each after a blank
DEVICE = "device"  # its model, in the fingerprint of a worker that has one


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
class JoinGranted(WhatToRun):
    """coordinator -> whoever asked to join."""

    worker: WorkerName


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """worker -> coordinator, once the job is loaded and the data port is open."""

    worker: WorkerName
    pid: Pid
    fingerprint: dict[Label, Label]  # all that the bits of a result depend on, besides the job
    traits: dict[Label, Label]  # of the job, besides its file and layers: equal on all workers
    num_layers: Number
    layer_hashes: list[Hash]  # of each layer as the job has built it: equal on all workers
    cut: list[Number]  # the job's own wish; empty: none
    host: Host
    port: Port
    device_index: Number  # of the devices of its machine
    device_bytes: Number  # memory of the whole device; 0: it computes on the processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reattach:
    """worker -> coordinator, first of all: it was a worker of the coordinator before, and has all
    that it had then. What that one may not have heard follows. Answered with Begone if its place
    is gone."""

    worker: WorkerName
    pid: Pid
    host: Host  # as in its hello
    port: Port
    epoch: Number  # the highest that it was told of
    building: Number  # stages that it was given and has not built yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Begone:
    """coordinator -> worker that has come back: its place is gone. It begins anew, as a joiner."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SayHello:
    """coordinator -> worker that has come back: its hello was not heard; once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureLayers:
    """coordinator -> one worker: time the layers, to cut them into equal stages, and tell what
    they take, for the limit on micro-batches in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """worker -> coordinator."""

    worker: WorkerName
    forward_s: list[Seconds]
    backward_s: list[Seconds]
    sizes: list[LayerSize]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """coordinator -> worker: the stage to build. Again, when it is to hold another one."""

    stage: StageNumber
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

    worker: WorkerName


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """coordinator -> member: copy your stage's state to ``to``, then each update that follows."""

    to: WorkerName
    host: Host
    port: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """coordinator -> joiner whose stage is built: take the state from ``source``."""

    source: WorkerName
    epoch: Number  # be in this epoch while copying


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """joiner -> coordinator: it has the state of this version, made by an update of its own."""

    worker: WorkerName
    source: WorkerName  # whom it has copied it from
    version: Step
    num_bytes: Number  # of the state that was copied


StartMessage = (
    JoinRequest
    | JoinGranted
    | Hello
    | Reattach
    | Begone
    | SayHello
    | MeasureLayers
    | LayerCosts
    | Assign
    | Ready
    | ShareState
    | CopyState
    | Copied
)
