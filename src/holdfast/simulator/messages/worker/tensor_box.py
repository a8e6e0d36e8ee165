"""What has come in from other simulated workers, by sender and tag. Follows ``transport/mailbox``.

What is of an earlier epoch is refused; what is of a later one waits until it begins. Copies of a
state are true in every epoch.
"""

from typing import Any, NamedTuple

ACTIVATION, GRADIENT, PARTIAL, REDUCED, VERDICT, RESULT = range(6)
STATE, UPDATE, REPLAYING = range(6, 9)
_TIMELESS = (STATE, UPDATE)


class Wanted(NamedTuple):
    """Names one message of one sender."""

    source: str
    channel: int
    step: int
    attempt: int = 0
    microbatch: int = 0

    @property
    def is_timeless(self) -> bool:
        return self.channel in _TIMELESS


class TensorBox:
    def __init__(self) -> None:
        self.epoch = 0
        self._here: dict[Wanted, list[Any]] = {}
        self._early: list[tuple[int, Wanted, Any]] = []
        self._forgotten: dict[int, int] = {}  # step -> attempts up to this one are void

    def __contains__(self, wanted: Wanted) -> bool:
        return wanted in self._here

    def put(self, epoch: int, name: Wanted, value: Any) -> bool:
        """Whether it can be read now."""
        if not name.is_timeless:
            if epoch > self.epoch:
                self._early.append((epoch, name, value))
                return False
            if epoch < self.epoch or self._forgotten.get(name.step, -1) >= name.attempt:
                return False
        self._here.setdefault(name, []).append(value)
        return True

    def take(self, wanted: Wanted) -> Any:
        values = self._here[wanted]
        value = values.pop(0)
        if not values:
            del self._here[wanted]
        return value

    def advance(self, epoch: int) -> None:
        self.epoch = epoch
        self._forgotten = {}
        self._here = {name: kept for name, kept in self._here.items() if name.is_timeless}
        early, self._early = self._early, []
        for one in early:
            if one[0] >= epoch:
                self.put(*one)

    def forget(self, step: int, attempt: int) -> None:
        self._forgotten[step] = max(attempt, self._forgotten.get(step, -1))
        for name in [n for n in self._here if n.step == step and not n.is_timeless]:
            if name.attempt <= attempt:
                del self._here[name]

    def drop_copies(self, keep: str) -> None:
        for name in [n for n in self._here if n.is_timeless and n.source != keep]:
            del self._here[name]
