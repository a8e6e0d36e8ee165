"""The end of a stage's step: reduce, verdict, apply, commit. The life cycle of one update.

    COLLECTING -> REDUCED -> COMMITTED (= COLLECTING of the next step)
                     `-> ON_TRUST -> COMMITTED, or taken back and applied as it should have been

Reduced gradients are kept until the commit, so that a step can always be finished from what some
worker holds. Accumulators are kept until the reduction is complete here; the next step clears them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.runtime.optimizer import Snapshot, StageOptimizer
from holdfast.runtime.reduction import Reduced
from holdfast.runtime.stage import Stage
from holdfast.runtime.state import Layers, buffer_values, set_buffer_values
from holdfast.runtime.verdict import Verdict, VerdictExchange
from holdfast.transport.base import Tag, Transport

Reduction = Callable[[], tuple[Reduced, Mapping[str, Tensor]]]
"""Sums over the holders: the gradient, and the mean changes of buffers."""


class Phase(Enum):
    COLLECTING = auto()  # micro-batches still contribute
    REDUCED = auto()  # the gradient is here, the verdict of the other stages is not
    ON_TRUST = auto()  # applied before the verdict; the state before it is kept


@dataclass(frozen=True, slots=True)
class Committed:
    """A step that is final."""

    step: int
    verdict: Verdict
    taken_back: bool


@dataclass(frozen=True, slots=True)
class _Pending:
    step: int
    attempt: int
    reduced: Reduced
    buffers: Mapping[str, Tensor]  # mean changes of this step
    piece: Tensor  # of this stage, for the verdict
    before: tuple[Snapshot, Mapping[str, Tensor]] | None = None  # parameters and buffers


class StageCommit:
    """Change it only through :meth:`reduce`, :meth:`apply_on_trust` and :meth:`settle`.

    ``counted`` says which slots count for the norm: of twins of a tied parameter only the first.
    """

    def __init__(
        self,
        optimizer: StageOptimizer,
        stage: Stage,
        layers: Layers,
        exchange: VerdictExchange,
        transport: Transport,
        counted: tuple[bool, ...],
        timeout_s: float,
    ) -> None:
        self._optimizer = optimizer
        self._stage = stage
        self._layers = layers
        self._exchange = exchange
        self._transport = transport
        self._counted = counted
        self._timeout_s = timeout_s
        self._pending: _Pending | None = None

    @property
    def phase(self) -> Phase:
        if self._pending is None:
            return Phase.COLLECTING
        return Phase.REDUCED if self._pending.before is None else Phase.ON_TRUST

    def reduce(self, step: int, attempt: int, run_reduction: Reduction) -> Reduced:
        """Sum the stage's gradient over its holders and tell the other stages its norm."""
        assert self._pending is None, "the step before must be settled first"
        reduced, buffers = run_reduction()
        squares = [
            square if counted else 0.0
            for square, counted in zip(reduced.squares, self._counted, strict=True)
        ]
        piece = self._exchange.tell(step, attempt, reduced.nonfinite, squares)
        self._pending = _Pending(step, attempt, reduced, buffers, piece)
        return reduced

    def missing(self) -> list[tuple[WorkerId, Tag]]:
        """What the verdict still waits for."""
        pending = self._pending
        if pending is None:
            return []
        wanted = self._exchange.wanted(pending.step, pending.attempt)
        return [(source, tag) for source, tag in wanted if not self._transport.has(source, tag)]

    def apply_on_trust(self) -> None:
        """Apply the step as if the verdict were good, and keep what is needed to go back."""
        pending = self._pending
        assert pending is not None
        assert self.phase is Phase.REDUCED
        before = (
            self._optimizer.snapshot(pending.step),
            buffer_values(self._layers, pending.buffers),
        )
        self._pending = replace(pending, before=before)
        if not pending.reduced.nonfinite:
            self._apply(pending, scale=None)

    def settle(self) -> Committed:
        """Wait for the verdict and make the step final."""
        pending = self._pending
        assert pending is not None
        verdict = self._exchange.hear(pending.step, pending.attempt, pending.piece, self._timeout_s)
        trusted = pending.before is not None
        if not (trusted and verdict.good):
            self._go_back(pending)
            if not verdict.skip:
                self._apply(pending, verdict.scale)
        self._pending = None
        return Committed(pending.step, verdict, taken_back=trusted and not verdict.good)

    def _go_back(self, pending: _Pending) -> None:
        if pending.before is not None:
            parameters, buffers = pending.before
            self._optimizer.restore(parameters)
            set_buffer_values(self._layers, buffers)

    def _apply(self, pending: _Pending, scale: float | None) -> None:
        if scale is not None:
            pending.reduced.flat.mul_(scale)
        self._optimizer.step(pending.step, pending.reduced.gradients())
        self._stage.apply_buffer_changes(pending.buffers)
