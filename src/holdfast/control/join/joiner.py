"""Somebody on its way to become a member: which stage, from whom it copies, how far it is.

Decides nothing. Who may come, and when it enters, is known elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.cluster import WorkerId

_FIRST_RETRY_S = 0.2


@dataclass
class Joiner:
    """Change it only through its methods."""

    stage: int
    from_stage: int | None  # None: it has just come
    reason: str
    source: WorkerId | None = None
    given_s: float = 0.0  # when it was given its stage
    asked_s: float = 0.0  # when its copy began
    version: int | None = None  # that it has; None: nothing yet
    took_s: float = 0.0  # for the first whole copy
    num_bytes: int = 0  # of it
    awaits_state: bool = False  # of a stage that nobody holds: it is given it when it is rebuilt
    enters: bool = False  # a change is to make it a member: it is told nothing else meanwhile
    num_starved: int = 0  # copies of which nothing more came
    retry_s: float = _FIRST_RETRY_S
    not_before_s: float = 0.0

    def give(self, at_s: float) -> None:
        """It builds its stage, empty."""
        self.given_s, self.awaits_state = at_s, False

    def host(self) -> None:
        """It will hold a stage that nobody holds."""
        self.awaits_state = True

    def stand_by(self) -> None:
        """Whom it copied from is gone, or its state is there: it waits for neither."""
        self.source, self.awaits_state = None, False

    def copy_from(self, source: WorkerId, at_s: float) -> None:
        """From the beginning."""
        self.source, self.asked_s, self.version = source, at_s, None

    def copied(self, version: int, num_bytes: int, at_s: float) -> bool:
        """Whether that was the first whole copy since it began."""
        is_first = self.version is None
        if is_first:
            self.took_s = at_s - self.asked_s
        self.version, self.num_bytes = version, num_bytes
        return is_first

    def starve(self) -> None:
        self.num_starved += 1

    def enter(self) -> None:
        self.enters = True

    def postpone(self, at_s: float) -> None:
        """It is asked less often from now on."""
        self.enters = False
        self.not_before_s = at_s + self.retry_s
        self.retry_s *= 2


class Joiners:
    """All of them, by name."""

    def __init__(self) -> None:
        self._joiners: dict[WorkerId, Joiner] = {}

    @property
    def all(self) -> Mapping[WorkerId, Joiner]:
        return self._joiners

    @property
    def stages(self) -> dict[WorkerId, int]:
        return {worker: joiner.stage for worker, joiner in self._joiners.items()}

    def put(self, worker: WorkerId, joiner: Joiner) -> None:
        self._joiners[worker] = joiner

    def take(self, worker: WorkerId) -> Joiner:
        return self._joiners.pop(worker)

    def forget(self, worker: WorkerId) -> None:
        self._joiners.pop(worker, None)
