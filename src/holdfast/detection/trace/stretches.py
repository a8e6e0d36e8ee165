"""Middles that ignore gaps, and stretches of steps in which a series stays above its usual level.

Knows numbers only: whose series it is, and what is to be made of it, is not known here.
"""

import math
from typing import NamedTuple

import numpy as np

from holdfast.arrays import Floats

LEAST_FACTOR = 1.1  # smaller changes of speed are everyday noise
_LEAST_STEPS = 3
_SURE = 6.0  # standard errors; there are many series, and their tails are long
_MOST_RUNS = 3
_LARGE_CHANGE = 1.645 * 2**0.5  # 9 of 10 are below, in standard deviations of normal noise
_MIDDLE_CHANGE = 0.6745 * 2**0.5  # half are below
_LEAST_NOISE = 1e-3


class RaisedStretch(NamedTuple):
    first: int  # index of a step
    last: int
    level: float  # log of the factor


def middle(values: Floats, axis: int | tuple[int, ...], *, lower: bool = False) -> Floats:
    """Median without the NaN; NaN where there is nothing else. ``lower``: of an even number of
    values the lower of the two in the middle, so that one healthy peer of two is the usual."""
    axes = (axis,) if isinstance(axis, int) else axis
    kept = [each for each in range(values.ndim) if each not in {a % values.ndim for a in axes}]
    shape = [values.shape[each] for each in kept]
    flat = np.moveaxis(values, kept, range(len(kept))).reshape(*shape, -1)
    ordered = np.sort(flat, axis=-1)  # NaN go last
    count = (~np.isnan(ordered)).sum(axis=-1, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=-1)
    high = low if lower else np.take_along_axis(ordered, np.minimum(count // 2, _top(ordered)), -1)
    return np.asarray((low + high)[..., 0] / 2)


def _top(ordered: Floats) -> int:
    return int(ordered.shape[-1]) - 1


def noise_of(series: Floats) -> float:
    """Standard deviation of many series (axis 0: steps) around whatever level each is at.

    From one step to the next, so that a slow worker is not taken for noise; from the large
    changes among these, because tails are long.
    """
    if len(series) < 2:  # there is only one worker to the next
        return _noise(np.diff(series.ravel()), 0.5, _MIDDLE_CHANGE)
    return _noise(np.diff(series, axis=0), 0.9, _LARGE_CHANGE)


def _noise(changes: Floats, share: float, of_normal: float) -> float:
    seen = np.abs(changes[~np.isnan(changes)])
    return max(float(np.quantile(seen, share)) / of_normal, _LEAST_NOISE) if len(seen) else 1.0


def runs(series: Floats, noise: float) -> list[RaisedStretch]:
    """Stretches of steps that are slow, surely and by enough; the clearest first."""
    left, found = np.where(np.isnan(series), 0.0, series), []
    for _ in range(_MOST_RUNS):
        first, last = _highest(left - np.log(LEAST_FACTOR) / 2)
        # Again from half the height found: the edges are where the level is halfway.
        first, last = _highest(left - max(float(left[first : last + 1].mean()), 0.0) / 2)
        run = RaisedStretch(first, last, float(np.median(left[first : last + 1])))
        if not _holds(left[first : last + 1], len(series), noise):
            break
        found.append(run)
        left[first : last + 1] = -np.inf if len(series) > last + 1 - first else 0.0
    return found


def _holds(values: Floats, num_steps: int, noise: float) -> bool:
    if not np.isfinite(values).all() or len(values) < min(_LEAST_STEPS, num_steps):
        return False
    level = float(np.median(values))
    sure = level * math.sqrt(len(values)) >= _SURE * noise
    return sure and level >= math.log(LEAST_FACTOR)


def _highest(values: Floats) -> tuple[int, int]:
    """First and last index of the stretch with the largest sum."""
    total = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(values), values, -1e9))])
    lowest = np.minimum.accumulate(total[:-1])
    last = int(np.argmax(total[1:] - lowest))
    first = int(np.argmin(total[: last + 1]))
    return first, last
