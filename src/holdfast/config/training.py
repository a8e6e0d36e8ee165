"""Settings of what is trained and how it is cut: whatever the numbers of a run depend on."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from holdfast.config.checks import MAX_LIMIT_S, METRIC, at_least, require

MAX_WORKERS = 4096
MAX_LOADERS = 64
DEFAULT_MICROBATCHES = 4  # a pipeline
MOST_LOSS_SCALE = 2**24
_DEVICE_KIND = re.compile(r"[a-z][a-z0-9]*")
_DURATION = re.compile(r"([A-Z]+)=(\d+(?:\.\d+)?)(us|ms|s)")
_JUDGED_BY = re.compile(rf"(?:min|max) {METRIC.pattern}")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobConfig:
    args: tuple[str, ...] = ()
    """Words that the job's function is called with, as one list; what stands after ``--``."""

    weights: str = ""
    """File or folder that parameters and buffers start from; empty: as the job makes them."""

    weights_strict: bool = True
    """false: tensors that are missing there, or have another shape, stay as the job makes them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    pipelines: int = 1
    """Copies of the whole pipeline (data parallel)."""

    stages: int = 1
    """Parts the layers are cut into (pipeline parallel)."""

    microbatches: int = 0
    """Micro-batches in one step, over all pipelines, which share them equally; 0: four each."""

    cut: tuple[int, ...] = ()
    """First layer of each stage after the first; empty: the job's cut, or equal measured cost."""

    def __post_init__(self) -> None:
        for name in ("pipelines", "stages"):
            at_least(1, f"parallel.{name}", getattr(self, name))
        at_least(0, "parallel.microbatches", self.microbatches, "must be >= 0")
        if self.microbatches == 0:
            object.__setattr__(self, "microbatches", DEFAULT_MICROBATCHES * self.pipelines)
        require(
            self.microbatches % self.pipelines == 0,
            "parallel.microbatches",
            self.microbatches,
            f"must be divisible by the {self.pipelines} pipelines, which share them equally",
        )
        workers = self.pipelines * self.stages
        expected = f"{workers} workers; at most {MAX_WORKERS} on one machine"
        require(workers <= MAX_WORKERS, "parallel.pipelines", self.pipelines, expected)
        if self.cut:
            require(
                len(self.cut) == self.stages - 1,
                "parallel.cut",
                list(self.cut),
                f"needs {self.stages - 1} layer numbers for {self.stages} stages",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    steps: int = 50
    """Optimizer steps of the whole run, those before a resumed checkpoint included."""

    seed: int = 0
    """Of initial parameters, random numbers and the order of the data."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """bf16, fp16: layers and loss run under torch's autocast; fp32: as the job computes."""

    loss_scale: int = 65536
    """With fp16, of the first step; it halves after NaN or Inf in a gradient. A power of two."""

    loss_scale_steps: int = 2000
    """With fp16: after so many steps in a row without NaN or Inf the loss scale doubles."""

    clip_value: float = 0.0
    """Elements of the gradient are cut off here, up and down, after ``Job.clip_norm``; 0: not."""

    noise: float = 0.0
    """Standard deviation of random numbers that are added to the gradient; 0: none are."""

    noise_decay: float = 0.0
    """In step ``t`` it is ``noise / (1 + t) ** noise_decay``; 0: always the same."""

    ema: float = 0.0
    """An average of the weights is kept, of which so much stays in a step, e.g. 0.999; 0: none."""

    def __post_init__(self) -> None:
        at_least(1, "train.steps", self.steps)
        require(0 <= self.seed < 2**63, "train.seed", self.seed, "must be in 0 .. 2^63-1")
        scale = self.loss_scale
        good = 1 <= scale <= MOST_LOSS_SCALE and scale & (scale - 1) == 0
        expected = f"must be a power of two from 1 to {MOST_LOSS_SCALE}"
        require(good, "train.loss_scale", scale, expected)
        at_least(1, "train.loss_scale_steps", self.loss_scale_steps)
        for name in ("clip_value", "noise", "noise_decay"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"train.{name}", value, "must be 0 or more")
        expected = "must be below 1, and 0 (off) or more"
        require(0 <= self.ema < 1, "train.ema", self.ema, expected)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    workers: int = 0
    """Processes beside each worker that load micro-batches ahead; 0: the worker loads them."""

    ahead: int = 0
    """Micro-batches loaded, or being loaded, before they are needed; 0: two for each process."""

    retries: int = 3
    """How often a micro-batch is loaded again after the data set, or collate, has raised."""

    pause_s: float = 0.5
    """Before the first of these; before each further one twice as long."""

    def __post_init__(self) -> None:
        good = 0 <= self.pause_s <= MAX_LIMIT_S
        require(good, "data.pause_s", self.pause_s, f"must be from 0 to {MAX_LIMIT_S}")
        at_least(0, "data.retries", self.retries, "must be 0 or more")
        expected = f"must be from 0 to {MAX_LOADERS}"
        require(0 <= self.workers <= MAX_LOADERS, "data.workers", self.workers, expected)
        at_least(0, "data.ahead", self.ahead, "must be 0 (automatic) or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationConfig:
    every: int = 0
    """Steps between two validations with ``Job.validation``; the last step has one, too. 0: only
    that one."""

    microbatches: int = 0
    """Of the validation set, from its beginning; 0: all of it."""

    keep_best: str = ""
    """``loss``, ``min NAME`` or ``max NAME`` of a metric: the checkpoint of the best validation is
    kept. Empty: none is."""

    patience: int = 0
    """The run ends after so many validations in a row that were not better than the best one, by
    ``keep_best`` or else by the loss; 0: it does not."""

    min_delta: float = 0.0
    """How much less (or more, for ``max``) than the best so far a better one has to be."""

    ema: bool = False
    """With the average of the weights that ``train.ema`` keeps, instead of the weights."""

    def __post_init__(self) -> None:
        for name in ("every", "microbatches", "patience"):
            at_least(0, f"validation.{name}", getattr(self, name), "must be 0 or more")
        good = 0 <= self.min_delta < math.inf
        require(good, "validation.min_delta", self.min_delta, "must be 0 or more")
        good = not self.patience or self.every > 0
        expected = "needs validation.every above 0: one validation at the end stops nothing"
        require(good, "validation.patience", self.patience, expected)
        good = self.keep_best in ("", "loss") or _JUDGED_BY.fullmatch(self.keep_best) is not None
        expected = "write loss, or a metric with its direction, e.g. max accuracy or min error"
        require(good, "validation.keep_best", self.keep_best, expected)

    @property
    def judged_by(self) -> str:
        """What validations are compared by: ``loss``, or a metric's name."""
        return self.keep_best.rpartition(" ")[2] or "loss"

    @property
    def wants_more(self) -> bool:
        """The larger is the better."""
        return self.keep_best.startswith("max ")

    def is_due(self, version: int, last: int) -> bool:
        """Whether the state after ``version`` of ``last`` steps is validated."""
        is_on_the_way = self.every > 0 and version % self.every == 0
        return version > 0 and (is_on_the_way or version == last)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    mode: Literal["staggered", "global"] = "staggered"
    """staggered: a stage steps as soon as its own gradients are complete; global: all wait."""

    masters: bool = True
    """Parameters that the job holds in bf16 or fp16 are updated in fp32, and rounded; off: not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientsConfig:
    mode: Literal["exact", "fast"] = "exact"
    """exact: sums in 64-bit fixed point, same bits whoever ran what; fast: sums in fp32."""

    nonfinite: Literal["skip", "stop"] = "skip"
    """A step whose gradient holds NaN or Inf is left out; stop: one such step ends the run."""

    nonfinite_limit: int = 10
    """After so many such steps in a row the run ends, with a checkpoint; 0: never."""

    def __post_init__(self) -> None:
        expected = "must be 0 (never) or more"
        at_least(0, "gradients.nonfinite_limit", self.nonfinite_limit, expected)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    name: Literal["zero-bubble", "1f1b", "gpipe"] = "zero-bubble"
    memory: int = 0
    """Most micro-batches in flight on a worker, in any schedule; 0: twice the stages, or fewer if
    the memory of devices has no room for so many."""

    file: str = ""
    """Lanes to run instead, in the text form of a schedule; workers without a lane stay away."""

    def __post_init__(self) -> None:
        at_least(0, "schedule.memory", self.memory, "must be 0 (automatic) or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class StageConfig:
    checkpoint_activations: bool = False
    """Keep only layer inputs and compute each layer's forward again in its backward."""

    compile: bool = False
    """Each layer by itself is compiled by ``torch.compile``: other bits, but the same in every
    layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    kind: str = "auto"
    """Where workers compute: ``cpu``, ``cuda``, ``xpu``, ...; ``auto``: on what torch finds on the
    machine."""

    index: int = -1
    """Which of a machine's devices; -1: its workers share them out among themselves."""

    mixed: bool = False
    """Workers may have devices of several models. The result then depends on who computed what."""

    emulate: str = ""
    """``F=20ms,B=20ms,W=20ms``: operations take this long by sleeping, on a tiny stand-in model."""

    def __post_init__(self) -> None:
        good = _DEVICE_KIND.fullmatch(self.kind) is not None
        require(good, "device.kind", self.kind, "write auto, cpu, cuda, xpu, ...")
        at_least(-1, "device.index", self.index, "must be -1 (automatic) or more")
        self.durations_s()

    @property
    def real_kind(self) -> str:
        """An emulated device only sleeps: its stand-in model is as well off on the processor."""
        return "cpu" if self.emulate and self.kind == "auto" else self.kind

    def durations_s(self) -> dict[str, float]:
        """Seconds of each kind of operation; empty when the device is real."""
        if not self.emulate:
            return {}
        found: dict[str, float] = {}
        for part in self.emulate.split(","):
            match = _DURATION.fullmatch(part.strip())
            require(
                match is not None and match[1] in ("F", "B", "W", "BW", "R"),
                "device.emulate",
                self.emulate,
                f"cannot read {part.strip()!r}; write e.g. F=20ms,B=20ms,W=20ms (us, ms or s)",
            )
            assert match is not None
            found[match[1]] = float(match[2]) * _UNIT_S[match[3]]
            good = found[match[1]] <= MAX_LIMIT_S
            require(good, "device.emulate", self.emulate, f"at most {MAX_LIMIT_S} s")
        missing = {"F", "B", "W"} - found.keys()
        require(found.get("F") != 0, "device.emulate", self.emulate, "F must take some time")
        require(not missing, "device.emulate", self.emulate, f"lacks {', '.join(sorted(missing))}")
        return {"BW": found["B"] + found["W"], "R": 0.0} | found
