"""Which lanes a whole step runs: those of the last Proceed, until others are adopted on the way.

Others are offered first. From then on no step is begun that they might be meant for, until it is
known from which step on they hold. So all members change over in the same step.
"""

import threading
from collections.abc import Callable
from time import monotonic

from holdfast.errors import EpochPast, WaitTimeout
from holdfast.protocol.messages import OFFER_AHEAD
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import loads

_LOOK_S = 0.02  # a wait looks this often whether this worker is to stop


class Lanes:
    """Steps are begun by the worker's own thread, offers come from the control thread."""

    def __init__(self, check: Callable[[], None]) -> None:
        """``check`` raises when this worker is to stop."""
        self._check = check
        self._changed = threading.Condition()
        self._epoch = -1
        self._newest = -1  # step that was begun
        self._rules: list[tuple[int, RunningStep]] = []  # first step, and what it runs from there
        self._offer: tuple[int, RunningStep] | None = None
        self._hold_at = 0  # no step from here on, while there is an offer

    def start(self, epoch: int, schedule: str, first_step: int) -> None:
        """A Proceed: what was offered before is void."""
        with self._changed:
            self._epoch, self._newest = epoch, first_step - 1
            # From 0 on: half-done steps may have to be begun anew, as steps like any other.
            self._rules = [(0, RunningStep.whole(0, 0, loads(schedule)))]
            self._offer = None
            self._changed.notify_all()

    def of(self, step: int, timeout_s: float) -> RunningStep:
        """Begins ``step``, or begins it again."""
        deadline_s = monotonic() + timeout_s
        with self._changed:
            while self._offer is not None and step >= self._hold_at:
                self._check()
                if monotonic() > deadline_s:
                    raise WaitTimeout(f"step {step} waits for word of lanes that were offered")
                self._changed.wait(_LOOK_S)
            self._newest = max(self._newest, step)
            return next(lanes for first, lanes in reversed(self._rules) if first <= step)

    def offer(self, epoch: int, number: int, schedule: str) -> int:
        """The newest step that was begun. EpochPast: it is of no use any more, or not yet."""
        lanes = RunningStep.whole(0, 0, loads(schedule))
        with self._changed:
            self._require(epoch)
            self._offer, self._hold_at = (number, lanes), self._newest + OFFER_AHEAD
            return self._newest

    def adopt(self, epoch: int, number: int, first_step: int) -> None:
        with self._changed:
            self._require(epoch)
            if self._offer is not None and self._offer[0] == number:
                self._rules.append((first_step, self._offer[1]))
                self._offer = None
                self._changed.notify_all()

    def _require(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise EpochPast(f"lanes of epoch {epoch} were offered in epoch {self._epoch}")
