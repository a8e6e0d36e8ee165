"""Rows and records inside messages. Each field is checked when it is read, as a message's own are.

On the wire a record is a list of its fields, in this order.
"""

from typing import Literal, NamedTuple

from holdfast.protocol.fields import (
    AttemptNumber,
    Difference,
    Host,
    Label,
    Microbatch,
    MicrobatchOrNone,
    Number,
    NumberOrNone,
    Operation,
    Port,
    RunId,
    Seconds,
    StageNumber,
    Step,
    WorkerName,
)

# --- the layers ---


class LayerSize(NamedTuple):
    """What a layer takes on its device: for itself, and for each micro-batch in flight."""

    held_bytes: Number  # parameters and buffers
    trained: Number  # numbers in parameters that are trained
    trained_low: Number  # of those, in bf16 or fp16
    input_bytes: Number
    inner_bytes: Number  # that autograd keeps until the backward, without input and output


# --- what was done ---


Purpose = Literal["pipeline", "reduction", "probe"]


class OperationTime(NamedTuple):
    op: Operation
    start_s: Seconds
    end_s: Seconds
    cpu_s: Seconds  # of the thread that ran it
    elements: Number  # of its input; 0: unknown


class Transfers(NamedTuple):
    """What came in from one source, for one purpose, since the last report.

    Waiting for the sender is no part of it.
    """

    source: WorkerName
    purpose: Purpose
    number: Number
    num_bytes: Number
    moved_s: Difference  # median, under way


class MicrobatchLoss(NamedTuple):
    microbatch: Microbatch
    loss: float  # may be NaN: then the model has diverged
    weight: float = 1.0


class MicrobatchScore(NamedTuple):
    """Of a micro-batch of the validation set."""

    microbatch: Microbatch
    weight: float  # of it in the mean: its samples, or what the job says
    loss: float  # may be NaN
    metrics: list[float]  # likewise, in the order of their names


class AliveRow(NamedTuple):
    """A ``Heartbeat`` that tells nothing new."""

    worker: WorkerName


class BeatRow(NamedTuple):
    """A ``Heartbeat`` that an agent passes on."""

    worker: WorkerName
    epoch: Number
    step: Step
    attempt: AttemptNumber
    done: Number
    operation: Label
    number: NumberOrNone
    microbatch: MicrobatchOrNone
    busy_s: Seconds
    saving: bool
    renewed: Number
    num_longest: Number  # rows that are its own


class LongestRow(NamedTuple):
    kind: Label
    took_s: Seconds


class ReportRow(NamedTuple):
    """A ``StepReport`` that an agent passes on."""

    worker: WorkerName
    said: Number  # messages that the worker has sent by itself before it, on its connection
    epoch: Number  # that the step was run in
    step: Step
    num_tokens: Number
    norm: float
    clipped: bool
    skipped: bool
    taken_back: bool
    nonfinite: bool
    loss_scale: float
    lr: float
    num_losses: Number  # rows that are its own
    num_operations: Number  # likewise
    num_transfers: Number  # likewise


class StepLosses(NamedTuple):
    step: Step
    losses: list[MicrobatchLoss]
    num_tokens: Number


# --- what there is of running steps ---


class KeptRow(NamedTuple):
    """Boundary tensors of a step that their sender still has, by micro-batch."""

    step: Step
    activations: list[Microbatch]
    gradients: list[Microbatch]


class VerdictRow(NamedTuple):
    norm: float  # may be NaN or infinite: then the step is skipped
    scale: float | None  # the gradient is to be multiplied by this; None: as it is
    skip: bool


class Source(NamedTuple):
    """Who has a kept tensor that is to be sent again."""

    what: Literal["activation", "gradient"]
    stage: StageNumber
    microbatch: Microbatch
    worker: WorkerName


class HalfDone(NamedTuple):
    """A step that is to be ended."""

    step: Step
    attempt: AttemptNumber
    schedule: str  # text form of the lanes that end it
    sources: list[Source]
    copies: dict[StageNumber, WorkerName]
    """Stage -> who has its reduced gradient: whoever else of the stage has R in its lane gets it
    from there."""


# --- orders ---


class Address(NamedTuple):
    host: Host
    port: Port


class LinkProbe(NamedTuple):
    """Tensors to be sent ``after`` steps after the first one of the order."""

    to: WorkerName
    after: Number


class SaveRule(NamedTuple):
    """Counts up to the first version of the next rule."""

    first: Step
    every: Number


class LogOrder(NamedTuple):
    run: RunId  # name of the run and of its history, which changes when all go back
    began: Step  # the first step of this history
    workers: list[WorkerName]  # all that have ever logged in this run
    boundaries: list[StageNumber]  # to be logged; boundary b is the one after stage b
    limit_bytes: Number  # most that this worker's log may take; 0: no limit
