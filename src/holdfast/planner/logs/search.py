"""The partition of a row into runs that costs least while the cuts fit into a budget.

Exact: Pareto fronts of (bytes, cost) over prefixes, cut down by the best price for a byte. Knows
neither stages nor logs: numbers in, cuts out. Costs are whole numbers, so that sums are exact.
"""

from typing import NamedTuple

import numpy as np

from holdfast.arrays import Flags, Floats, Ints

MOST_POINTS = 200_000
_MOST_PRICES = 200


class Partition(NamedTuple):
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


class _Points(NamedTuple):
    """Ways to cut up prefixes; of one prefix, none is both smaller and cheaper than another."""

    num_bytes: Ints
    cost: Floats
    end: Ints  # length of the prefix
    before: Ints  # the point that it continues by one run


def search(cost: Floats, cut_bytes: Ints, budget: int, most_points: int = MOST_POINTS) -> Partition:
    """``cost[first, last]`` of a run in whole numbers; of equal costs the fewest bytes win.

    Costs are equal that differ by no more than 1 a place: that is rounding.
    """
    relaxed, known = _priced(cost, cut_bytes, budget)
    # What cannot end below the known cost is dropped; prices are not whole, so leave some room.
    room = known.cost + len(cost) + 1 + 1e-9 * (known.cost + relaxed.price * budget)
    points = _Points(np.zeros(1, np.int64), np.zeros(1), *np.zeros((2, 1), np.int64))
    whole = True
    for end, more in enumerate([*cut_bytes.tolist(), 0], 1):
        longer = _extended(points, cost[:, end - 1], more, end)
        longer = _kept(longer, longer.num_bytes <= budget)
        priced = longer.cost + relaxed.price * (longer.num_bytes - budget) + relaxed.ahead[end]
        longer = _pareto(_kept(longer, priced <= room))
        if len(longer.cost) > most_points:
            whole = False
            priced = longer.cost + relaxed.price * longer.num_bytes
            longer = _kept(longer, np.sort(np.argpartition(priced, most_points)[:most_points]))
        points = _joined(points, longer)
    best = _read(points, len(cost))
    if whole:
        return Partition(best.cuts, True, best.cost)
    best = min(best, known, key=lambda way: way.cost)
    return Partition(best.cuts, False, relaxed.bound(budget))


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


def _extended(points: _Points, run_cost: Floats, more: int, end: int) -> _Points:
    """Every point, and one run more, up to ``end``."""
    number = len(points.cost)
    return _Points(
        points.num_bytes + more,
        points.cost + run_cost[points.end],
        np.full(number, end),
        np.arange(number),
    )


def _kept(points: _Points, chosen: Flags | Ints) -> _Points:
    num_bytes, cost, end, before = points
    return _Points(num_bytes[chosen], cost[chosen], end[chosen], before[chosen])


def _joined(one: _Points, other: _Points) -> _Points:
    return _Points(
        np.concatenate([one.num_bytes, other.num_bytes]),
        np.concatenate([one.cost, other.cost]),
        np.concatenate([one.end, other.end]),
        np.concatenate([one.before, other.before]),
    )


def _pareto(points: _Points) -> _Points:
    points = _kept(points, np.lexsort((points.cost, points.num_bytes)))
    best_before = np.minimum.accumulate(np.append(np.inf, points.cost))[:-1]
    return _kept(points, points.cost < best_before)


def _read(points: _Points, num_places: int) -> _Partition:
    """Of all places cut up the smallest that is as cheap as any; each run's cost was rounded."""
    done = np.flatnonzero(points.end == num_places)
    if not len(done):
        return _Partition((), 0, np.inf)
    as_cheap = points.cost[done] <= points.cost[done].min() + num_places
    point = best = int(done[np.argmax(as_cheap)])  # in the order of their bytes
    cuts: list[int] = []
    while points.end[point := int(points.before[point])]:
        cuts.append(int(points.end[point]) - 1)
    return _Partition(tuple(reversed(cuts)), int(points.num_bytes[best]), float(points.cost[best]))
