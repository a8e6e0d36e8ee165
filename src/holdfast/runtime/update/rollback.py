"""Taking an optimizer step back: from a copy made before it, or by undoing it. Exact either way.

Both give the parameters from before up to two steps, for operations that are run again. Knows
neither verdicts nor buffers: what is final and what is not, commit.py says.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from holdfast.runtime.reduce.reduction import Reduced
from holdfast.runtime.update.optimizer import Snapshot, StageOptimizer


class Update(NamedTuple):
    """What a step applies to a stage."""

    step: int
    reduced: Reduced | None  # None: the step is left out
    scale: float | None = None

    def gradients(self) -> list[Tensor | None]:
        return [] if self.reduced is None else self.reduced.gradients()


class StepRollback(Protocol):
    keeps_old: bool  # whether parameters from before a step are to be had when it is committed

    def apply(self, update: Update, *, speculative: bool) -> None:
        """``speculative``: it may have to be taken back."""
        ...

    def take_back(self, step: int) -> None:
        """Undo the newest step, which was applied speculatively; it may be applied otherwise
        then."""
        ...

    def committed(self, step: int) -> None:
        """It will not be taken back, and nobody asks for what was before the step before it."""
        ...

    def restart(self) -> None:
        """The state was replaced: nothing of what was kept belongs to it."""
        ...

    @property
    def steps(self) -> list[int]:
        """Those from before which the parameters are to be had."""
        ...

    def old(self, step: int) -> tuple[Tensor, ...] | None:
        """The parameters, or their masters, before the step; None: those are the present ones."""
        ...

    def try_out(self, update: Update, then: Callable[[], None]) -> None:
        """Apply, call ``then``, and take it back. Gradients of None are left alone."""
        ...

    def kept_bytes(self, newest: Reduced | None) -> int:
        """What is held for all this. ``newest``: a gradient that is kept anyway."""
        ...

    @property
    def peak_bytes(self) -> int:
        """The most that was held, with what was held for a moment only."""
        ...


class SnapshotRollback:
    """A copy of all parameters before each step; of the optimizer's state too, if speculative."""

    def __init__(self, optimizer: StageOptimizer, *, keeps_old: bool) -> None:
        self._optimizer, self.keeps_old = optimizer, keeps_old
        self._old: dict[int, tuple[Tensor, ...]] = {}
        self._before: Snapshot | None = None
        self.peak_bytes = 0

    def apply(self, update: Update, *, speculative: bool) -> None:
        if speculative:
            self._before = self._optimizer.snapshot(update.step)
        if self.keeps_old and update.step not in self._old:
            self._old[update.step] = self._copies()
        self.peak_bytes = max(self.peak_bytes, self.kept_bytes(None))
        if update.reduced is not None:
            self._optimizer.step(update.step, update.gradients(), update.scale)

    def _copies(self) -> tuple[Tensor, ...]:
        if self._before is not None:
            return self._before.parameters
        return tuple(parameter.detach().clone() for parameter in self._optimizer.parameters)

    def take_back(self, step: int) -> None:
        assert self._before is not None, f"step {step} was not applied on trust"
        self._optimizer.restore(self._before)
        self._before = None

    def committed(self, step: int) -> None:
        self._before = None
        self._old = {s: old for s, old in self._old.items() if s >= step}

    def restart(self) -> None:
        self._before, self._old = None, {}

    @property
    def steps(self) -> list[int]:
        return list(self._old)

    def old(self, step: int) -> tuple[Tensor, ...] | None:
        return self._old.get(step)

    def try_out(self, update: Update, then: Callable[[], None]) -> None:
        before = self._optimizer.snapshot(update.step)
        self._optimizer.step(update.step, update.gradients(), update.scale)
        then()
        self._optimizer.restore(before)

    def kept_bytes(self, newest: Reduced | None) -> int:
        before = self._before
        copies = [*self._old.values(), *([] if before is None else [before.parameters])]
        tensors = {id(tensor): tensor for copy in copies for tensor in copy}
        of_state = 0 if before is None else before.num_bytes
        return of_state + sum(tensor.nbytes for tensor in tensors.values())
