"""How long it takes to get a lost stage back: from the log, as SWIFT has it, or by a restart.

A model of seconds and bytes. Does not know which boundaries are worth logging, nor who is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil, inf, isfinite

import numpy as np

from holdfast.arrays import Floats
from holdfast.errors import ConfigError

_MOST_BYTES = 1 << 60  # beyond, sums would leave 64 bits
_PER_STAGE = ("forward_s", "backward_s", "state_bytes", "reduced_bytes", "weights")
_PER_BOUNDARY = ("activation_bytes", "gradient_bytes")


@dataclass(frozen=True, kw_only=True)
class ReplayCosts:
    """One entry a stage, or a boundary (boundary b is the one after stage b); bytes are of one
    step."""

    forward_s: tuple[float, ...]  # of a micro-batch
    backward_s: tuple[float, ...]  # B and W together
    activation_bytes: tuple[int, ...]  # over a boundary, to the next stage
    gradient_bytes: tuple[int, ...]  # over a boundary, to the stage before
    num_microbatches: int
    num_helpers: int  # workers that replay together, each its share of the micro-batches
    interval_steps: int  # from checkpoint to checkpoint: so much is logged before it is trimmed
    lost_steps: float  # since the checkpoint, when somebody is lost
    log_bytes_per_s: float  # all helpers together read the log at this rate
    disk_bytes_per_s: float  # for checkpoints
    state_bytes: tuple[int, ...] = ()  # of a stage in a checkpoint; empty: nothing to load
    reduced_bytes: tuple[int, ...] = ()  # weight gradients that the helpers sum; empty: free
    network_bytes_per_s: float = inf  # between helpers
    fixed_s: float = 0.0  # notice, stop, plan, build
    restart_s: float = 0.0  # of a global restart, until the first step begins
    step_s: float = 0.0  # of training, all stages; 0: what the stages' times give
    weights: tuple[float, ...] = ()  # how likely each stage is the lost one; empty: all alike

    def __post_init__(self) -> None:
        self._fill("state_bytes", 0)
        self._fill("reduced_bytes", 0)
        self._fill("weights", 1.0)
        self._check_lengths()
        for field in fields(self):
            self._check_numbers(field.name)
        for name in ("num_microbatches", "num_helpers", "interval_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected at least 1")
        for name in ("log_bytes_per_s", "disk_bytes_per_s", "network_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a number > 0")
        if not sum(self.weights) > 0:
            raise ConfigError(f"weights = {self.weights}: expected one of them above 0")
        if self.interval_steps * sum(self.activation_bytes + self.gradient_bytes) > _MOST_BYTES:
            raise ConfigError(
                f"all boundaries take more than {_MOST_BYTES:.2g} bytes in {self.interval_steps} "
                "steps: expected less; check the bytes of a boundary"
            )

    def _fill(self, name: str, value: float) -> None:
        if not getattr(self, name):
            object.__setattr__(self, name, (value,) * self.num_stages)

    def _check_lengths(self) -> None:
        if not self.forward_s:
            raise ConfigError("forward_s is empty: expected at least one stage")
        for names, wanted in ((_PER_STAGE, self.num_stages), (_PER_BOUNDARY, self.num_stages - 1)):
            for name in names:
                if len(getattr(self, name)) != wanted:
                    raise ConfigError(
                        f"{name} has {len(getattr(self, name))} entries: expected {wanted} "
                        f"for {self.num_stages} stages"
                    )

    def _check_numbers(self, name: str) -> None:
        value = getattr(self, name)
        for number in value if isinstance(value, tuple) else (value,):
            if not number >= 0 or (not isfinite(number) and name != "network_bytes_per_s"):
                raise ConfigError(f"{name} = {number}: expected a finite number >= 0")

    @property
    def num_stages(self) -> int:
        return len(self.forward_s)

    @property
    def work_s(self) -> tuple[float, ...]:
        """Of a micro-batch at each stage, forward and backward."""
        return tuple(f + b for f, b in zip(self.forward_s, self.backward_s, strict=True))

    @property
    def boundary_bytes(self) -> tuple[int, ...]:
        """What logging a boundary takes, from one checkpoint to the next, both directions."""
        pairs = zip(self.activation_bytes, self.gradient_bytes, strict=True)
        return tuple(self.interval_steps * (a + g) for a, g in pairs)

    @property
    def likely(self) -> tuple[float, ...]:
        """The weights, with sum 1."""
        total = sum(self.weights)
        return tuple(weight / total for weight in self.weights)

    @cached_property
    def times(self) -> "RecoveryTimes":
        return _times(self)


@dataclass(frozen=True)
class RecoveryTimes:
    """Seconds for every run of neighbours that could be a group: row first, column last stage."""

    replay_s: Floats  # until the group's stages are as they were
    hand_over_s: Floats  # of one stage: the helpers write its state, its new holder loads it
    restart_s: float  # everyone goes back: what the group of all stages means

    def lost_s(self, first: int, last: int, stage: int) -> float:
        """From the loss of ``stage`` in the group first..last until training goes on."""
        if first == 0 and last == len(self.hand_over_s) - 1:
            return self.restart_s
        return float(self.replay_s[first, last] + self.hand_over_s[stage])


def _times(costs: ReplayCosts) -> RecoveryTimes:
    rounds = ceil(costs.num_microbatches / costs.num_helpers)
    reduction = 2 * (costs.num_helpers - 1) / costs.num_helpers / costs.network_bytes_per_s
    # Nobody sends to the first stage, nor back to the last: their inputs are data and losses.
    activations = np.array([0, *costs.activation_bytes], np.float64)[:, None]
    gradients = np.array([*costs.gradient_bytes, 0], np.float64)[None, :]
    step_s = (
        rounds * _span(costs.work_s)
        + reduction * _span(costs.reduced_bytes)
        + (activations + gradients) / costs.log_bytes_per_s
    )
    load_s = _span(costs.state_bytes) / costs.disk_bytes_per_s
    return RecoveryTimes(
        replay_s=costs.fixed_s + load_s + costs.lost_steps * step_s,
        hand_over_s=2 * np.array(costs.state_bytes, np.float64) / costs.disk_bytes_per_s,
        restart_s=global_restart_s(costs),
    )


def _span(values: Sequence[float]) -> Floats:
    """Sums over first..last, for every first (row) and last (column)."""
    edges = np.concatenate([[0.0], np.cumsum(np.array(values, np.float64))])
    sums: Floats = edges[None, 1:] - edges[:-1, None]
    return sums


def training_step_s(costs: ReplayCosts) -> float:
    """As given; else one pipeline's: through all stages once, then at the slowest one's pace."""
    if costs.step_s:
        return costs.step_s
    return sum(costs.work_s) + (costs.num_microbatches - 1) * max(costs.work_s)


def global_restart_s(costs: ReplayCosts) -> float:
    """Every worker starts again and all of the lost steps are trained once more."""
    return costs.restart_s + costs.lost_steps * training_step_s(costs)


def swift_replay_s(
    *,
    lost_steps: float,
    step_s: float,
    num_microbatches: int,
    num_helpers: int,
    num_replayed: int,
    num_stages: int,
) -> float:
    """SWIFT's own model: the replayed stages run as a shorter pipeline, nothing else takes time."""
    slots = num_microbatches / num_helpers + num_replayed - 1
    return lost_steps * step_s * slots / (num_microbatches + num_stages - 1)
