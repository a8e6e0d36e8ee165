"""One series of logs of ratios over the steps, with its healthy level. Whose it is, and what a
change of it means, is not known here."""

from collections import deque
from statistics import median
from typing import NamedTuple

from holdfast.detection.change.changepoint import ChangeDetector, ChangeSettings

_NUM_KEPT = 64
_FAR = 0.05
_REFINE_AT = (16, 32)
NUM_LASTING = 8  # values that show a level to which no single change has led


class LevelChange(NamedTuple):
    """A shift of the series, seen from the healthy level."""

    onset: bool
    since: int  # step
    excess: float  # level after it, over the healthy one
    confidence: float
    how: str


class Series:
    def __init__(self, settings: ChangeSettings) -> None:
        self._settings = settings
        self._detector = ChangeDetector(settings)
        self._num = 0  # values since the detector began
        self._recent: deque[tuple[int, float]] = deque(maxlen=_NUM_KEPT)
        self.healthy: float = 0.0
        self._has_risen = False

    def update(self, step: int, value: float) -> LevelChange | None:
        self._num += 1
        self._recent.append((step, value))
        shift = self._detector.update(value)
        if shift is None:
            return None
        self._has_risen |= shift.onset
        if shift.onset and shift.before < self.healthy - _FAR:
            self.healthy = shift.before  # it had begun while the healthy level was learnt
        oldest = self._num - len(self._recent)
        since = self._recent[min(max(shift.began - oldest, 0), len(self._recent) - 1)][0]
        excess = shift.after - self.healthy
        return LevelChange(shift.onset, since, excess, shift.confidence, shift.how)

    def refine(self) -> None:
        """Healthy so far: with more values its healthy level is known better."""
        if self._num in _REFINE_AT and not self._has_risen:
            level = median(value for _, value in self._recent)
            if abs(level - self.healthy) < _FAR:  # else it is another level
                self.healthy = level

    def lift(self, by: float) -> None:
        """All values were this much too low: what they are compared with was wrong."""
        kept = [(step, value + by) for step, value in self._recent]
        self._detector = ChangeDetector(self._settings)
        self._num, self._has_risen = 0, False
        self._recent.clear()
        for step, value in kept:
            self.update(step, value)

    def recent(self) -> dict[int, float]:
        """Step -> value, of the newest steps."""
        return dict(self._recent)

    def excess_since(self, step: int, num_least: int = 1) -> float | None:
        """Median of the values from ``step`` on, over the healthy level."""
        values = [value for at, value in self._recent if at >= step]
        return median(values) - self.healthy if len(values) >= num_least else None

    def newest(self, num: int) -> float | None:
        """Median excess of the last ``num`` values; None with fewer."""
        if len(self._recent) < num:
            return None
        values = [value for _, value in list(self._recent)[-num:]]
        return median(values) - self.healthy

    def lasting(self, least: float) -> float | None:
        """Median excess of the last values, if nearly all of them are above ``least``."""
        values = sorted(value for _, value in list(self._recent)[-NUM_LASTING:])
        if len(values) < NUM_LASTING or values[1] - self.healthy < least:
            return None
        return median(values) - self.healthy

    def steady(self) -> float | None:
        """Median excess of the last 8 values, if the last 3 of them say the same."""
        longer, shorter = self.newest(8), self.newest(3)
        if longer is None or shorter is None or abs(longer - shorter) > _FAR:
            return None
        return longer
