"""All sections together, and the rules between them."""

from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.config import operating, training
from holdfast.config.checks import require


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    job: training.JobConfig = field(default_factory=training.JobConfig)
    parallel: training.ParallelConfig = field(default_factory=training.ParallelConfig)
    train: training.TrainConfig = field(default_factory=training.TrainConfig)
    data: training.DataConfig = field(default_factory=training.DataConfig)
    validation: training.ValidationConfig = field(default_factory=training.ValidationConfig)
    optimizer: training.OptimizerConfig = field(default_factory=training.OptimizerConfig)
    gradients: training.GradientsConfig = field(default_factory=training.GradientsConfig)
    schedule: training.ScheduleConfig = field(default_factory=training.ScheduleConfig)
    stage: training.StageConfig = field(default_factory=training.StageConfig)
    workers: operating.WorkersConfig = field(default_factory=operating.WorkersConfig)
    control: operating.ControlConfig = field(default_factory=operating.ControlConfig)
    network: operating.NetworkConfig = field(default_factory=operating.NetworkConfig)
    machines: operating.MachinesConfig = field(default_factory=operating.MachinesConfig)
    checkpoint: operating.CheckpointConfig = field(default_factory=operating.CheckpointConfig)
    recovery: operating.RecoveryConfig = field(default_factory=operating.RecoveryConfig)
    device: training.DeviceConfig = field(default_factory=training.DeviceConfig)
    mitigation: operating.MitigationConfig = field(default_factory=operating.MitigationConfig)
    observe: operating.ObserveConfig = field(default_factory=operating.ObserveConfig)
    callbacks: operating.CallbacksConfig = field(default_factory=operating.CallbacksConfig)

    def __post_init__(self) -> None:
        mode, restarts = self.recovery.mode, self.workers.restarts
        expected = f"must be at least 1: after a loss recovery.mode={mode} starts all workers again"
        needed = mode in ("global", "checkfreq")
        require(restarts > 0 or not needed, "workers.restarts", restarts, expected)
        kind, spread = self.workers.kind, self.machines.count > 0
        expected = "must be processes: threads are of one machine, and machines.count is above 0"
        require(kind == "processes" or not spread, "workers.kind", kind, expected)
        weights, emulate = self.job.weights, self.device.emulate
        expected = "needs device.emulate to be empty: emulated devices train a stand-in"
        require(not weights or not emulate, "job.weights", weights, expected)
        profile = self.observe.profile
        expected = "needs workers.kind=processes: a process has one profiler"
        require(not profile or kind == "processes", "observe.profile", profile, expected)
        expected = "needs train.ema above 0: no average of the weights is kept"
        require(not self.validation.ema or self.train.ema > 0, "validation.ema", True, expected)
        standbys, journal = self.control.standbys, self.control.journal
        expected = "needs machines.count above 0: without agents nobody is left to take over"
        require(not standbys or spread, "control.standbys", standbys, expected)
        expected = "needs control.journal: a standby on another machine reads no run directory"
        require(not standbys or bool(journal), "control.standbys", standbys, expected)

    @property
    def num_workers(self) -> int:
        return self.parallel.pipelines * self.parallel.stages

    @property
    def is_gathered(self) -> bool:
        """Whether agents pass on what their workers tell again and again."""
        return self.num_workers >= self.workers.gathered_from

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
