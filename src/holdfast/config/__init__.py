"""Every setting of a run, typed and checked.

Knows names, types, defaults and limits; the launcher and the workers share it.
Does not know what they are used for.
A setting is named ``section.field`` in TOML files, in ``--set`` and in error messages.
"""

from holdfast.config.checks import (
    MAX_LIMIT_S,
    METRIC,
    parse_size,
)
from holdfast.config.operating import (
    MAX_THREADS,
    MOST_TIMEOUT_S,
    CheckpointConfig,
    ControlConfig,
    MitigationConfig,
    NetworkConfig,
    ObserveConfig,
    RecoveryConfig,
    WorkersConfig,
)
from holdfast.config.reading import (
    config_from,
    known_keys,
    known_settings,
    parse_assignment,
    set_value,
    typed,
)
from holdfast.config.run import RunConfig
from holdfast.config.training import (
    DEFAULT_MICROBATCHES,
    MAX_WORKERS,
    MOST_LOSS_SCALE,
    DataConfig,
    DeviceConfig,
    GradientsConfig,
    JobConfig,
    OptimizerConfig,
    ParallelConfig,
    ScheduleConfig,
    StageConfig,
    TrainConfig,
    ValidationConfig,
)

__all__ = [
    "DEFAULT_MICROBATCHES",
    "MAX_LIMIT_S",
    "MAX_THREADS",
    "MAX_WORKERS",
    "METRIC",
    "MOST_LOSS_SCALE",
    "MOST_TIMEOUT_S",
    "CheckpointConfig",
    "ControlConfig",
    "DataConfig",
    "DeviceConfig",
    "GradientsConfig",
    "JobConfig",
    "MitigationConfig",
    "NetworkConfig",
    "ObserveConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "RecoveryConfig",
    "RunConfig",
    "ScheduleConfig",
    "StageConfig",
    "TrainConfig",
    "ValidationConfig",
    "WorkersConfig",
    "config_from",
    "known_keys",
    "known_settings",
    "parse_assignment",
    "parse_size",
    "set_value",
    "typed",
]
