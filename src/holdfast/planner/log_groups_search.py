"""The partition of a row into runs that costs least while the cuts fit into a budget.

Exact: Pareto fronts of (bytes, cost) over prefixes, cut down by the best price for a byte. Knows
neither stages nor logs: numbers in, cuts out. Costs are whole numbers, so that sums are exact.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.planner.replay_time import Floats, Ints

MOST_POINTS = 200_000
_MOST_PRICES = 200


class Found(NamedTuple):
    cuts: tuple[int, ...]  # cut b is after place b
    proven: bool
    bound: float  # no partition within the budget costs less


class _Partition(NamedTuple):
    cuts: tuple[int, ...]
    num_bytes: int
    cost: float


class _Relaxed(NamedTuple):
    """Cuts may be bought at a price a byte instead of being limited."""

    price: float
    ahead: Floats  # from place i on: least cost and price of the rest
    best: _Partition

    def bound(self, budget: int) -> float:
        return float(self.ahead[0]) - self.price * budget


class _Front(NamedTuple):
    """Ways to cut up a prefix, none of which is both smaller and cheaper than another."""

    num_bytes: Ints
    cost: Floats
    start: Ints  # of its last run, and which point of the front there it continues
    point: Ints


def search(cost: Floats, cut_bytes: Ints, budget: int, most_points: int = MOST_POINTS) -> Found:
    """``cost[first, last]`` of a run in whole numbers; of equal costs the fewest bytes win.

    Costs are equal that differ by no more than 1 a place: that is rounding.
    """
    relaxed, known = _priced(cost, cut_bytes, budget)
    # What cannot end below the known cost is dropped; prices are not whole, so leave some room.
    room = known.cost + len(cost) + 1 + 1e-9 * (known.cost + relaxed.price * budget)
    fronts = [_Front(np.zeros(1, np.int64), np.zeros(1), *np.zeros((2, 1), np.int64))]
    whole = True
    for end in range(1, len(cost) + 1):
        front = _extend(fronts, cost, cut_bytes)
        front = _kept(front, front.num_bytes <= budget)
        priced = front.cost + relaxed.price * (front.num_bytes - budget) + relaxed.ahead[end]
        front = _pareto(_kept(front, priced <= room))
        if len(front.cost) > most_points:
            whole = False
            priced = front.cost + relaxed.price * front.num_bytes
            front = _kept(front, np.sort(np.argpartition(priced, most_points)[:most_points]))
        fronts.append(front)
    best = _read(fronts)
    if whole:
        return Found(best.cuts, True, best.cost)
    best = min(best, known, key=lambda way: way.cost)
    return Found(best.cuts, False, relaxed.bound(budget))


def _priced(cost: Floats, cut_bytes: Ints, budget: int) -> tuple[_Relaxed, _Partition]:
    """The price with the highest bound, and the best partition within the budget on the way.

    Between one partition that is too big and one that fits, the price at which both cost the same
    shows whether a third beats them.
    """
    relaxed = _relax(cost, cut_bytes, 0.0)
    fits, too_big = _Partition((), 0, float(cost[0, -1])), relaxed.best
    if too_big.num_bytes <= budget:
        return relaxed, too_big
    for _ in range(_MOST_PRICES):
        price = (fits.cost - too_big.cost) / (too_big.num_bytes - fits.num_bytes)
        relaxed = _relax(cost, cut_bytes, price)
        third = relaxed.best
        if third in (fits, too_big) or relaxed.ahead[0] >= fits.cost + price * fits.num_bytes - 0.5:
            break
        fits, too_big = (third, too_big) if third.num_bytes <= budget else (fits, third)
    return relaxed, fits


def _relax(cost: Floats, cut_bytes: Ints, price: float) -> _Relaxed:
    num_places = len(cost)
    toll = np.append(price * cut_bytes, 0.0)
    ahead = np.zeros(num_places + 1)
    last = np.zeros(num_places, np.int64)
    for first in reversed(range(num_places)):
        options = cost[first, first:] + toll[first:] + ahead[first + 1 :]
        last[first] = first + int(np.argmin(options))
        ahead[first] = options[last[first] - first]
    cuts, place = [], int(last[0])
    while place < num_places - 1:
        cuts.append(place)
        place = int(last[place + 1])
    return _Relaxed(price, ahead, _partition(cost, cut_bytes, cuts))


def _partition(cost: Floats, cut_bytes: Ints, cuts: list[int]) -> _Partition:
    firsts, lasts = [0, *(cut + 1 for cut in cuts)], [*cuts, len(cost) - 1]
    num_bytes = int(cut_bytes[cuts].sum()) if cuts else 0
    return _Partition(tuple(cuts), num_bytes, float(cost[firsts, lasts].sum()))


def _extend(fronts: list[_Front], cost: Floats, cut_bytes: Ints) -> _Front:
    """All ways to cut up the next longer prefix: each shorter one, and one run more."""
    end = len(fronts)
    more = int(cut_bytes[end - 1]) if end < len(cost) else 0
    return _Front(
        np.concatenate([front.num_bytes for front in fronts]) + more,
        np.concatenate([front.cost + cost[at, end - 1] for at, front in enumerate(fronts)]),
        np.concatenate([np.full(len(front.cost), at) for at, front in enumerate(fronts)]),
        np.concatenate([np.arange(len(front.cost)) for front in fronts]),
    )


def _kept(front: _Front, chosen: NDArray[np.bool_] | Ints) -> _Front:
    return _Front(
        front.num_bytes[chosen], front.cost[chosen], front.start[chosen], front.point[chosen]
    )


def _pareto(front: _Front) -> _Front:
    front = _kept(front, np.lexsort((front.cost, front.num_bytes)))
    best_before = np.minimum.accumulate(np.append(np.inf, front.cost))[:-1]
    return _kept(front, front.cost < best_before)


def _read(fronts: list[_Front]) -> _Partition:
    """Of the last front the smallest that is as cheap as any; each run's cost was rounded."""
    front = fronts[-1]
    if not len(front.cost):
        return _Partition((), 0, np.inf)
    point = int(np.argmax(front.cost <= front.cost[-1] + len(fronts) - 1))
    num_bytes, cost = int(front.num_bytes[point]), float(front.cost[point])
    cuts: list[int] = []
    while True:
        start, point = int(front.start[point]), int(front.point[point])
        if start == 0:
            return _Partition(tuple(reversed(cuts)), num_bytes, cost)
        cuts.append(start - 1)
        front = fronts[start]
