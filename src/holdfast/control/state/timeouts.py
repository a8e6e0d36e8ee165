"""The one limit, and every wait that follows from it. Reads no clock: times are arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from holdfast.config import MOST_TIMEOUT_S

_FIRST_S = 10.0  # until steps are measured: the first ones compile and warm up
_LEAST_S, _MOST_S = 2.0, MOST_TIMEOUT_S
NUM_MEASURED = 3  # steps, before their time is believed
_NUM_KEPT = 50  # the newest steps count
_BEATS = 10  # heartbeats in the time of the limit: one that is late or two harm nobody
_BEATS_A_SECOND = 2560  # of all workers together: from 512 workers on each beats less often
_LOOK_BEATS = 5  # that are missing: the process is looked at
_LEASE = 0.98  # of the shortest limit; no two clocks drift apart by a hundredth
_ANSWERS = 10  # a worker may be in a long operation when it is told to stop
_LEAST_WAIT_S = 60.0
_LEAST_INTERRUPT_S = 30.0
_STEPS_TO_END = 3  # those that are running, and time to save


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All that the heartbeat timeout decides. ``measured``: whether steps have been timed."""

    heartbeat_timeout_s: float
    configured: bool
    measured: bool
    start_limit_s: float
    step_s: float = 0.0  # median; 0: not measured
    least_s: float = _LEAST_S

    @classmethod
    def of(
        cls,
        configured_s: float,
        start_limit_s: float,
        steps_s: Sequence[float],
        num_workers: int = 0,
    ) -> "Timeouts":
        """``configured_s`` 0: twice a usual step, within bounds."""
        measured = len(steps_s) >= NUM_MEASURED
        least_s = min(max(_LEAST_S, _BEATS * num_workers / _BEATS_A_SECOND), _MOST_S)
        heartbeat_timeout_s = configured_s or max(_FIRST_S, least_s)
        if measured and not configured_s:
            heartbeat_timeout_s = min(max(2 * median(steps_s[-_NUM_KEPT:]), least_s), _MOST_S)
        step_s = median(steps_s[-_NUM_KEPT:]) if steps_s else 0.0
        return cls(heartbeat_timeout_s, configured_s > 0, measured, start_limit_s, step_s, least_s)

    @property
    def beat_s(self) -> float:
        """Fixed for a run, since workers hear of it once: right for the shortest limit."""
        return (self.heartbeat_timeout_s if self.configured else self.least_s) / _BEATS

    @property
    def look_s(self) -> float:
        """A worker that is silent for so long is looked at: half of the shortest limit."""
        return _LOOK_BEATS * self.beat_s

    @property
    def lease_s(self) -> float:
        """A worker that the coordinator has not heard for so long commits nothing.

        Below the shortest limit, after which it is lost: two clocks may differ in speed.
        """
        return _LEASE * _BEATS * self.beat_s

    @property
    def answer_s(self) -> float:
        """A member that lives but does not stop for so long is lost."""
        return _ANSWERS * self.heartbeat_timeout_s

    @property
    def interrupt_s(self) -> float:
        """Time to end the running steps, before a run that is to end is just ended."""
        least_s = _LEAST_INTERRUPT_S if self.measured else self._first_s
        return max(least_s, _STEPS_TO_END * self.step_s)

    @property
    def wait_s(self) -> float:
        """Longest wait of a worker for a tensor; by then somebody was found to be lost."""
        return (
            max(_ANSWERS * self.heartbeat_timeout_s, _LEAST_WAIT_S)
            if self.measured
            else self._first_s
        )

    @property
    def _first_s(self) -> float:
        return max(self.start_limit_s, _ANSWERS * self.heartbeat_timeout_s)

    def describe(self) -> str:
        later = f" at first, then twice a step, {self.least_s:g} to {_MOST_S:g} s"
        return (
            f"heartbeat timeout {self.heartbeat_timeout_s:g} s{'' if self.configured else later}; "
            f"a heartbeat every {self.beat_s:g} s; a worker that does not stop when asked to is "
            f"lost after {_ANSWERS} timeouts"
        )
