"""How many of a stage's micro-batches each of its holders runs, so that the last is done soonest.

Exact, in whole micro-batches. Does not know stages, pipelines or the order of the work.
"""

from collections.abc import Sequence

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.errors import ConfigError

# n * unit_s in another order of rounding is the same time.
ROUNDING = 1e-9


def least_time(num_microbatches: int, unit_s: Sequence[float] | Floats) -> float:
    """The smallest T in which workers that need ``unit_s`` for one get ``num_microbatches`` done.

    That is the smallest T with sum of floor(T / unit_s) >= num_microbatches.
    """
    units_s = _checked(num_microbatches, unit_s)
    if num_microbatches == 0:
        return 0.0
    surely, _, ends_s = _last_ends(num_microbatches, units_s)
    missing = num_microbatches - int(surely.sum())
    return float(np.partition(ends_s, missing - 1)[missing - 1])


def shares(num_microbatches: int, unit_s: Sequence[float] | Floats) -> Ints:
    """Whole micro-batches a worker: none is busy longer than ``least_time``.

    One after the other goes to the worker that ends it first, on a tie to the first in the list.
    """
    units_s = _checked(num_microbatches, unit_s)
    if num_microbatches == 0:
        return np.zeros(len(units_s), np.int64)
    surely, who, ends_s = _last_ends(num_microbatches, units_s)
    missing = num_microbatches - int(surely.sum())
    # Ends that differ by rounding only are a tie: rank them by the list, not by the last bit.
    coarse = np.round(ends_s / ends_s.max() / ROUNDING)
    chosen = who[np.lexsort((who, coarse))[:missing]]
    return surely + np.bincount(chosen, minlength=len(units_s))


def _checked(num_microbatches: int, unit_s: Sequence[float] | Floats) -> Floats:
    units_s = np.asarray(unit_s, dtype=np.float64)
    if not len(units_s) or not np.all(np.isfinite(units_s) & (units_s > 0)):
        raise ConfigError(
            f"unit_s = {list(units_s[:8])}: expected a finite number > 0 for at least one worker"
        )
    if num_microbatches < 0:
        raise ConfigError(f"num_microbatches = {num_microbatches}: expected at least 0")
    return units_s


def _last_ends(num_microbatches: int, units_s: Floats) -> tuple[Ints, Ints, Floats]:
    """What everyone surely runs; then, for what may come after: by whom, and when it ends."""
    # If micro-batches could be cut all would end at this moment; whole ones end no sooner.
    level_s = num_microbatches / float(np.sum(1 / units_s))
    surely = np.floor(level_s / units_s * (1 - ROUNDING)).astype(np.int64)
    missing = num_microbatches - int(surely.sum())
    # One more for each of the `missing` workers that end it first is enough.
    next_s = (surely + 1) * units_s
    enough_s = np.partition(next_s, missing - 1)[missing - 1]
    more = np.floor(enough_s / units_s * (1 + ROUNDING)).astype(np.int64) - surely
    who = np.repeat(np.arange(len(units_s)), more)
    nth = np.arange(len(who)) - np.repeat(np.cumsum(more) - more, more) + 1
    return surely, who, (surely[who] + nth) * units_s[who]
