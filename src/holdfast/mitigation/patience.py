"""Keeps changes for the same subject apart: the wait doubles with each, so nothing ever flaps.

Counts steps only; what a change gains or costs is not known here.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

FIRST_WAIT_STEPS = 5
"""After the first change for a subject; twice as long after each further one."""
LEAST_QUIET_STEPS = 100
"""A subject is new again after so long without a change, and as long as it has been known."""
GREW = 1.5
"""A factor so many times any that was answered before is a new problem, and need not wait."""


class _Record(NamedTuple):
    """``first_step``: of all changes; the rest is of those since it was last forgotten."""

    first_step: int
    last_step: int
    wish_step: int  # when a change was last made, or wished for in vain
    num_changes: int
    largest_factor: float

    @property
    def until_step(self) -> int:
        if not self.num_changes:
            return self.last_step
        wait_steps: int = FIRST_WAIT_STEPS * 2 ** (self.num_changes - 1)
        return self.last_step + wait_steps

    def back_at(self, step: int) -> "_Record":
        """All may have gone back to a checkpoint since."""
        return self._replace(
            first_step=min(self.first_step, step), last_step=min(self.last_step, step)
        )

    def at(self, step: int) -> "_Record":
        known = self.wish_step - self.first_step
        quiet = step - self.wish_step
        if quiet < max(LEAST_QUIET_STEPS, known):
            return self
        return self._replace(num_changes=0, largest_factor=1.0)


class Patience:
    """In n steps at most about (1 + log2(n / 100)) * (1 + log2(n / 5)) changes for a subject,
    and 1 + log2(n / 5) for one that never is quiet, besides those for a factor that grew."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def waits_until(
        self, subjects: Sequence[str], step: int, factors: Mapping[str, float]
    ) -> int | None:
        """None: a change may be made now. One subject that need not wait is enough.

        Who has to wait is not quiet meanwhile.
        """
        until = [self._until(subject, step, factors.get(subject, 1.0)) for subject in subjects]
        soonest = min(until, default=step)
        if soonest <= step:
            return None
        for subject in subjects:
            self._records[subject] = self._records[subject]._replace(wish_step=step)
        return soonest

    def _until(self, subject: str, step: int, factor: float) -> int:
        record = self._records.get(subject)
        if record is None:
            return step
        record = record.back_at(step).at(step)
        if factor >= GREW * record.largest_factor:
            return step
        return record.until_step

    def changed(self, subjects: Sequence[str], step: int, factors: Mapping[str, float]) -> None:
        for subject in subjects:
            old = self._records.get(subject, _Record(step, step, step, 0, 1.0)).at(step)
            self._records[subject] = _Record(
                first_step=old.first_step,
                last_step=step,
                wish_step=step,
                num_changes=old.num_changes + 1,
                largest_factor=max(old.largest_factor, factors.get(subject, 1.0)),
            )
