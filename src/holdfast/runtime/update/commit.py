"""The end of a stage's step: reduced, verdict, applied, committed. The life cycle of one update.

    COLLECTING -> REDUCED -> committed (= COLLECTING of the next step)
                     `-> SPECULATIVE -> committed, or taken back and applied as it should have been

The newest reduced gradient stays until the next one is here, so that a holder that lost its
reduction half-way can get it; the weights from before a step can be had until the following one
is committed, so that operations of that step can be run again for others. Knows no lanes, and not
how a step is taken back.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal

from torch import Tensor, nn

from holdfast.cluster import WorkerId
from holdfast.runtime.link.activity import OPTIMIZER, Activity
from holdfast.runtime.reduce.loss_scale import LossScale
from holdfast.runtime.reduce.reduction import Reduced
from holdfast.runtime.reduce.step_sums import Totals
from holdfast.runtime.reduce.verdict import Verdict, Verdicts, make_piece
from holdfast.runtime.stage.named_tensors import (
    Layers,
    buffer_values,
    set_buffer_values,
    swapped_buffers,
)
from holdfast.runtime.stage.stage import Stage
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.runtime.update.rollback import SnapshotRollback, StepRollback, Update
from holdfast.transport.base import Tag


class CommitPhase(Enum):
    COLLECTING = auto()  # micro-batches still contribute
    REDUCED = auto()  # the gradient is here, the verdict of the other stages is not
    SPECULATIVE = auto()  # applied before the verdict; it can be taken back


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a stage's step comes to: the same on all its holders. Never changed."""

    step: int
    attempt: int
    reduced: Reduced
    totals: Totals


@dataclass(frozen=True, slots=True)
class Committed:
    """A step that is final."""

    result: StepResult
    verdict: Verdict
    taken_back: bool
    loss_scale: float = 1.0

    @property
    def step(self) -> int:
        return self.result.step


@dataclass(frozen=True, slots=True)
class _Pending:
    result: StepResult
    piece: Tensor  # of this stage, for the verdict
    is_applied: bool = False  # speculatively


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
        consistency: Literal["keep-old", "undo"] = "keep-old",
        staggered: bool = True,
        loss_scale: LossScale | None = None,
        before_update: Callable[[], None] = lambda: None,
        may_commit: Callable[[], None] = lambda: None,
        reach: Callable[[int, str], None] = lambda step, point: None,
        due: Callable[[int, str], bool] = lambda step, point: False,
        activity: Activity | None = None,
    ) -> None:
        """``consistency=undo`` refuses, with a ConfigError, an optimizer that has no inverse.
        ``staggered``: a step may be applied before its verdict is known. ``before_update`` may
        wait until the weights are free to change, ``may_commit`` until a step may become final:
        what it raises leaves the step as it was. ``reach`` is told of every point where a fault
        may be injected.
        """
        self._optimizer = optimizer
        self._stage = stage
        self._layers = layers
        self._counted = counted
        self._loss_scale = loss_scale or LossScale()
        self._may_keep_old, self._staggered = keeps_old, staggered
        self.is_alone = False
        self.speculates = staggered  # until a verdict shows that it costs more than it gains
        self._before_update, self._reach, self._due = before_update, reach, due
        self._may_commit = may_commit
        self.reduced = reduced
        self.result: StepResult | None = None  # of the newest reduced step
        self.verdicts: dict[int, Verdict] = {}  # of the last two committed steps
        self._rollback = _rollback(consistency, optimizer, keeps_old)
        self._buffers: dict[int, Mapping[str, Tensor]] = {}  # as they were before a step
        self._pending: _Pending | None = None
        self._peak_bytes = 0
        self._activity = activity or Activity()

    @property
    def phase(self) -> CommitPhase:
        if self._pending is None:
            return CommitPhase.COLLECTING
        return CommitPhase.SPECULATIVE if self._pending.is_applied else CommitPhase.REDUCED

    @property
    def oldest(self) -> int:
        """Operations of this step and of later ones can be run, with the weights they need."""
        applied = self.phase is not CommitPhase.REDUCED
        return min([*self._rollback.steps, self.reduced if applied else self.reduced - 1])

    def attempt_at(self, step: int) -> int:
        """1 if ``step`` is to be done once more, because of the verdict of the one before it."""
        before = self.verdicts.get(step - 1)
        return int(before is not None and self.voids_the_next(before))

    def voids_the_next(self, verdict: Verdict) -> bool:
        """Whether what was computed of the next step before this was known is void."""
        return self._staggered and not verdict.good

    def be_alone(self, is_alone: bool) -> None:
        """Whether nobody else holds the stage, or ever has: then nobody asks for a gradient that
        is applied, or for what another holder has computed with old weights."""
        self.is_alone = is_alone
        self._rollback.keeps_old = self._may_keep_old and not is_alone

    def accept(self, result: StepResult) -> None:
        """The stage's gradient of the running step is here."""
        assert self._pending is None, "the step before must be settled first"
        assert result.step == self.reduced, f"{result.step} reduced while in {self.reduced}"
        reduced = result.reduced
        squares = [
            square if counted else 0.0
            for square, counted in zip(reduced.squares, self._counted, strict=True)
        ]
        piece = make_piece(reduced.nonfinite, squares, result.totals.mean_weight)
        self._pending = _Pending(result, piece)
        self.result = result
        self.reduced = result.step + 1
        self._loss_scale.note(result.step, skipped=False)

    def tell(self, verdicts: Verdicts) -> None:
        """Tell the other stages the norm of what is reduced here, if they may not know it.

        Again at the start of an epoch: what was told in an earlier one is lost.
        """
        pending = self._pending
        if pending is not None:
            verdicts.tell(pending.result.step, pending.result.attempt, pending.piece)

    def missing(self, verdicts: Verdicts) -> list[tuple[WorkerId, Tag]]:
        """What the verdict still waits for."""
        if self._pending is None:
            return []
        return verdicts.missing(self._pending.result.step, self._pending.result.attempt)

    def apply_speculatively(self) -> None:
        """Apply the step as if the verdict were good, and keep what is needed to go back."""
        pending = self._pending
        assert pending is not None
        assert self.phase is CommitPhase.REDUCED
        self._pending = replace(pending, is_applied=True)
        self._apply(pending.result, None, skip=pending.result.reduced.nonfinite, speculative=True)

    def commit_step(self, verdicts: Verdicts) -> Committed:
        """Wait for the verdict and make the step final."""
        pending = self._pending
        assert pending is not None
        result = pending.result
        self._reach(result.step, "check")
        verdict = verdicts.hear(result.step, result.attempt, pending.piece)
        self._may_commit()
        trusted = pending.is_applied
        if not (trusted and verdict.good):
            if trusted:
                self._rollback.take_back(result.step)
                set_buffer_values(self._layers, self._buffers[result.step])
                self._pending = replace(pending, is_applied=False)
            self._apply(result, verdict.scale, skip=verdict.skip)
        self._pending = None
        self.speculates = self._staggered and verdict.good
        self._settled(result.step, verdict)
        return Committed(
            result,
            verdict,
            taken_back=trusted and not verdict.good,
            loss_scale=self._loss_scale.at(result.step),
        )

    def restart(self, version: int) -> None:
        """The state was replaced by one that has had ``version`` steps."""
        self._pending = None  # of a step that is thrown away
        self.reduced, self.result, self.verdicts, self._buffers = version, None, {}, {}
        self._rollback.restart()
        self._loss_scale.restart(version)

    def follow(self, result: StepResult, verdict: Verdict) -> None:
        """Apply a step that others have committed."""
        assert self._pending is None
        assert result.step == self.reduced
        self._apply(result, verdict.scale, skip=verdict.skip)
        self.result, self.reduced = result, result.step + 1
        self._settled(result.step, verdict)

    @contextmanager
    def old_weights(self, step: int) -> Iterator[None]:
        """The stage as it was before ``step``, for operations that are run again."""
        old = self._rollback.old(step)
        if old is None:  # not applied yet: the old weights are the present ones
            yield
            return
        parameters = [slot.parameter for slot in self._stage.slots]
        with _swapped(parameters, old), swapped_buffers(self._layers, self._buffers[step]):
            yield

    @property
    def kept_bytes(self) -> int:
        """What is held now so that steps can be taken back and run again."""
        newest = None if self.result is None else self.result.reduced
        return self._rollback.kept_bytes(newest) + self._buffer_bytes

    @property
    def peak_kept_bytes(self) -> int:
        """The most that was held, also for a moment only."""
        return max(self._peak_bytes, self.kept_bytes)

    @property
    def _buffer_bytes(self) -> int:
        return sum(tensor.nbytes for kept in self._buffers.values() for tensor in kept.values())

    def _settled(self, step: int, verdict: Verdict) -> None:
        self._loss_scale.note(step, skipped=verdict.skip and not verdict.is_empty)
        if not verdict.skip:
            self._optimizer.average.follow()
        self.verdicts[step] = verdict
        self.verdicts = {s: v for s, v in self.verdicts.items() if s > step - 2}
        self._rollback.committed(step)
        if self.is_alone:
            self.result = None
        self._buffers = {s: kept for s, kept in self._buffers.items() if s >= step}
        self._reach(step, "settled")

    def _apply(
        self, result: StepResult, scale: float | None, *, skip: bool, speculative: bool = False
    ) -> None:
        step = result.step
        if (speculative or self._rollback.keeps_old) and step not in self._buffers:
            self._buffers[step] = buffer_values(self._layers, result.totals.changes)
        if skip:
            self._rollback.apply(Update(step, None), speculative=speculative)
            return
        self._before_update()
        self._reach(step, "apply")
        if self._due(step, "half"):
            half = _every_second(result.reduced)
            self._rollback.try_out(
                Update(step, half, scale), lambda: self._reach(step, "half")
            )  # it only hung for a while
        with self._activity.doing(OPTIMIZER):
            self._rollback.apply(Update(step, result.reduced, scale), speculative=speculative)
        held = self._rollback.peak_bytes + self._buffer_bytes
        self._peak_bytes = max(self._peak_bytes, held)
        self._stage.apply_buffer_changes(result.totals.changes)
        self._reach(step, "applied")


def _rollback(consistency: str, optimizer: StageOptimizer, keeps_old: bool) -> StepRollback:
    if consistency == "keep-old":
        return SnapshotRollback(optimizer, keeps_old=keeps_old)
    # loads Numba: with undo only
    from holdfast.runtime.update.inverse_rollback import InverseRollback

    return InverseRollback(optimizer, keeps_old=keeps_old)


def _every_second(reduced: Reduced) -> Reduced:
    touched = tuple(is_used and slot % 2 == 1 for slot, is_used in enumerate(reduced.touched))
    return replace(reduced, touched=touched)


@contextmanager
def _swapped(parameters: list[nn.Parameter], values: tuple[Tensor, ...]) -> Iterator[None]:
    """Other memory for a while: graphs of micro-batches in flight must not see a change."""
    present = [parameter.data for parameter in parameters]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value.to(parameter.dtype)  # of a master, what it was rounded to
    try:
        yield
    finally:
        for parameter, value in zip(parameters, present, strict=True):
            parameter.data = value
