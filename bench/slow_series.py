"""Synthetic iteration times of training jobs, healthy and slow, with the truth beside them.

Shapes and sizes follow what was published of large clusters: white jitter of 1 to 3 %, periodic
dips of one iteration, drops that last, ladders of small drops. It does not know any detector.

What is called a slowdown: at least 5 % of the speed lost for at least 40 iterations, or 15 % for
at least 8. A dip or outlier of a single iteration is none, nor is work that is known to be more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError

MIN_LOSS = 0.05  # of the speed; what counts as a slowdown if it lasts
NUM_START = 50  # iterations before anything happens
_NUM_END = 70  # quiet ones after the last relief
_NUM_LASTING = (40, 150)
_SMALL_LOSS = 0.15

Floats = NDArray[np.float64]


class SlowStretch(NamedTuple):
    """The truth: iterations ``begin`` to ``end`` (not included) are slow for one reason."""

    begin: int
    end: int
    loss: float  # of the speed at the worst, compared with the moment before it
    relieved: bool  # the series goes on after it


@dataclass(frozen=True, slots=True)
class Series:
    kind: str
    times_s: tuple[float, ...]
    predicted_s: tuple[float, ...]  # from the work of each iteration, as if all were healthy
    slow: tuple[SlowStretch, ...]
    noise: float  # coefficient of variation of the healthy time

    @property
    def residuals(self) -> tuple[float, ...]:
        """What a detector is fed: log(time / predicted time)."""
        pairs = zip(self.times_s, self.predicted_s, strict=True)
        return tuple(float(np.log(time_s / predicted_s)) for time_s, predicted_s in pairs)


class _Draft:
    """A series in the making: ``factor`` is time over healthy time, per iteration."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.factor: Floats = np.ones(NUM_START + int(rng.integers(0, 150)))
        self.work: Floats | None = None
        self.slow: list[SlowStretch] = []

    def lose(self, loss: float, num: int) -> None:
        """The next ``num`` iterations lose this much of the speed they would have had."""
        now = len(self.factor)
        self.factor = np.append(self.factor, np.full(num, 1 / (1 - loss)))
        self.slow.append(SlowStretch(now, now + num, loss, relieved=True))

    def rest(self, least: int = _NUM_END) -> None:
        num = least + int(self.rng.integers(0, 100))
        self.factor = np.append(self.factor, np.ones(num))

    def between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def count(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))


# --- healthy: nothing here may be called a slowdown ---


def _quiet(draft: _Draft) -> None:
    draft.rest(250)


def _dips(draft: _Draft) -> None:
    """Every so often one iteration runs at 0.8 of the speed (garbage collection, a save)."""
    draft.rest(250)
    period = draft.count(10, 60)
    draft.factor[draft.count(0, period - 1) :: period] *= 1 / draft.between(0.75, 0.85)


def _outliers(draft: _Draft) -> None:
    """Single iterations that take up to 50 times as long; never two in a row."""
    draft.rest(250)
    size = len(draft.factor)
    for at in draft.rng.choice(size // 3, draft.count(1, 12), replace=False):
        draft.factor[3 * at] *= 10 ** draft.between(0.05, 1.7)


def _warm_up(draft: _Draft) -> None:
    """The first iterations compile, allocate and fill caches."""
    draft.rest(250)
    num = draft.count(1, 4)
    draft.factor[:num] *= np.linspace(draft.between(2, 20), 1.3, num)


def _ragged(draft: _Draft) -> None:
    """The work varies by iteration, and for whole stretches, and is known."""
    draft.rest(250)
    _vary_work(draft)


def _vary_work(draft: _Draft) -> None:
    size = len(draft.factor)
    draft.work = draft.rng.lognormal(0, draft.between(0.05, 0.3), size)
    begin = draft.count(0, size - 1)
    draft.work[begin : begin + draft.count(10, 100)] *= draft.between(1.1, 2.0)
    draft.factor = draft.factor * draft.work


# --- slow ---


def _drop(draft: _Draft) -> None:
    """Small ones are as many as large ones: they are the hard ones."""
    low, high = (MIN_LOSS, _SMALL_LOSS) if draft.rng.random() < 0.5 else (_SMALL_LOSS, 0.5)
    draft.lose(draft.between(low, high), draft.count(*_NUM_LASTING))
    draft.rest()


def _two_drops(draft: _Draft) -> None:
    _drop(draft)
    _drop(draft)


def _burst(draft: _Draft) -> None:
    draft.lose(draft.between(0.15, 0.6), draft.count(8, 20))
    draft.rest()


def _severe(draft: _Draft) -> None:
    draft.lose(draft.between(0.6, 0.95), draft.count(8, 150))
    draft.rest()


def _ladder(draft: _Draft) -> None:
    """Two or three drops of 3 to 8 % that never recover: one slowdown, each drop too small."""
    begin, level = len(draft.factor), 1.0
    for _ in range(draft.count(2, 3)):
        level *= 1 - draft.between(0.03, 0.08)
        draft.factor = np.append(draft.factor, np.full(draft.count(40, 120), 1 / level))
    draft.slow.append(SlowStretch(begin, len(draft.factor), 1 - level, relieved=False))


def _compound(draft: _Draft) -> None:
    """A slow worker comes on top of a slow network, and goes first."""
    draft.lose(draft.between(0.2, 0.6), draft.count(120, 200))
    outer = draft.slow[0]
    begin = outer.begin + draft.count(30, 50)
    end = begin + draft.count(40, 60)
    loss = draft.between(0.15, 0.5)
    draft.factor[begin:end] /= 1 - loss
    draft.slow.append(SlowStretch(begin, end, loss, relieved=True))
    draft.rest()


def _ragged_drop(draft: _Draft) -> None:
    _drop(draft)
    _vary_work(draft)


HEALTHY: Mapping[str, Callable[[_Draft], None]] = MappingProxyType(
    {
        "quiet": _quiet,
        "dips": _dips,
        "outliers": _outliers,
        "warm-up": _warm_up,
        "ragged work": _ragged,
    }
)
SLOW: Mapping[str, Callable[[_Draft], None]] = MappingProxyType(
    {
        "drop": _drop,
        "two drops": _two_drops,
        "burst": _burst,
        "severe": _severe,
        "ladder": _ladder,
        "compound": _compound,
        "ragged drop": _ragged_drop,
    }
)
KINDS = MappingProxyType({**HEALTHY, **SLOW})


def slow_series(kind: str, seed: int) -> Series:
    """The same for the same arguments."""
    if kind not in KINDS:
        raise ConfigError(f"slow series: unknown kind {kind!r}; choose one of {', '.join(KINDS)}")
    if seed < 0:
        raise ConfigError(f"slow series: seed {seed} is below 0; give a whole number from 0 on")
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    draft = _Draft(rng)
    KINDS[kind](draft)
    if kind in SLOW and rng.random() < 0.3:
        _add_single_outliers(draft)
    noise = float(rng.uniform(0.01, 0.03))
    jitter = np.maximum(0.5, 1 + rng.normal(0, noise, len(draft.factor)))
    healthy_s = float(rng.uniform(0.05, 5))
    work = np.ones(len(draft.factor)) if draft.work is None else draft.work
    return Series(
        kind,
        tuple((healthy_s * draft.factor * jitter).tolist()),
        tuple((healthy_s * work).tolist()),
        tuple(draft.slow),
        noise,
    )


def _add_single_outliers(draft: _Draft) -> None:
    """Not within ten iterations of a change, where the truth would be open to debate."""
    edges = [edge for stretch in draft.slow for edge in stretch[:2]]
    for at in draft.rng.choice(len(draft.factor) // 3, draft.count(1, 6), replace=False) * 3:
        if all(abs(int(at) - edge) > 10 for edge in edges):
            draft.factor[at] *= draft.between(1.2, 3)
