"""What is remembered of one link: its samples, what is normal for it, how far it is looked at."""

import math
from collections import Counter, deque
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from holdfast.detection.change.series import Series
from holdfast.detection.diagnosis import Link
from holdfast.detection.live.investigation import Investigation
from holdfast.detection.live.settings import WatchSettings

NUM_NOW = 5
AWAKE = math.log(1.35)  # a value above it: the link is looked at closely
_NUM_BASELINE = 8  # values of a direction and kind that are its baseline
_NUM_LEAST = 3  # ... and how many must be there before it is used
_NUM_HISTORY = 24
_LEAST_SHARE = 0.1  # of the floor: no time counts as less
_ONE_WAY = 0.5  # of the excess: directions that differ by more are told apart


class Baseline:
    """Of one direction and kind."""

    def __init__(self) -> None:
        self.first: list[tuple[float, float]] = []  # seconds, bytes a message
        self._known: tuple[float, float] | None = None

    def add(self, moved_s: float, num_bytes: float) -> None:
        if len(self.first) < _NUM_BASELINE:
            self.first.append((moved_s, num_bytes))
            middle = sorted(self.first)[(len(self.first) - 1) // 2]
            self._known = middle if len(self.first) >= _NUM_LEAST else None

    def predict_s(self, num_bytes: float) -> float | None:
        """Larger messages than it was learnt from may take longer in proportion."""
        if self._known is None:
            return None
        moved_s, learnt_bytes = self._known
        return moved_s * (num_bytes / learnt_bytes) if num_bytes > learnt_bytes > 0 else moved_s


class LinkSample(NamedTuple):
    value: float  # log of (floor + time) / (floor + baseline)
    moved_s: float
    base_s: float
    doubt_s: float = 0.0  # by which the clocks may make it wrong, and the way back as much less
    way: Link | None = None  # from, to: only this direction is slow

    @property
    def excess_s(self) -> float:
        return max(0.0, self.moved_s - self.base_s)


def compared(moved_s: float, base_s: float, floor_s: float, doubt_s: float = 0.0) -> LinkSample:
    # Clocks of two machines may make a time negative.
    least_s = _LEAST_SHARE * floor_s
    now_s, scale_s = floor_s + moved_s, floor_s + base_s
    ratio = (now_s if now_s > least_s else least_s) / (scale_s if scale_s > least_s else least_s)
    return LinkSample(math.log(ratio), moved_s, base_s, doubt_s)


def _scale_s(base_s: float, floor_s: float) -> float:
    return max(_LEAST_SHARE * floor_s, floor_s + base_s)


def slower(one: LinkSample, other: LinkSample) -> LinkSample:
    return one if one[:3] >= other[:3] else other


def both_ways(ways: Mapping[Link, LinkSample], floor_s: float) -> LinkSample:
    """Of the two directions the slower one counts, as far as it is certain.

    What both take together is certain whatever the clocks say. Of that excess the slower direction
    has at least one half, and at most all of it.
    """
    (way, slow), *more = ways.items()
    if more and more[0][1][:3] > slow[:3]:
        (way, slow), more = more[0], [(way, slow)]
    scale_s = _scale_s(slow.base_s, floor_s)
    excess_s = scale_s * math.expm1(slow.value)
    if not more:
        if slow.doubt_s == 0.0 or excess_s <= 0.0:
            return slow
        return _with_excess(slow, max(0.0, excess_s - slow.doubt_s), scale_s)
    other = more[0][1]
    doubt_s = max(slow.doubt_s, other.doubt_s)
    other_s = _scale_s(other.base_s, floor_s) * math.expm1(other.value)
    certain = slow
    if doubt_s > 0.0:
        total_s = excess_s + other_s
        least_s, most_s = sorted((total_s, total_s / 2))
        certain = _with_excess(slow, min(max(excess_s - doubt_s, least_s), most_s), scale_s)
    is_one_way = excess_s - other_s - 2 * doubt_s > _ONE_WAY * max(excess_s, 0.0)
    return certain._replace(way=way) if is_one_way else certain


def _with_excess(slow: LinkSample, excess_s: float, scale_s: float) -> LinkSample:
    value = math.log1p(max(excess_s / scale_s, _LEAST_SHARE - 1.0))
    return LinkSample(value, slow.base_s + excess_s, *slow[2:])


class LinkTrack:
    def __init__(self, settings: WatchSettings) -> None:
        self.investigation = Investigation(settings)
        self.history: deque[tuple[int, LinkSample]] = deque(maxlen=_NUM_HISTORY)
        self.series: Series | None = None  # only while it is looked at closely
        self.probe: tuple[int, LinkSample] | None = None
        self.told: LinkSample | None = None  # as the last diagnosis had it
        self._known_quiet = False  # until something comes

    def samples_since(self, step: int) -> list[LinkSample]:
        return [sample for at, sample in self.history if at >= step]

    def note(self, step: int, sample: LinkSample) -> None:
        if self.history and self.history[-1][0] == step:
            _, other = self.history.pop()
            sample = slower(sample, other)
        self.history.append((step, sample))
        self._known_quiet = False

    def lower(self, by: float) -> None:
        """The newest value: so much of it is not the link's."""
        step, sample = self.history[-1]
        self.history[-1] = (step, LinkSample(sample.value - by, *sample[1:]))
        self._known_quiet = False

    def measured(self, step: int, sample: LinkSample) -> None:
        """Of a step that ran twice the slower one counts."""
        if self.probe is not None and self.probe[0] == step:
            sample = slower(sample, self.probe[1])
        self.probe = (step, sample)

    def tell(self, *, idle: bool) -> None:
        if idle and self.probe is not None:
            self.told = self.probe[1]
            return
        samples = self.samples_since(self.investigation.since)[-NUM_NOW:] or [self.history[-1][1]]
        (way, number), *_ = Counter(sample.way for sample in samples).most_common(1)
        self.told = LinkSample(
            self.investigation.excess,
            median(sample.moved_s for sample in samples),
            median(sample.base_s for sample in samples),
            way=way if 2 * number > len(samples) else None,
        )

    @property
    def base_s(self) -> float:
        return median(sample.base_s for _, sample in self.history)

    def is_quiet(self) -> bool:
        """Nothing to look at: most links, most of the time."""
        if not self._known_quiet:
            self._known_quiet = self._is_quiet()
        return self._known_quiet

    def _is_quiet(self) -> bool:
        if self.series is not None or not self.investigation.rests:
            return False
        history = self.history  # one late message is no slowness
        return len(history) < 2 or history[-1][1].value < AWAKE or history[-2][1].value < AWAKE

    def newest(self) -> float | None:
        if len(self.history) < NUM_NOW:
            return None
        return median(sample.value for _, sample in list(self.history)[-NUM_NOW:])
