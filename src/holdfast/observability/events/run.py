"""The run and its steps: how it began, what each step took, how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.observability.events.timed import Timed

OpRow: TypeAlias = tuple[str, float, float]
"""Operation in text form (``2F5``: stage 2, forward, micro-batch 5), start, end in seconds."""

TransferRow: TypeAlias = tuple[str, str, int, int, float]
"""Source, "pipeline", "reduction" or "probe", count, bytes, median seconds under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Timed):
    pipelines: int
    stages: int
    microbatches: int  # of a step, over all pipelines
    steps: int  # the run ends after this many, those before a resume included
    schedule: str
    reason: str  # the planner's own words, shown as they are
    cut: tuple[int, ...]  # first layer of each stage after the first
    samples: int = 0  # of a step, over all pipelines; 0: not known
    first_step: int = 0  # above 0: resumed from a checkpoint
    address: str = ""  # HOST:PORT where workers may join; empty: they may not
    join_with: str = ""  # words of the command by which they join, for the run's secret
    in_flight: int = 0  # micro-batches on a worker, if device memory is what limits them; 0: not
    limits: str = ""  # after how long a silent worker is lost, and the like, in words
    unix_s: float = 0.0  # the wall clock at ``at_s``, by time.time(); 0: not known, an old file
    schema: int = 0  # which version of the form of events follows; 0: before there were versions


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady(Timed):
    worker: str
    pid: int
    versions: Mapping[str, str]  # "python", "torch", ...
    machine: str = ""  # where others reach it; workers of one machine have one clock


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTakenBack(Timed):
    """A worker had applied the step already and went back to the parameters before it."""

    worker: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(Timed):
    """Every stage has committed the step."""

    step: int
    loss: float
    gradient_norm: float | None
    tokens: int  # or samples, if the job has no tokens
    took_s: float
    clipped: bool = False
    skipped: bool = False  # a gradient was not finite: parameters are as before the step
    empty: bool = False  # skipped because no micro-batch had any weight: the loss is NaN
    loss_scale: float = 1.0  # of this step; after one that was skipped it is half of that
    lr: float = 0.0  # learning rate of the first parameter group


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStep(Timed):
    """All operations of one worker in one step; one event, because there are many."""

    worker: str
    step: int
    ops: tuple[OpRow, ...]
    cpu_s: tuple[float, ...] = ()  # of each operation: time on the processor
    sizes: tuple[int, ...] = ()  # of each operation: elements of its input
    transfers: tuple[TransferRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Timed):
    """Means over the samples of ``Job.validation``."""

    step: int  # optimizer steps that the parameters have had
    loss: float
    metrics: Mapping[str, float]
    is_best: bool  # so far, by validation.keep_best or else by the loss
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedEarly(Timed):
    """The run ends well with this step: validations became no better."""

    step: int  # as in Validated
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Timed):
    """Something about the job, or the machine, that a user should know; each line once a run."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted(Timed):
    """By Ctrl-C, SIGTERM or SIGHUP: the run ends after the running step, with a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Timed):
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Timed):
    parameters_sha256: str | None
    peak_memory_bytes: Mapping[str, int]  # of each worker
    kept_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of each worker: most that its kept boundary tensors ever took."""
    old_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of each worker: most that it held so that a step could be taken back, or run again."""
    log_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of each worker: what it has written to its log."""
    peak_device_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of each worker that has a device of its own."""


RunEvent: TypeAlias = (
    RunStarted
    | WorkerReady
    | StepFinished
    | WorkerStep
    | StepTakenBack
    | Validated
    | StoppedEarly
    | Warned
    | Interrupted
    | RunFailed
    | RunFinished
)
