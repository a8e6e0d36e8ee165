"""When the run ends, and why, if that is before its last step. Does not end it."""

from enum import Enum, auto

from holdfast.errors import HoldfastError


class EndPhase(Enum):
    AS_PLANNED = auto()  # with the last step of the run
    ASKED = auto()  # as soon as it can be, with a checkpoint
    DECIDED = auto()  # and everyone knows the last step


class Ending:
    def __init__(self, last_step: int) -> None:
        self._end_step = self._last_step = last_step
        self._phase = EndPhase.AS_PLANNED
        self._early_since_s: float | None = None
        self._reason = "interrupted"
        self._gives_up_step = self._is_good = False
        self._failure: HoldfastError | None = None
        self._details = ""

    @property
    def end_step(self) -> int:
        return self._end_step

    @property
    def early_since_s(self) -> float | None:
        """Since when the run is to end early; None: it is not."""
        return self._early_since_s

    @property
    def is_early(self) -> bool:
        return self._phase is not EndPhase.AS_PLANNED

    @property
    def is_undecided(self) -> bool:
        """It is to end early, and nobody knows yet with which step."""
        return self._phase is EndPhase.ASKED

    @property
    def is_good(self) -> bool:
        """It is early as it was meant to be, and no failure."""
        return self._is_good

    @property
    def reason(self) -> str:
        """If it is early."""
        return self._reason

    @property
    def gives_up_step(self) -> bool:
        """It ends before the running step where that is possible."""
        return self._gives_up_step

    @property
    def failure(self) -> HoldfastError | None:
        return self._failure

    @property
    def details(self) -> str:
        """A traceback, or what else is too long for a line."""
        return self._details

    def ask(self, why: str, at_s: float) -> None:
        """At the next step, with a checkpoint. What came first stays the reason."""
        if self._phase is EndPhase.AS_PLANNED:
            self._phase, self._early_since_s, self._reason = EndPhase.ASKED, at_s, why

    def ask_in_good_time(self, why: str, at_s: float) -> bool:
        """There is no need for the steps that are left. False: it is to end already."""
        if self.is_early:
            return False
        self.ask(why, at_s)
        self._is_good = True
        return True

    def withdraw(self) -> None:
        """All go back to before a good end was asked for: it will be once more."""
        assert self._is_good, "no other end is taken back"
        self._end_step, self._phase = self._last_step, EndPhase.AS_PLANNED
        self._early_since_s, self._is_good = None, False

    def ask_before_step(self, why: str, at_s: float) -> None:
        """The running step cannot be ended."""
        self.ask(why, at_s)
        self._gives_up_step = True

    def ask_with(self, step: int, why: str, details: str, at_s: float) -> None:
        """No step from ``step`` on can be run."""
        self.ask(why, at_s)
        self._is_good = False
        self._details = self._details or details
        self.shorten(step)
        self._phase = EndPhase.ASKED

    def shorten(self, step: int) -> None:
        """No step from ``step`` on is run."""
        self._end_step = min(self._end_step, step)

    def decide(self, step: int) -> None:
        """All have stopped and may go on with ``step``: if the run is to end early, it is then."""
        if self.is_early:
            self.shorten(step)
            self._phase = EndPhase.DECIDED

    def fail(self, why: HoldfastError, details: str) -> None:
        self._failure, self._details = why, details or self._details
