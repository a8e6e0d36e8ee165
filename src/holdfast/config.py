"""Every setting of a run, typed and checked. Pure: the launcher and the workers share it.

A setting is named ``section.field`` in TOML files, in ``--set`` and in error messages.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from holdfast.errors import ConfigError

_DURATION = re.compile(r"([A-Z]+)=(\d+(?:\.\d+)?)(us|ms|s)")
MAX_WORKERS = 4096
DEFAULT_MICROBATCHES = 4  # a pipeline
MAX_THREADS = 1024
PROFILED_STEPS = 100  # before the first checkpoint of recovery.mode=checkfreq, if not set
MAX_LIMIT_S = 1_000_000
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)B")
_MAX_BYTES = 10**18
_UNIT_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _require(good: bool, key: str, value: object, expected: str) -> None:
    if not good:
        raise ConfigError(f"{key}={value}: {expected}")


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
            value = getattr(self, name)
            _require(value >= 1, f"parallel.{name}", value, "must be at least 1")
        _require(self.microbatches >= 0, "parallel.microbatches", self.microbatches, "must be >= 0")
        if self.microbatches == 0:
            object.__setattr__(self, "microbatches", DEFAULT_MICROBATCHES * self.pipelines)
        _require(
            self.microbatches % self.pipelines == 0,
            "parallel.microbatches",
            self.microbatches,
            f"must be divisible by the {self.pipelines} pipelines, which share them equally",
        )
        workers = self.pipelines * self.stages
        expected = f"{workers} workers; at most {MAX_WORKERS} on one machine"
        _require(workers <= MAX_WORKERS, "parallel.pipelines", self.pipelines, expected)
        if self.cut:
            _require(
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

    def __post_init__(self) -> None:
        _require(self.steps >= 1, "train.steps", self.steps, "must be at least 1")
        _require(0 <= self.seed < 2**63, "train.seed", self.seed, "must be in 0 .. 2^63-1")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    retries: int = 3
    """How often a micro-batch is loaded again after the data set, or collate, has raised."""

    pause_s: float = 0.5
    """Before the first of these; before each further one twice as long."""

    def __post_init__(self) -> None:
        _require(self.retries >= 0, "data.retries", self.retries, "must be 0 or more")
        good = 0 <= self.pause_s <= MAX_LIMIT_S
        _require(good, "data.pause_s", self.pause_s, f"must be from 0 to {MAX_LIMIT_S}")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    mode: Literal["staggered", "global"] = "staggered"
    """staggered: a stage steps as soon as its own gradients are complete; global: all wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientsConfig:
    mode: Literal["exact", "fast"] = "exact"
    """exact: sums in 64-bit fixed point, same bits whoever ran what; fast: sums in fp32."""

    nonfinite: Literal["skip", "stop"] = "skip"
    """A step whose gradient holds NaN or Inf is left out; stop: one such step ends the run."""

    nonfinite_limit: int = 10
    """After so many such steps in a row the run ends, with a checkpoint; 0: never."""

    def __post_init__(self) -> None:
        limit = self.nonfinite_limit
        _require(limit >= 0, "gradients.nonfinite_limit", limit, "must be 0 (never) or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    name: Literal["zero-bubble", "1f1b", "gpipe"] = "zero-bubble"
    memory: int = 0
    """Most micro-batches in flight on a worker, in any schedule; 0: twice the stages."""

    file: str = ""
    """Lanes to run instead, in the text form of a schedule; workers without a lane stay away."""

    def __post_init__(self) -> None:
        _require(self.memory >= 0, "schedule.memory", self.memory, "must be 0 (automatic) or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class StageConfig:
    checkpoint_activations: bool = False
    """Keep only layer inputs and compute each layer's forward again in its backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersConfig:
    kind: Literal["processes", "threads"] = "processes"
    """threads: all workers in the launcher's process, for tests and for debugging a job."""

    compute_threads: int = 1
    """Threads of one worker's arithmetic. Part of the result's bits: the same on all workers."""

    allow_mixed: bool = False
    """Run or resume although workers differ in threads, instruction set or versions (not exact)."""

    start_limit_s: float = 180.0
    """Longest wait for all workers to start, load the job and build their stages."""

    silence_limit_s: float = 0.0
    """A worker that is silent for longer is lost; 0: twice a step, from 2 to 60 s."""

    stuck_limit_s: float = 0.0
    """A worker that is in one operation for longer is lost; 0: 10 times the longest usual one of
    its kind, at least 15 s (loading data: 30 s). The first steps have ``start_limit_s``."""

    restarts: int = 3
    """How often in a row a lost worker is started again, if too few are left; 0: never."""

    replace: int = 3
    """How often within 100 steps a lost worker is replaced while the others go on; 0: never."""

    def __post_init__(self) -> None:
        _require(self.restarts >= 0, "workers.restarts", self.restarts, "must be 0 or more")
        _require(self.replace >= 0, "workers.replace", self.replace, "must be 0 or more")
        silence_s = self.silence_limit_s
        good = silence_s == 0 or 0.1 <= silence_s <= MAX_LIMIT_S
        expected = f"must be 0 (automatic), or from 0.1 to {MAX_LIMIT_S}"
        _require(good, "workers.silence_limit_s", silence_s, expected)
        stuck_s = self.stuck_limit_s
        good = stuck_s == 0 or 1 <= stuck_s <= MAX_LIMIT_S
        expected = f"must be 0 (automatic), or from 1 to {MAX_LIMIT_S}"
        _require(good, "workers.stuck_limit_s", stuck_s, expected)
        for name in ("compute_threads", "start_limit_s"):
            value = getattr(self, name)
            most = MAX_THREADS if name == "compute_threads" else MAX_LIMIT_S
            good = 0 < value <= most
            _require(good, f"workers.{name}", value, f"must be above 0 and at most {most}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlConfig:
    host: str = "127.0.0.1"
    port: int = 0
    """Where the launcher listens for its workers; 0: any free port."""

    def __post_init__(self) -> None:
        _require(0 <= self.port < 65536, "control.port", self.port, "must be in 0 .. 65535")
        _require(
            self.host in ("127.0.0.1", "localhost"),
            "control.host",
            self.host,
            "only loopback (127.0.0.1) is supported: all workers run on this machine",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    every_steps: int = 100
    """Steps between checkpoints written in the background; 0: none on the way."""

    first_step: int = 1
    """One more right after this step, so that few losses mean the beginning; 0: none."""

    at_end: bool = True
    """Write one after the last step, so that the run can be resumed with more steps."""

    keep: int = 2
    """How many of the newest checkpoints stay on disk."""

    write_limit_s: float = 1800.0
    """For the last one, which everybody waits for: then the disk counts as stuck."""

    def __post_init__(self) -> None:
        _require(self.every_steps >= 0, "checkpoint.every_steps", self.every_steps, "must be >= 0")
        _require(self.first_step >= 0, "checkpoint.first_step", self.first_step, "must be >= 0")
        _require(self.keep >= 1, "checkpoint.keep", self.keep, "must be at least 1")
        limit_s = self.write_limit_s
        is_possible = 0 < limit_s <= MAX_LIMIT_S
        _require(
            is_possible,
            "checkpoint.write_limit_s",
            limit_s,
            f"must be above 0, up to {MAX_LIMIT_S}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryConfig:
    mode: Literal["holdfast", "swift", "checkfreq", "commit", "global"] = "holdfast"
    """holdfast: only lost work is done again; the others are the published alternatives."""

    log: Literal["none", "boundary"] = "none"
    """boundary: tensors between stages are logged, so that a stage nobody holds is replayed."""

    log_budget: str = ""
    """Most that the logs of all workers take on disk, e.g. 2GB; empty: no limit."""

    log_dir: str = ""
    """Where each worker keeps its log; empty: in the run directory."""

    log_mirror: str = ""
    """A second directory that gets a copy of every log, e.g. on another disk; empty: none."""

    helpers: int = -1
    """Most survivors that take part in a replay; 0: the replacement alone; -1: all."""

    consistency: Literal["keep-old", "undo"] = "keep-old"
    """How a step is taken back: from a copy kept meanwhile, or by the optimizer's inverse."""

    commit_every: int = 1
    """Steps between two copies in memory, with recovery.mode=commit."""

    overhead: float = 0.035
    """Most that checkpoints may cost, as a share of a step, with recovery.mode=checkfreq."""

    def __post_init__(self) -> None:
        self.log_budget_bytes()
        _require(self.helpers >= -1, "recovery.helpers", self.helpers, "must be -1 (all) or more")
        every = self.commit_every
        _require(every >= 1, "recovery.commit_every", every, "must be at least 1")
        good = 0 < self.overhead <= 1
        _require(good, "recovery.overhead", self.overhead, "must be above 0 and at most 1")
        logs, wants = self.log == "boundary", self.mode in ("holdfast", "swift")
        if self.mode == "swift":
            _require(logs, "recovery.mode", self.mode, "needs recovery.log=boundary")
        _require(wants or not logs, "recovery.log", self.log, f"mode {self.mode} replays nothing")
        for name in ("log_budget", "log_dir", "log_mirror"):
            value = getattr(self, name)
            _require(logs or not value, f"recovery.{name}", value, "needs recovery.log=boundary")

    def log_budget_bytes(self) -> int | None:
        """None: no limit."""
        return parse_size("recovery.log_budget", self.log_budget) if self.log_budget else None


def parse_size(key: str, text: str) -> int:
    """``2GB`` -> bytes; units of ten, as disks are sold."""
    match = _SIZE.fullmatch(text.strip())
    _require(match is not None, key, text, "write a size as 500MB, 2GB or 1.5TB")
    assert match is not None
    num_bytes = int(float(match[1]) * _UNIT_BYTES[match[2]])
    _require(0 < num_bytes <= _MAX_BYTES, key, text, "must be above 0 and at most 1,000,000TB")
    return num_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    emulate: str = ""
    """``F=20ms,B=20ms,W=20ms``: operations take this long by sleeping, on a tiny stand-in model."""

    def __post_init__(self) -> None:
        self.durations_s()

    def durations_s(self) -> dict[str, float]:
        """Seconds of each kind of operation; empty when the device is real."""
        if not self.emulate:
            return {}
        found: dict[str, float] = {}
        for part in self.emulate.split(","):
            match = _DURATION.fullmatch(part.strip())
            _require(
                match is not None and match[1] in ("F", "B", "W", "BW", "R"),
                "device.emulate",
                self.emulate,
                f"cannot read {part.strip()!r}; write e.g. F=20ms,B=20ms,W=20ms (us, ms or s)",
            )
            assert match is not None
            found[match[1]] = float(match[2]) * _UNIT_S[match[3]]
            good = found[match[1]] <= MAX_LIMIT_S
            _require(good, "device.emulate", self.emulate, f"at most {MAX_LIMIT_S} s")
        missing = {"F", "B", "W"} - found.keys()
        _require(found.get("F") != 0, "device.emulate", self.emulate, "F must take some time")
        _require(not missing, "device.emulate", self.emulate, f"lacks {', '.join(sorted(missing))}")
        return {"BW": found["B"] + found["W"], "R": 0.0} | found


@dataclass(frozen=True, kw_only=True, slots=True)
class MitigationConfig:
    mode: Literal["holdfast", "observe", "off", "falcon"] = "holdfast"
    """What is done about a slow worker or link. observe: it is only named; off: nobody looks;
    falcon: the published way, whole pipelines get fewer or more micro-batches."""

    drop: bool = True
    """Whether a worker may be left out when that is the only thing that helps."""

    pays_within_steps: int = 20
    """A change that repays its cost within so many steps is made at once."""

    def __post_init__(self) -> None:
        steps = self.pays_within_steps
        _require(steps >= 1, "mitigation.pays_within_steps", steps, "must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserveConfig:
    operations: bool = True
    """Record the time of every operation in events.jsonl (needed by ``holdfast trace``)."""

    events_limit: str = "200MB"
    """Most that times of operations take on disk, e.g. 1GB: the oldest are dropped; empty: no
    limit. Other events are kept."""

    def __post_init__(self) -> None:
        self.events_limit_bytes()

    def events_limit_bytes(self) -> int | None:
        """None: no limit."""
        return parse_size("observe.events_limit", self.events_limit) if self.events_limit else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    gradients: GradientsConfig = field(default_factory=GradientsConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    stage: StageConfig = field(default_factory=StageConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    mitigation: MitigationConfig = field(default_factory=MitigationConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)

    def __post_init__(self) -> None:
        mode, restarts = self.recovery.mode, self.workers.restarts
        expected = f"must be at least 1: after a loss recovery.mode={mode} starts all workers again"
        needed = mode in ("global", "checkfreq")
        _require(restarts > 0 or not needed, "workers.restarts", restarts, expected)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def save_every(self) -> int:
        """Steps between checkpoints, unless the coordinator says otherwise; 0: none."""
        every = self.checkpoint.every_steps
        return every or (PROFILED_STEPS if self.recovery.mode == "checkfreq" else 0)

    @property
    def first_save(self) -> int:
        """The version that is saved early; 0: none. The mode checkfreq has its own rule."""
        wanted = self.checkpoint.every_steps and self.recovery.mode != "checkfreq"
        return self.checkpoint.first_step if wanted else 0


def known_keys() -> list[str]:
    return [f"{s.name}.{f.name}" for s in fields(RunConfig) for f in fields(_section(s.name))]


def config_from(values: Mapping[str, Any]) -> RunConfig:
    """A checked RunConfig from nested plain values, e.g. parsed TOML."""
    sections: dict[str, Any] = {}
    for name, section_values in values.items():
        if name not in {f.name for f in fields(RunConfig)}:
            raise ConfigError(f"{name}: unknown section; known are {', '.join(_section_names())}")
        if not isinstance(section_values, Mapping):
            raise ConfigError(
                f"{name}={section_values!r}: is a section; set {name}.<field> instead"
            )
        sections[name] = _build_section(name, section_values)
    return RunConfig(**sections)


def _section_names() -> list[str]:
    return [f.name for f in fields(RunConfig)]


def _section(name: str) -> type[Any]:
    section = get_type_hints(RunConfig)[name]
    assert is_dataclass(section)
    assert isinstance(section, type)
    return section


def _build_section(name: str, values: Mapping[str, Any]) -> object:
    section = _section(name)
    hints = get_type_hints(section)
    for key in values:
        if key not in hints:
            known = ", ".join(f"{name}.{field_name}" for field_name in hints)
            raise ConfigError(f"{name}.{key}: unknown setting; known are {known}")
    return section(**{key: typed(f"{name}.{key}", v, hints[key]) for key, v in values.items()})


def typed(key: str, value: object, hint: Any) -> object:
    """``value`` as ``hint`` wants it, or a ConfigError with key, value and what is expected."""
    if get_origin(hint) is Literal:
        _require(value in get_args(hint), key, value, f"must be {' or '.join(get_args(hint))}")
        return value
    if get_origin(hint) is tuple:
        good = isinstance(value, list | tuple) and all(type(item) is int for item in value)
        _require(good, key, value, "must be a list of whole numbers, e.g. [2, 4]")
        assert isinstance(value, list | tuple)
        return tuple(value)
    if hint is float and type(value) is int:
        return float(value)
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
    _require(type(value) is hint, key, repr(value), f"must be {wanted}")
    return value


def set_value(values: dict[str, Any], key: str, value: object) -> None:
    """Set ``section.field`` in nested plain values."""
    section, dot, name = key.partition(".")
    if not dot or not name:
        raise ConfigError(f"{key}: a setting is named section.field, e.g. optimizer.mode")
    inner = values.setdefault(section, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{section}={inner!r}: is a section; set {section}.<field> instead")
    inner[name] = value


def parse_assignment(text: str) -> tuple[str, object]:
    """``optimizer.mode=global`` -> ("optimizer.mode", "global"), the value typed by its key."""
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals:
        raise ConfigError(f"--set {text}: expected section.field=value")
    section, _, name = key.partition(".")
    if section not in _section_names() or name not in get_type_hints(_section(section)):
        raise ConfigError(f"{key}: unknown setting; known are {', '.join(known_keys())}")
    return key, _from_text(key, raw.strip(), get_type_hints(_section(section))[name])


def _from_text(key: str, raw: str, hint: Any) -> object:
    readers: dict[Any, Any] = {
        bool: lambda: {"true": True, "false": False}[raw.lower()],
        int: lambda: int(raw),
        float: lambda: float(raw),
        tuple: lambda: [int(part) for part in raw.strip("[]()").split(",") if part.strip()],
    }
    origin = get_origin(hint) or hint
    if origin not in readers:
        return raw
    try:
        return readers[origin]()
    except (ValueError, KeyError):
        return typed(key, raw, hint)
