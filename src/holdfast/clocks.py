"""How far two clocks are apart and how they drift, from exchanges between them. Pure.

A message that its sender stamps and its receiver times seems to take its time under way plus the
offset of the two clocks, on the way back minus that: both ways together say exactly how long the
way is, and each bounds the offset. Whose clocks they are, and who asks, is not known here.
"""

import math
from typing import NamedTuple

_NUM_KEPT = 64  # exchanges; older ones are thinned out
_KEPT_S = 3600.0  # a clock's drift changes with the temperature
_NUM_FOR_DRIFT = 3
_LEAST_JITTER_S = 20e-6  # ways that differ by less are equally short
_MOST_DRIFT = 200e-6  # of two quartz clocks, while it is not known
_UNSTEADY = 1e-6  # by which a known drift changes


class Exchange(NamedTuple):
    """The offset is between two bounds: the shorter the way, the closer they are."""

    at_s: float  # by any one clock
    least_s: float
    most_s: float

    @property
    def round_trip_s(self) -> float:
        return max(0.0, self.most_s - self.least_s)

    @property
    def middle_s(self) -> float:
        return self.least_s + (self.most_s - self.least_s) / 2


class ClockOffset(NamedTuple):
    offset_s: float
    wander_s: float  # by which it may be wrong if the ways there and back are equally long
    within_s: float  # ... and if they are not


class _Line(NamedTuple):
    """Through the best exchanges."""

    middle_at_s: float
    offset_s: float  # there
    drift: float | None  # None: not known
    scatter_s: float
    number: int
    spread: float  # sum of the squared distances from the middle
    newest_s: float
    round_trip_s: float  # the shortest

    def at(self, time_s: float) -> ClockOffset:
        away_s, age_s = time_s - self.middle_at_s, max(0.0, time_s - self.newest_s)
        if self.drift is None:
            offset_s = self.offset_s
            wander_s = self.scatter_s + _MOST_DRIFT * abs(away_s)
        else:
            offset_s = self.offset_s + self.drift * away_s
            share = math.sqrt(1 / self.number + away_s**2 / self.spread)
            wander_s = 2 * self.scatter_s * share + _UNSTEADY * age_s
        return ClockOffset(offset_s, wander_s, self.round_trip_s / 2 + wander_s)


class ClockEstimate:
    """Of one clock by another. A change of the way itself does not move it: only the shortest
    round trips count, for as long as they can be of use."""

    def __init__(self) -> None:
        self._kept: list[Exchange] = []
        self._line: _Line | None = None
        self._num_new = 0

    def add(self, exchange: Exchange) -> None:
        self._kept.append(exchange)
        self._num_new += 1
        if len(self._kept) > _NUM_KEPT:
            self._kept = _thinned(self._kept)
        if self._num_new > len(self._kept) // 8:  # of many, each changes little
            self._line, self._num_new = _fitted(self._kept), 0

    def at(self, time_s: float) -> ClockOffset | None:
        """None: nothing is known."""
        return None if self._line is None else self._line.at(time_s)


def _limit_s(round_trips_s: list[float]) -> float:
    """Round trips up to this count."""
    ways_s = sorted(round_trips_s)
    quarter = max(len(ways_s) // 4, min(len(ways_s), _NUM_FOR_DRIFT) - 1)
    limit_s = max(1.1 * ways_s[0], ways_s[quarter])
    return min(2.0 * ways_s[0], limit_s) + _LEAST_JITTER_S


def _thinned(kept: list[Exchange]) -> list[Exchange]:
    """Of the older half those that count; if these are many, of each two the better one."""
    young = [each for each in kept if each.at_s > kept[-1].at_s - _KEPT_S]
    half, limit_s = len(young) // 2, _limit_s([each.round_trip_s for each in young])
    older = [each for each in young[:half] if each.round_trip_s <= limit_s]
    if len(older) > half // 2:
        pairs = zip(older[::2], [*older[1::2], older[-1]], strict=False)
        older = [min(pair, key=lambda each: each.round_trip_s) for pair in pairs]
    return older + young[half:]


def _fitted(kept: list[Exchange]) -> _Line:
    ways_s = [each.round_trip_s for each in kept]
    limit_s, shortest_s = _limit_s(ways_s), min(ways_s)
    best = [each for each, way_s in zip(kept, ways_s, strict=True) if way_s <= limit_s]
    times_s, middles_s = [each.at_s for each in best], [each.middle_s for each in best]
    number, first_at_s, first_s = len(best), times_s[0], middles_s[0]
    # Offsets may be large: sums of differences.
    at_s = first_at_s + math.fsum([time_s - first_at_s for time_s in times_s]) / number
    offset_s = first_s + math.fsum([middle_s - first_s for middle_s in middles_s]) / number
    rows = [(t - at_s, m - offset_s) for t, m in zip(times_s, middles_s, strict=True)]
    spread = math.fsum([away_s**2 for away_s, _ in rows])
    drift, scatter_s = None, shortest_s / 4
    if number >= _NUM_FOR_DRIFT and spread > 0:
        drift = math.fsum([away_s * more_s for away_s, more_s in rows]) / spread
        squares = math.fsum([(more_s - drift * away_s) ** 2 for away_s, more_s in rows])
        # Few points may lie on a line by chance.
        scatter_s = math.sqrt((squares + (shortest_s / 8) ** 2) / (number - 2))
    return _Line(at_s, offset_s, drift, scatter_s, number, spread, max(times_s), shortest_s)
