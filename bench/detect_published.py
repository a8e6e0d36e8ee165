"""The detectors of FALCON (arXiv 2410.12588, section 4), for comparison on the same series.

The paper leaves much open. What is filled in here is marked "filled in": for run lengths and
windows the most accurate of the few pairs tried on 240 series of the tuning seeds, for the rest
what our own detector uses.
"""

import statistics
from collections import deque
from typing import NamedTuple, Protocol

from holdfast.detection.change.bocd import Bocd, Prior

VERIFIED_CHANGE = 0.10  # as published: a smaller difference of means is jitter
POSTERIOR = 0.9  # as published, for P(r = 0)
# Filled in. With a constant hazard the posterior of r = 0 is the hazard itself, whatever the
# values; so the mass of short runs is asked for, up to this many values.
SHORT_RUN = 10
HAZARD = 1 / 250  # filled in
NUM_UNIT = 6  # filled in: iterations that set the unit of time
MIN_AFTER = 5  # filled in: with fewer, jitter passes; the paper reports a reaction of 2-3
WINDOW = 3  # filled in: iterations whose median is compared with the long one
LONG_WINDOW = 50  # filled in: "current median"
MIN_WINDOW = 10  # filled in: no verdict on the first iterations


class Told(NamedTuple):
    onset: bool
    began: int


class Detector(Protocol):
    def update(self, time_s: float) -> Told | None: ...


class FalconBocdV:
    """Bayesian change points on the raw iteration time, then the 10 % check of the means."""

    def __init__(self) -> None:
        self._times: list[float] = []
        # Filled in: the model (normal, unknown mean and variance) and its prior, in units of
        # the median of the first iterations' times.
        self._bocd = Bocd(Prior(hazard=HAZARD), centre=1.0)
        self._unit_s = 0.0
        self._changed_at = 0

    def update(self, time_s: float) -> Told | None:
        self._times.append(time_s)
        if len(self._times) < NUM_UNIT:
            return None
        if not self._unit_s:
            self._unit_s = statistics.median(self._times)
            for earlier_s in self._times[:-1]:
                self._bocd.update(earlier_s / self._unit_s)
        odds = self._bocd.update(time_s / self._unit_s)
        short = odds[: SHORT_RUN + 1]
        num_after = int(short.argmax())
        if short.sum() <= POSTERIOR or num_after < MIN_AFTER:
            return None
        return self._verified(len(self._times) - num_after)

    def _verified(self, began: int) -> Told | None:
        """Means of all since the last change before it, and of all after it."""
        if began - self._changed_at < MIN_AFTER:
            return None
        before = statistics.fmean(self._times[self._changed_at : began])
        after = statistics.fmean(self._times[began:])
        if abs(after - before) / before < VERIFIED_CHANGE:
            return None
        self._changed_at = began
        return Told(after > before, began)


class SlidingWindow:
    """More than 10 % above, or below, the current median."""

    def __init__(self) -> None:
        self._short: deque[float] = deque(maxlen=WINDOW)
        self._long: deque[float] = deque(maxlen=LONG_WINDOW)
        self._num = 0
        self._slow = False

    def update(self, time_s: float) -> Told | None:
        self._num += 1
        self._short.append(time_s)
        self._long.append(time_s)
        if self._num < MIN_WINDOW:
            return None
        ratio = statistics.median(self._short) / statistics.median(self._long)
        slow = ratio > 1 + VERIFIED_CHANGE
        relieved = ratio < 1 - VERIFIED_CHANGE or (self._slow and not slow)
        if slow and not self._slow:
            self._slow = True
            return Told(True, self._num - WINDOW)
        if relieved and self._slow:
            self._slow = False
            return Told(False, self._num - WINDOW)
        return None
