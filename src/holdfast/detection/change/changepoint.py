"""One series of times, value by value: did it change for good, when, and by how much?

Two eyes: a Bayesian one (bocd.py) for plain changes and a cumulative sum (cusum.py) for small or
creeping ones; what they see is checked with medians before it is told. Knows no worker, no unit
of time and no cause, and keeps nothing outside of itself.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import NamedTuple

from holdfast.arrays import Floats
from holdfast.detection.change.bocd import Bocd, Prior
from holdfast.detection.change.cusum import Cusum
from holdfast.errors import ConfigError

# Of the distances of normal values from their mean, in standard deviations: half of them are
# below the first, 85 % below the second.
_NORMAL_HALF, _NORMAL_WIDE, _WIDE = 0.6745, 1.4395, 0.85
_MOST = 100.0  # no logarithm of a ratio of times is larger


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """Values are logs of ratios: 0.01 is about one percent."""

    prior: Prior = field(default_factory=Prior)
    certainty: float = 0.9  # of the posterior, that a change was a few values ago
    min_change: float = math.log(1.1)  # of one change seen by the Bayesian eye
    min_sum_change: float = math.log(1.04)  # of what the cumulative sum sees
    min_before: int = 6  # values of the very first regime before any change is told
    min_after: int = 3  # values after a change; two outliers in a row are no change
    max_after: int = 24  # a change longer ago than this is for the cumulative sum
    min_deviations: float = 6.0  # of the difference of medians, in standard errors
    sum_limit: float = 10.0  # noise deviations at which a cumulative sum is looked at
    sum_min_after: int = 4
    sum_min_before: int = 10
    num_reference: int = 48  # the regime's first values, which are its level and noise
    num_recent: int = 64  # values that are kept of the present
    least_noise: float = 0.003
    min_memory: int = 16  # values of a regime from which its memory is measured ...
    believed_memory: float = 1.3  # ... and what it is taken for until then
    small_sample: float = 1.0  # how much more careful with few values before a change
    num_settled: int = 12  # values after a shift by which its level is at rest
    noise_weight: int = 4  # how many values the belief in the noise is worth


class Shift(NamedTuple):
    onset: bool  # True: slower than before; False: faster (relief)
    began: int  # index of the first value after the change
    before: float  # level before it, as given: log of a ratio
    after: float
    confidence: float  # 0..1
    how: str  # "change point" | "cumulative sum"


class ChangeDetector:
    """Feed it ``log(time / predicted time)``; it tells shifts of the level, both ways."""

    def __init__(self, settings: ChangeSettings | None = None) -> None:
        self._settings = settings or ChangeSettings()
        self._bocd = Bocd(self._settings.prior)
        self._cusum = Cusum()
        self._num_values = 0
        self._recent: deque[float] = deque(maxlen=self._settings.num_recent)
        self._told_level: float | None = None  # of the last shift
        self._noise = self._believed_noise = self._settings.prior.noise
        self._memory = self._settings.believed_memory
        self._begin_regime(0)

    @property
    def level(self) -> float:
        """Of the present regime; 0 before the first value."""
        newest = self._newest(min(self._count, len(self._recent)))
        return median(newest) if newest else 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the present regime's values about their level."""
        return self._noise

    def update(self, value: float) -> Shift | None:
        if not abs(value) <= _MOST:  # also refuses what is no number
            raise ConfigError(
                f"change detector: value {self._num_values} is {value}; expected the logarithm of "
                f"a time over its prediction, within {_MOST:g} of 0: give times above 0 only"
            )
        if self._num_values == 0:
            self._bocd.centre = value
        self._num_values += 1
        self._recent.append(value)
        self._learn(value)
        shift = (
            self._plain_change(self._bocd.update(value))
            or self._creeping_change()
            or self._unfinished_change()
        )
        if shift:
            self._told_level = shift.after
            self._keep_noise(self._num_values - shift.began)
            self._begin_regime(self._num_values - shift.began)
        return shift

    # --- the present regime ---

    def _begin_regime(self, num_values: int) -> None:
        """The newest ``num_values`` are its first; its noise is expected to be as before."""
        self._count = num_values
        self._first = self._newest(min(num_values, len(self._recent)))
        del self._first[self._settings.num_reference :]
        self._cusum.restart()
        self._measure()

    def _keep_noise(self, num_after: int) -> None:
        """Of the regime that ended ``num_after`` values ago: the next one starts from it."""
        values = self._first[: self._count - num_after]
        self._memory = self._memory_of(values)
        self._believed_noise = self._level_and_noise(values)[1]

    def _learn(self, value: float) -> None:
        self._count += 1
        if len(self._first) < self._settings.num_reference:
            self._first.append(value)
            self._measure()
        if self._count > self._settings.sum_min_before:
            slack = max(self._noise, self._settings.min_sum_change) / 2
            limit = self._sum_limit
            self._cusum.update(value - self._reference, slack, slack + limit / 3, 2 * limit)

    def _measure(self) -> None:
        self._reference, self._noise = self._level_and_noise(self._first)
        self._sum_limit = self._settings.sum_limit * self._noise
        if self._first:
            self._bocd.centre = self._reference

    def _level_and_noise(self, values: Sequence[float]) -> tuple[float, float]:
        if not values:
            return 0.0, self._believed_noise
        weight = self._settings.noise_weight
        level = median(values)
        squares = len(values) * spread(values, level) ** 2 + weight * self._believed_noise**2
        return level, max(self._settings.least_noise, math.sqrt(squares / (len(values) + weight)))

    def _memory_of(self, values: Sequence[float]) -> float:
        return memory(values) if len(values) >= self._settings.min_memory else self._memory

    def _newest(self, num: int) -> list[float]:
        return list(islice(self._recent, len(self._recent) - num, None))

    def _noise_until(self, num_after: int) -> float:
        """Of the values before the newest, all and the last: it may have grown of late."""
        num = min(self._count, len(self._recent))
        values = self._newest(num)[: num - num_after]
        if len(values) < self._settings.min_memory:
            return 0.0
        last = values[-self._settings.min_memory :]
        return max(spread(values, median(values)), spread(last, median(last)))

    # --- the eyes ---

    def _plain_change(self, run_odds: Floats) -> Shift | None:
        settings = self._settings
        window = run_odds[settings.min_after : settings.max_after + 1]
        certainty = float(window.sum())
        if certainty < settings.certainty:
            return None
        num_after = settings.min_after + int(window.argmax())
        num_before = self._count - num_after
        if self._told_level is None and num_before < settings.min_before:
            if num_before > 0:  # what came before was the start, not the normal state
                self._begin_regime(num_after)
            return None
        if num_before < settings.min_after:
            return None
        return self._checked(num_after, settings.min_change, "change point", certainty)

    def _creeping_change(self) -> Shift | None:
        """Of all values since the sum was zero, or, for a ladder, of the newest of them."""
        settings, cusum = self._settings, self._cusum
        if max(cusum.up, cusum.down) < self._sum_limit:
            return None
        num_away = cusum.num_up if cusum.up >= cusum.down else cusum.num_down
        for most in (settings.num_recent, settings.max_after):
            num = min(num_away, most)
            if num >= settings.sum_min_after and self._count - num >= settings.sum_min_before:
                shift = self._checked(num, settings.min_sum_change, "cumulative sum", 1.0)
                if shift:
                    return shift
        return None

    def _unfinished_change(self) -> Shift | None:
        """The last shift was told while the level still moved: tell where it came to rest."""
        settings, told = self._settings, self._told_level
        if told is None or self._count != settings.num_settled:
            return None
        num_after = settings.num_settled // 2
        after = median(self._newest(num_after))
        error = self._believed_noise * self._memory
        error *= math.sqrt(1 / num_after + 1 / settings.min_after)
        change = abs(after - told)
        if change < settings.min_change or change < settings.min_deviations * error:
            return None
        confidence = math.erf(change / error / 2)
        began = self._num_values - num_after
        return Shift(after > told, began, told, after, confidence, "change point")

    def _checked(self, num_after: int, least: float, how: str, certainty: float) -> Shift | None:
        """What both eyes must show: medians that differ by more than matters, and than noise."""
        num_before = self._count - num_after
        old = self._first[:num_before]
        before, noise = self._level_and_noise(old)
        values = self._newest(num_after)
        after = median(values)
        noise = max(noise, spread(values, after), self._noise_until(num_after))
        error = noise * math.sqrt(1 / num_after + 1 / len(old))
        error *= self._memory_of(old) * (1 + self._settings.small_sample / num_before)
        change = abs(after - before)
        if change < least or change < self._settings.min_deviations * error:
            return None
        confidence = min(certainty, math.erf(change / error / 2))
        return Shift(after > before, self._num_values - num_after, before, after, confidence, how)


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def spread(values: Sequence[float], level: float) -> float:
    """Standard deviation, as if normal, that one outlier in seven does not change.

    The larger of two estimates: heavy tails are wider than their middle tells.
    """
    away = sorted([abs(value - level) for value in values])
    return max(median(away) / _NORMAL_HALF, away[int(_WIDE * (len(away) - 1))] / _NORMAL_WIDE)


def memory(values: Sequence[float]) -> float:
    """How much larger the error of a mean is, because a value resembles the one before it."""
    level = median(values)
    most = 3 * spread(values, level)
    away = [max(-most, min(most, value - level)) for value in values]
    square = sum([a * a for a in away])
    if square == 0:
        return 1.0
    likeness = sum([a * b for a, b in pairwise(away)]) / square
    likeness = max(0.0, min(0.8, likeness))
    return math.sqrt((1 + likeness) / (1 - likeness))
