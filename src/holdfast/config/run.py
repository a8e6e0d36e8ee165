"""All sections together, and the rules between them."""

from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.config.checks import require
from holdfast.config.operating import (
    CheckpointConfig,
    ControlConfig,
    MitigationConfig,
    ObserveConfig,
    RecoveryConfig,
    WorkersConfig,
)
from holdfast.config.training import (
    DataConfig,
    DeviceConfig,
    GradientsConfig,
    OptimizerConfig,
    ParallelConfig,
    ScheduleConfig,
    StageConfig,
    TrainConfig,
)

PROFILED_STEPS = 100  # before the first checkpoint of recovery.mode=checkfreq, if not set


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
        require(restarts > 0 or not needed, "workers.restarts", restarts, expected)

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
