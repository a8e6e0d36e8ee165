"""The loss scale of fp16: small gradients times a power of two, so that they do not become zero.

It halves after a step whose gradient held NaN or Inf, and doubles after many that did not. That
is a function of the verdicts, which are the same on all workers: so is the scale. While a verdict
is not known yet the step is taken for a good one; if it was not, what was computed on that belief
is done again.
"""

from typing import NamedTuple

from holdfast.config import MOST_LOSS_SCALE

MOST_BITS = MOST_LOSS_SCALE.bit_length() - 1


class ScaleState(NamedTuple):
    bits: int
    """The scale is 2**bits."""

    num_good: int = 0
    """Steps in a row since it last changed."""


class LossScale:
    """``steady``: it is 1 and stays so, as in any precision that needs no scale."""

    def __init__(
        self, first: ScaleState | None = None, *, growth_steps: int = 0, first_step: int = 0
    ) -> None:
        """``growth_steps``: doubled after so many good steps in a row."""
        self.is_steady = first is None
        self._growth_steps = growth_steps
        self._states = {first_step: first or ScaleState(0)}  # of running steps
        self._newest = first_step

    @property
    def bits(self) -> int:
        """Of the step that micro-batches contribute to now."""
        return self._states[self._newest].bits

    @property
    def state(self) -> ScaleState:
        """After the newest step."""
        return self._states[self._newest]

    def at(self, step: int) -> float:
        """The scale of a step that is under way, or can be run again."""
        return 1.0 if self.is_steady else 2.0 ** self._states[step].bits

    def note(self, step: int, *, skipped: bool) -> None:
        """What became of ``step``, or what is believed until it is known."""
        if self.is_steady:
            return
        self._states[step + 1] = self._after(self._states[step], skipped)
        self._states = {s: state for s, state in self._states.items() if s > step - 2}
        self._newest = step + 1

    def restart(self, version: int) -> None:
        """The state, which was loaded before, has had ``version`` steps."""
        self._states, self._newest = {version: self.state}, version

    def load(self, state: ScaleState) -> None:
        if not self.is_steady:
            self._states = {self._newest: state}

    def _after(self, state: ScaleState, skipped: bool) -> ScaleState:
        if skipped:
            return ScaleState(max(state.bits - 1, 0))
        if state.num_good + 1 < self._growth_steps:
            return ScaleState(state.bits, state.num_good + 1)
        return ScaleState(min(state.bits + 1, MOST_BITS))
