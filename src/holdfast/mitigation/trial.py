"""Whether a change has helped: the steps after it next to those before. What did not is undone.

Counts measured steps only. Which lanes they ran, and why, is not known here.
"""

from collections import deque
from statistics import median

_NUM_STEPS = 5  # on either side
_NUM_LEFT_OUT = 3  # right after it was decided: old lanes end, the pipeline fills anew


class Trial:
    """One change at a time is on trial."""

    def __init__(self) -> None:
        self._recent_s: deque[float] = deque(maxlen=_NUM_STEPS)
        self._before_s: float | None = None  # None: nothing is on trial
        self.was_s = 0.0  # a step before the change that was judged last
        self._num_since = 0

    @property
    def after_s(self) -> float:
        """A step of late."""
        return median(self._recent_s) if self._recent_s else 0.0

    def begin(self) -> None:
        """The steps from now on run something else."""
        self._before_s = median(self._recent_s) if self._recent_s else None
        self._recent_s.clear()
        self._num_since = 0

    def end(self) -> None:
        """It is not judged any more: something else has changed, and steps before that are past."""
        self._before_s = None
        self._recent_s.clear()

    def note_step(self, took_s: float) -> bool | None:
        """Whether the change has helped, once that is known: then it is no longer on trial."""
        self._num_since += 1
        if self._before_s is not None and self._num_since <= _NUM_LEFT_OUT:
            return None
        self._recent_s.append(took_s)
        if self._before_s is None or len(self._recent_s) < _NUM_STEPS:
            return None
        self.was_s, self._before_s = self._before_s, None
        return self.after_s < self.was_s
