"""What a step has brought, and what is measured beside it."""

from dataclasses import dataclass

from holdfast.protocol.fields import (
    Number,
    Seconds,
    Step,
    WorkerName,
)
from holdfast.protocol.records import (
    LinkProbe,
    MicrobatchLoss,
    MicrobatchScore,
    OperationTime,
    Transfers,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """worker -> coordinator after each of its steps.

    Losses and tokens of all micro-batches come from every holder of the last stage; of many, from
    some, and then transfers are told of near holders only (``report_limits.py``).
    """

    worker: WorkerName
    step: Step
    losses: list[MicrobatchLoss]
    num_tokens: Number
    norm: float
    clipped: bool
    skipped: bool
    taken_back: bool
    nonfinite: bool  # its own stage's gradient held NaN or Inf
    loss_scale: float = 1.0  # 1: none, or it cannot be lower
    lr: float = 0.0  # of the first group of its optimizer; 0: it has none
    operations: list[OperationTime]
    transfers: list[Transfers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """worker -> coordinator, from holders of the last stage, now and then in a validation."""

    worker: WorkerName
    epoch: Number
    step: Step  # optimizer steps that the state has had
    scores: list[MicrobatchScore]  # that it has not told before


@dataclass(frozen=True, slots=True, kw_only=True)
class _StandStill:
    epoch: Number
    step: Step  # as in Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveHere(_StandStill):
    """coordinator -> member: it was the best so far. Save what is validated, and stay there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn(_StandStill):
    """coordinator -> member: the validation is over. Takes effect aside, as SaveHere does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """coordinator -> member: measure, at the beginning of a step. Takes effect aside."""

    step: Step  # the first step to do it in, or the next one that begins
    compute: bool  # a short benchmark of its own arithmetic
    links: list[LinkProbe]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """worker -> coordinator: its benchmark. What came over links is in the StepReports."""

    worker: WorkerName
    step: Step
    wall_s: Seconds
    cpu_s: Seconds


StepMessage = StepReport | Scores | SaveHere | GoOn | Probe | Probed
