"""The life of one suspicion: healthy, suspect (its measurement is under way), slow. Readings in,
steps of the procedure out. What the subject is, and how it is measured, is not known here."""

import math
from enum import Enum, auto
from typing import NamedTuple

from holdfast.detection.change.series import NUM_LASTING, LevelChange
from holdfast.detection.live.settings import WatchSettings

_NUM_STEADY = 8  # steps between two words on one slowness, if no change point is found

_NUM_SOON = 50  # steps within which slowness that comes back is the same one
_LITTLE = 0.25  # share of the slowness that a measurement may still show when it is over


class InvestigationPhase(Enum):
    HEALTHY = auto()
    SUSPECT = auto()
    SLOW = auto()


class InvestigationMove(Enum):
    ASK = auto()  # measure it
    TELL = auto()  # it is slow, or differently slow
    OVER = auto()


class Reading(NamedTuple):
    """What one step shows of a subject. Excesses are logs of factors over the healthy level."""

    step: int
    change: LevelChange | None  # found in this step
    now: float | None  # median excess of the newest values; None: it has no work
    steady: float | None  # the same, if it has been so for several steps
    probe: float | None  # excess of a benchmark that has come since it was asked for
    lasting: float | None = None  # the same as ``now``, of more values that are all high


class Investigation:
    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self.phase = InvestigationPhase.HEALTHY
        self.since = 0
        self.excess = 0.0  # suspected, or told
        self.confidence = 0.0
        self.probe: float | None = None  # what the last benchmark has shown of it
        self.from_start = False  # it has never been seen healthy
        self.asked: int | None = None  # a measurement is under way since this step
        self._told_at = 0
        self._num_refused = 0
        self._next_try: int | None = None
        self._recheck_steps = settings.num_recheck_steps
        self._num_well = 0  # measurements in a row that found a slow one well
        self._over_at: int | None = None
        self._num_again = 0
        self._held_until = 0

    def read(self, reading: Reading) -> InvestigationMove | None:
        self._rewind(reading.step)
        match self.phase:
            case InvestigationPhase.HEALTHY:
                return self._healthy(reading)
            case InvestigationPhase.SUSPECT:
                return self._suspect(reading)
            case InvestigationPhase.SLOW:
                return self._slow(reading)

    def _rewind(self, step: int) -> None:
        """After a failure steps may run again: nothing was asked or told in the future."""
        self._told_at = min(self._told_at, step)
        self._held_until = min(self._held_until, step + 16 * _NUM_STEADY)
        self.asked = None if self.asked is None else min(self.asked, step)

    def suspect(
        self, step: int, since: int, excess: float, confidence: float, *, from_start: bool = False
    ) -> InvestigationMove:
        self.since, self.excess, self.confidence = since, excess, confidence
        self.from_start = from_start
        self.probe = None
        if not self._settings.validate:
            return self._tell(step)
        self.phase, self.asked = InvestigationPhase.SUSPECT, step
        return InvestigationMove.ASK

    def _healthy(self, reading: Reading) -> InvestigationMove | None:
        change, limit = reading.change, self._settings.slow
        if change is not None and change.onset and change.excess >= limit:
            self._num_refused = 0
            return self.suspect(reading.step, change.since, change.excess, change.confidence)
        if self._next_try is None:
            return self._crept(reading)
        if reading.step < self._next_try:
            return None
        if reading.now is None or reading.now < limit:
            self._next_try = None
            return None
        return self.suspect(
            reading.step, self.since, reading.now, self.confidence, from_start=self.from_start
        )

    def _crept(self, reading: Reading) -> InvestigationMove | None:
        """By steps each of which was too small to be suspected. Noise can do that too: only a
        measurement can tell."""
        settings, lasting = self._settings, reading.lasting
        if not settings.validate or lasting is None or lasting < settings.slow:
            return None
        since = max(0, reading.step - NUM_LASTING + 1)  # steps may have run again
        return self.suspect(reading.step, since, lasting, 0.8)

    def _suspect(self, reading: Reading) -> InvestigationMove | None:
        assert self.asked is not None
        if reading.change is not None and reading.change.excess < self._settings.relief:
            return self._acquit(reading.step)
        if reading.change is not None:
            self.excess = reading.change.excess
        if self.excess < self._settings.slow:
            return self._acquit(reading.step)
        if reading.probe is not None:
            self.probe = reading.probe
            if reading.probe >= self._settings.confirmed_share * self.excess:
                self.confidence = 1 - 0.25 * (1 - self.confidence)
                return self._tell(reading.step)
            return self._refuse(reading)
        if reading.step - self.asked < self._settings.num_patience_steps:
            return None
        if reading.now is None or reading.now < self._settings.slow:
            return self._acquit(reading.step)
        self.confidence *= 0.8
        return self._tell(reading.step)

    def _refuse(self, reading: Reading) -> InvestigationMove | None:
        self._num_refused += 1
        strong = (reading.now or 0.0) >= 2 * self._settings.slow
        obvious = (reading.now or 0.0) >= math.log(self._settings.obvious_factor)
        if obvious or (self._num_refused >= self._settings.num_refusals and strong):
            self.confidence *= 0.6
            return self._tell(reading.step)
        return self._acquit(reading.step)

    def _acquit(self, step: int) -> InvestigationMove | None:
        self.phase, self.asked = InvestigationPhase.HEALTHY, None
        self._next_try = step + self._settings.num_retry_steps * 2**self._num_refused
        return None

    def _tell(self, step: int) -> InvestigationMove:
        if self.phase is not InvestigationPhase.SLOW:
            self._hold(step)
        self.phase, self.asked, self._told_at = InvestigationPhase.SLOW, None, step
        self._num_well, self._recheck_steps = 0, self._settings.num_recheck_steps
        return InvestigationMove.TELL

    def _hold(self, step: int) -> None:
        """Slow again soon after its end: each time it must be well for longer to be believed."""
        again = self._over_at is not None and step - self._over_at <= _NUM_SOON
        self._num_again = self._num_again + 1 if again else 0
        hold = _NUM_STEADY * 2 ** min(self._num_again, 4) if self._num_again else 0
        self._held_until = step + hold

    def _slow(self, reading: Reading) -> InvestigationMove | None:
        if reading.change is not None:
            return self._moved(reading.step, reading.change.excess, reading.change.since)
        if reading.now is None:
            return self._idle(reading)
        if reading.steady is None or reading.step - self._told_at < _NUM_STEADY:
            return None
        return self._moved(reading.step, reading.steady, max(0, reading.step - _NUM_STEADY + 1))

    def _moved(self, step: int, excess: float, since: int) -> InvestigationMove | None:
        if excess < self._settings.relief:
            return None if step < self._held_until else self._over(step, since)
        if excess < self._settings.slow or abs(excess - self.excess) < self._settings.slow:
            return None
        self.excess = excess
        return self._tell(step)

    def _idle(self, reading: Reading) -> InvestigationMove | None:
        """Without work only measurements can show that it is over: two in a row."""
        if reading.probe is not None:
            self.asked, self.probe = None, reading.probe
            well = reading.probe < max(self._settings.relief, _LITTLE * self.excess)
            self._num_well = self._num_well + 1 if well else 0
            if self._num_well >= 2:
                return self._over(reading.step, reading.step)
            changed = abs(reading.probe - self.excess) >= 2 * self._settings.slow
            if not self._num_well and changed and reading.probe >= self._settings.slow:
                self.excess = reading.probe
                return self._tell(reading.step)
        return self._recheck(reading.step)

    def _recheck(self, step: int) -> InvestigationMove | None:
        newest = self._told_at if self.asked is None else self.asked
        wait = 1 if self._num_well else self._recheck_steps
        if not self._settings.validate or step - newest < wait:
            return None
        self._recheck_steps = min(2 * self._recheck_steps, 4 * self._settings.num_recheck_steps)
        self.asked = self._told_at = step
        return InvestigationMove.ASK

    def _over(self, step: int, since: int) -> InvestigationMove:
        self._over_at = step
        self.phase, self.asked, self._next_try = InvestigationPhase.HEALTHY, None, None
        self.since, self._num_refused = since, 0
        return InvestigationMove.OVER

    @property
    def factor(self) -> float:
        return math.exp(self.excess)

    def convict(self, step: int, since: int, excess: float, probe: float | None) -> None:
        """Slow from the very start; ``probe``: its benchmark against the others'."""
        self.since, self.excess, self.probe = since, excess, probe
        self.confidence = 0.7 if probe is None else 0.9
        self.from_start = True
        self._tell(step)

    @property
    def rests(self) -> bool:
        """Only a change, or a high level that lasts, can stir it."""
        return self.phase is InvestigationPhase.HEALTHY and self._next_try is None

    @property
    def tried(self) -> bool:
        """Acquitted, and to be looked at again."""
        return self._next_try is not None

    def weigh(self, excess: float | None) -> None:
        """A better estimate of what it is suspected of."""
        if excess is not None:
            self.excess = excess
