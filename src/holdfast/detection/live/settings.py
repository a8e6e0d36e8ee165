"""All limits of the watcher in one place, each with its reason. No logic."""

import math
from dataclasses import dataclass, field

from holdfast.detection.change import changepoint
from holdfast.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    validate: bool = True
    """Suspects are measured by benchmarks before anything is said of them."""

    num_warmup_steps: int = 2
    """First steps that are not counted: compilers, caches and allocators warm up."""

    num_learn_steps: int = 8
    """Steps after these from which the healthy times are learnt."""

    slow_factor: float = 1.1
    """Below it nothing is diagnosed. FALCON's limit between jitter and slowness."""

    relief_factor: float = 1.07
    """Below it a slow one is healthy again. Less than ``slow_factor``, so that it cannot flap."""

    obvious_factor: float = 1.8
    """No benchmark can acquit of this: it may have been measured in a bad moment."""

    start_factor: float = 1.25
    """Slower than the other holders of its stage by this from the first step on."""

    confirmed_share: float = 0.5
    """A benchmark confirms if it shows this share of the suspected slowness, both as logs."""

    num_patience_steps: int = 4
    """Steps to wait for a benchmark's result; then what is known must do."""

    num_retry_steps: int = 5
    """Until a suspect that its benchmark acquitted is suspected again; doubled each time."""

    num_refusals: int = 3
    """So often acquitted and still slow: told all the same, with less confidence."""

    num_recheck_steps: int = 10
    """A slow one that has no work is measured this often; doubled up to 4 times this."""

    link_floor: float = 0.25
    """Share of the median operation: transfers shorter than this are noise."""

    imbalance_factor: float = 1.15
    """A stage longer than the others by this is told as the model's imbalance."""

    num_imbalance_steps: int = 12
    """Steps from which imbalance is judged."""

    change: changepoint.ChangeSettings = field(default_factory=changepoint.ChangeSettings)

    def __post_init__(self) -> None:
        if not 1.0 < self.relief_factor < self.slow_factor:
            raise ConfigError(
                f"detection: relief_factor={self.relief_factor}, slow_factor={self.slow_factor}: "
                "expected 1 < relief_factor < slow_factor; otherwise it flaps"
            )
        if self.num_learn_steps < 3:
            raise ConfigError(
                f"detection: num_learn_steps={self.num_learn_steps}: expected at least 3; "
                "fewer steps do not show what is normal"
            )

    @property
    def slow(self) -> float:
        return math.log(self.slow_factor)

    @property
    def relief(self) -> float:
        return math.log(self.relief_factor)

    @property
    def start(self) -> float:
        return math.log(self.start_factor)
