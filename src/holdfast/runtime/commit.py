"""The end of a stage's step: reduced, verdict, applied, settled. The life cycle of one update.

    COLLECTING -> REDUCED -> settled (= COLLECTING of the next step)
                     `-> ON_TRUST -> settled, or taken back and applied as it should have been

The newest reduced gradient stays until the next one is here, so that a holder that lost its
reduction half-way can get it; the weights from before a step stay until the following one is
settled, so that operations of that step can be run again for others. Knows no lanes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto

from torch import Tensor, nn

from holdfast.cluster import WorkerId
from holdfast.runtime.optimizer import Snapshot, StageOptimizer
from holdfast.runtime.reduction import Reduced
from holdfast.runtime.stage import Stage
from holdfast.runtime.state import Layers, buffer_values, set_buffer_values, swapped_buffers
from holdfast.runtime.step_sums import Totals
from holdfast.runtime.verdict import Verdict, VerdictExchange, make_piece
from holdfast.transport.base import Tag, Transport


class Phase(Enum):
    COLLECTING = auto()  # micro-batches still contribute
    REDUCED = auto()  # the gradient is here, the verdict of the other stages is not
    ON_TRUST = auto()  # applied before the verdict; the state before it is kept


@dataclass(frozen=True, slots=True)
class Result:
    """What a stage's step comes to: the same on all its holders. Never changed."""

    step: int
    attempt: int
    reduced: Reduced
    totals: Totals


@dataclass(frozen=True, slots=True)
class Committed:
    """A step that is final."""

    result: Result
    verdict: Verdict
    taken_back: bool

    @property
    def step(self) -> int:
        return self.result.step


@dataclass(frozen=True, slots=True)
class Old:
    """Parameters and buffers as they were before a step."""

    parameters: tuple[Tensor, ...]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Pending:
    result: Result
    piece: Tensor  # of this stage, for the verdict
    before: tuple[Snapshot, Mapping[str, Tensor]] | None = None  # all that going back needs


class StageCommit:
    """``counted``: which slots count for the norm; of twins of a tied parameter only the first.

    ``reduced`` is the number of steps whose gradient has been reduced: the number of the step
    that micro-batches contribute to now.
    """

    def __init__(
        self,
        optimizer: StageOptimizer,
        stage: Stage,
        layers: Layers,
        counted: tuple[bool, ...],
        *,
        reduced: int = 0,
        keeps_old: bool = True,
        reach: Callable[[int, str], None] = lambda step, point: None,
        due: Callable[[int, str], bool] = lambda step, point: False,
    ) -> None:
        """``reach`` is told of every point where a fault may be injected."""
        self._optimizer = optimizer
        self._stage = stage
        self._layers = layers
        self._counted = counted
        self._keeps_old = keeps_old
        self._reach, self._due = reach, due
        self.reduced = reduced
        self.result: Result | None = None  # of the newest reduced step
        self.verdicts: dict[int, Verdict] = {}  # of the last two settled steps
        self._old: dict[int, Old] = {}
        self._pending: _Pending | None = None

    def enter(self, exchange: VerdictExchange, transport: Transport, timeout_s: float) -> None:
        """A new epoch. What was told in an earlier one is lost: tell it again."""
        self._exchange, self._transport, self._timeout_s = exchange, transport, timeout_s
        self.tell()

    @property
    def phase(self) -> Phase:
        if self._pending is None:
            return Phase.COLLECTING
        return Phase.REDUCED if self._pending.before is None else Phase.ON_TRUST

    @property
    def oldest(self) -> int:
        """Operations of this step and of later ones can be run, with the weights they need."""
        applied = self.phase is not Phase.REDUCED
        return min([*self._old, self.reduced if applied else self.reduced - 1])

    def accept(self, result: Result) -> None:
        """The stage's gradient of the running step is here."""
        assert self._pending is None, "the step before must be settled first"
        assert result.step == self.reduced, f"{result.step} reduced while in {self.reduced}"
        reduced = result.reduced
        squares = [
            square if counted else 0.0
            for square, counted in zip(reduced.squares, self._counted, strict=True)
        ]
        self._pending = _Pending(result, make_piece(reduced.nonfinite, squares))
        self.result = result
        self.reduced = result.step + 1

    def tell(self) -> None:
        """Tell the other stages the norm of what is reduced here, if they may not know it."""
        pending = self._pending
        if pending is not None:
            self._exchange.tell(pending.result.step, pending.result.attempt, pending.piece)

    def missing(self) -> list[tuple[WorkerId, Tag]]:
        """What the verdict still waits for."""
        if self._pending is None:
            return []
        wanted = self._exchange.wanted(self._pending.result.step, self._pending.result.attempt)
        return [(source, tag) for source, tag in wanted if not self._transport.has(source, tag)]

    def apply_on_trust(self) -> None:
        """Apply the step as if the verdict were good, and keep what is needed to go back."""
        pending = self._pending
        assert pending is not None
        assert self.phase is Phase.REDUCED
        result = pending.result
        snapshot = self._optimizer.snapshot(result.step)
        buffers = buffer_values(self._layers, result.totals.changes)
        self._pending = replace(pending, before=(snapshot, buffers))
        if self._keeps_old:
            self._old[result.step] = Old(snapshot.parameters, buffers)
        if not result.reduced.nonfinite:
            self._apply(result, scale=None)

    def settle(self) -> Committed:
        """Wait for the verdict and make the step final."""
        pending = self._pending
        assert pending is not None
        result = pending.result
        self._reach(result.step, "check")
        verdict = self._exchange.hear(result.step, result.attempt, pending.piece, self._timeout_s)
        trusted = pending.before is not None
        if not (trusted and verdict.good):
            self._go_back(pending)
            self._keep_old(result)
            if not verdict.skip:
                self._apply(result, verdict.scale)
        self._pending = None
        self._settled(result.step, verdict)
        return Committed(result, verdict, taken_back=trusted and not verdict.good)

    def restart(self, version: int) -> None:
        """The state was replaced by one that has had ``version`` steps."""
        assert self._pending is None
        self.reduced, self.result, self.verdicts, self._old = version, None, {}, {}

    def follow(self, result: Result, verdict: Verdict) -> None:
        """Apply a step that others have settled."""
        assert self._pending is None
        assert result.step == self.reduced
        self._keep_old(result)
        if not verdict.skip:
            self._apply(result, verdict.scale)
        self.result, self.reduced = result, result.step + 1
        self._settled(result.step, verdict)

    @contextmanager
    def old_weights(self, step: int) -> Iterator[None]:
        """The stage as it was before ``step``, for operations that are run again."""
        old = self._old.get(step)
        if old is None:  # not applied yet: the old weights are the present ones
            yield
            return
        parameters = [slot.parameter for slot in self._stage.slots]
        with _swapped(parameters, old.parameters), swapped_buffers(self._layers, old.buffers):
            yield

    def _settled(self, step: int, verdict: Verdict) -> None:
        self.verdicts[step] = verdict
        self.verdicts = {s: v for s, v in self.verdicts.items() if s > step - 2}
        self._old = {s: old for s, old in self._old.items() if s >= step}
        self._reach(step, "settled")

    def _keep_old(self, result: Result) -> None:
        if self._keeps_old and result.step not in self._old:
            parameters = tuple(slot.parameter.detach().clone() for slot in self._stage.slots)
            buffers = buffer_values(self._layers, result.totals.changes)
            self._old[result.step] = Old(parameters, buffers)

    def _go_back(self, pending: _Pending) -> None:
        if pending.before is not None:
            parameters, buffers = pending.before
            self._optimizer.restore(parameters)
            set_buffer_values(self._layers, buffers)

    def _apply(self, result: Result, scale: float | None) -> None:
        step, gradients = result.step, result.reduced.gradients()
        if scale is not None:
            gradients = [None if g is None else g * scale for g in gradients]
        self._reach(step, "apply")
        if self._due(step, "half"):
            before = self._optimizer.snapshot(step)
            self._optimizer.step(step, [g if i % 2 else None for i, g in enumerate(gradients)])
            self._reach(step, "half")
            self._optimizer.restore(before)  # it only hung for a while
        self._optimizer.step(step, gradients)
        self._stage.apply_buffer_changes(result.totals.changes)
        self._reach(step, "applied")


@contextmanager
def _swapped(parameters: list[nn.Parameter], values: tuple[Tensor, ...]) -> Iterator[None]:
    """Other memory for a while: graphs of micro-batches in flight must not see a change."""
    present = [parameter.data for parameter in parameters]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value
    try:
        yield
    finally:
        for parameter, value in zip(parameters, present, strict=True):
            parameter.data = value
