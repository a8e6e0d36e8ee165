"""Steps that are done, and what would be lost if all went back to the checkpoint."""

from dataclasses import dataclass, field
from math import floor

from holdfast.baselines.policies.policy import Saving
from holdfast.simulator.intervals.outcome import Segment, TimeKind
from holdfast.simulator.intervals.under_way import Doing

_ROUNDING = 1e-9


@dataclass
class Progress:
    samples_a_step: float
    steps: float = 0.0
    saved: float = 0.0
    since_saved_s: float = 0.0  # effective seconds
    seconds: dict[TimeKind, float] = field(default_factory=lambda: dict.fromkeys(TimeKind, 0.0))
    segments: list[Segment] = field(default_factory=list)

    @property
    def unsaved(self) -> float:
        """Steps."""
        return max(self.steps - self.saved, 0.0)

    @property
    def begun(self) -> float:
        """How much of the step in flight is done, as a share of it."""
        return max(self.steps - floor(self.steps + _ROUNDING), 0.0)

    def spend(self, at_s: float, seconds: float, part: Doing, saving: Saving, live: int) -> None:
        if seconds <= 0:
            return
        rate = 0.0
        if part.kind is TimeKind.EFFECTIVE:
            rate = self._train(seconds, part.period_s, saving)
        else:
            self.seconds[part.kind] += seconds
        self.segments.append(Segment(at_s, at_s + seconds, part.kind, rate, live))

    def _train(self, seconds: float, period_s: float, saving: Saving) -> float:
        step_s = period_s + saving.step_s()
        self.steps += seconds / step_s
        effective_s = seconds * period_s / step_s
        self.seconds[TimeKind.EFFECTIVE] += effective_s
        self.seconds[TimeKind.SAVING] += seconds - effective_s
        self.since_saved_s += effective_s
        every = saving.every_steps
        last = floor(self.steps / every + _ROUNDING) * every if every else 0
        if last > self.saved:
            self.saved = last
            self.since_saved_s = self.unsaved * period_s
        return self.samples_a_step / step_s

    def lose_step(self, period_s: float) -> None:
        """What was done of the step in flight is done again."""
        fraction = self.begun
        if not fraction:
            return
        self.steps -= fraction
        self._take_back(min(fraction * period_s, self.since_saved_s), TimeKind.REDONE)

    def roll_back(self) -> None:
        self.steps = min(self.steps, self.saved)
        self._take_back(self.since_saved_s, TimeKind.ROLLED_BACK)

    def _take_back(self, seconds: float, kind: TimeKind) -> None:
        self.seconds[TimeKind.EFFECTIVE] -= seconds
        self.seconds[kind] += seconds
        self.since_saved_s -= seconds
