"""What came of a job in a world under one policy: a timeline, and where the time went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from holdfast.baselines.policies.constants import ConstantRow


class TimeKind(StrEnum):
    EFFECTIVE = "effective"  # steps that count
    SAVING = "saving"  # all wait for a checkpoint
    REDONE = "redone"  # of a step in flight, or replayed
    ROLLED_BACK = "rolled back"  # steps that were lost with their result
    STALLED = "stalled"  # a change is made
    IDLE = "idle"  # too few workers for the policy


class Segment(NamedTuple):
    """``rate``: samples a second; 0 while nothing new is computed."""

    start_s: float
    end_s: float
    kind: TimeKind
    rate: float
    live: int


@dataclass(frozen=True, kw_only=True)
class PolicyOutcome:
    policy: str
    title: str
    length_s: float
    samples: float
    seconds: Mapping[TimeKind, float]  # all of the length
    segments: Sequence[Segment]
    num_changes: int
    worker_s: float  # rented, over the time
    gpus_a_worker: int
    fault_free_rate: float  # samples a second of this policy with nobody missing
    plain_rate: float  # of 1F1B with nobody missing
    mean_live: float
    num_workers: int
    reason: str = ""  # why it never ran, if so
    constants: tuple[ConstantRow, ...] = ()
    resolution: str = "intervals"  # or messages

    @property
    def rate(self) -> float:
        """Samples a second, on average."""
        return self.samples / self.length_s

    @property
    def goodput(self) -> float:
        """Of what the same policy does with nobody missing."""
        return self.rate / self.fault_free_rate if self.fault_free_rate else 0.0

    @property
    def fault_scaled_rate(self) -> float:
        """1F1B's with nobody missing, as if it went with the number of live workers."""
        return self.plain_rate * self.mean_live / self.num_workers

    def share(self, kind: TimeKind) -> float:
        return max(self.seconds[kind], 0.0) / self.length_s

    def cost_a_day(self, price_gpu_h: float) -> float:
        gpu_h = self.worker_s * self.gpus_a_worker / 3600
        return gpu_h * price_gpu_h / (self.length_s / 86400)

    def samples_for(self, price_gpu_h: float) -> float:
        """Samples for a unit of money; 0 if it costs nothing."""
        cost = self.worker_s * self.gpus_a_worker / 3600 * price_gpu_h
        return self.samples / cost if cost else 0.0
