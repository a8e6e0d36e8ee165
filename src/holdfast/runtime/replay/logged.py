"""What a replay takes from the boundary log where a training takes it from other workers.

Boundary tensors, verdicts, and the sums of tied parameters that stages outside of the replay have
twins of. What no log has, because it died with its writer, is logged once more.
"""

from collections.abc import Collection, Sequence

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.runtime.reduce.buckets import Bucket
from holdfast.runtime.reduce.reduction import Given
from holdfast.runtime.reduce.verdict import Verdict
from holdfast.runtime.state.boundary_log import BoundaryLog
from holdfast.runtime.step.attempt import Attempt
from holdfast.runtime.step.crossings import Tensors
from holdfast.runtime.step.epoch import Parts
from holdfast.runtime.update.commit import StepResult
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.running import RunningStep
from holdfast.storage.log.frame import FrameKind
from holdfast.storage.log.reader import LogReader
from holdfast.transport.base import Tag


class LoggedBoundary:
    """Of neighbouring ``stages`` that are run as one, under the number of the first."""

    def __init__(self, reader: LogReader, log: BoundaryLog, stages: Sequence[int]) -> None:
        self._reader, self._log = reader, log
        self._first, self._last = stages[0], stages[-1]

    def begin_step(self, step: int) -> None: ...

    def comes_before(self, op: Op, at: Attempt, others: Sequence[tuple[WorkerId, Tag]]) -> bool:
        return True

    def receive(self, op: Op, at: Attempt) -> Tensors:
        if op.microbatch is None:
            return ()
        if op.kind is Kind.F:
            kind, stage = FrameKind.ACTIVATION, self._first - 1
        else:
            kind, stage = FrameKind.GRADIENT, self._last + 1
        if not 0 <= stage <= at.routes.schedule.shape.last_stage:
            return ()
        return self._reader.read(kind, stage, at.step, at.number, op.microbatch)

    def keep(self, op: Op, at: Attempt, tensors: Tensors) -> None:
        """What died with its writer must be there when a neighbour is lost next."""
        made_by = Op(self._last, op.kind, op.microbatch) if op.kind is Kind.F else op
        self._log.keep(at.step, at.number, made_by, tensors)

    def send(self, op: Op, at: Attempt, tensors: Tensors) -> None: ...

    def send_again(self, routes: RunningStep) -> None: ...

    def forget(self, step: int, attempt: int) -> None: ...


class LoggedVerdicts:
    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._newest: tuple[int, Verdict] | None = None

    def of(self, step: int) -> Verdict:
        if self._newest is None or self._newest[0] != step:
            self._newest = step, Verdict(*self._reader.verdict(step))
        return self._newest[1]

    def tell(self, step: int, attempt: int, piece: Tensor) -> None: ...

    def missing(self, step: int, attempt: int) -> list[tuple[WorkerId, Tag]]:
        return []

    def hear(self, step: int, attempt: int, own: Tensor) -> Verdict:
        return self.of(step)


class LoggedTies:
    """Of the tied parameters that a stage outside of the replay has a twin of."""

    def __init__(self, reader: LogReader, parts: Parts, stage: int) -> None:
        self._reader, self._ties = reader, parts.ties
        self._own = set(parts.slots[stage])

    def given(self, bucket: Bucket, routes: RunningStep, tag: Tag) -> Given | None:
        if bucket.number == 0 or self._own.issuperset(self._ties[bucket.number - 1]):
            return None
        values, touched = self._reader.tied(bucket.number, tag.step, tag.attempt)
        return bucket, values, touched


class MissingLog(BoundaryLog):
    """Hands on to ``log`` what no log has yet, of ``boundaries`` only."""

    def __init__(
        self,
        reader: LogReader,
        log: BoundaryLog,
        boundaries: Collection[int],
        parts: Parts,
        stage: int,
    ) -> None:
        self._reader, self._log, self._boundaries, self._stage = reader, log, boundaries, stage
        own = parts.slots[stage]
        self._ties = {
            number: next(slot for slot, name in enumerate(own) if name in tie)
            for number, tie in enumerate(parts.ties, start=1)
            if not set(own).isdisjoint(tie)
        }

    def keep(self, step: int, attempt: int, op: Op, tensors: Sequence[Tensor]) -> None:
        assert op.microbatch is not None
        is_forward = op.kind is Kind.F
        kind = FrameKind.ACTIVATION if is_forward else FrameKind.GRADIENT
        if (op.stage if is_forward else op.stage - 1) not in self._boundaries:
            return
        if not self._reader.has(kind, op.stage, step, attempt, op.microbatch):
            self._log.keep(step, attempt, op, tensors)

    def reduced(self, result: StepResult) -> None:
        """Ties of stages that are replayed together now, but may be lost alone next."""
        reduced, known = result.reduced, (result.step, result.attempt)
        for number, slot in self._ties.items():
            if not self._reader.has(FrameKind.TIED, 0, *known, number):
                values = reduced.layout.padded(reduced.flat, slot)
                self._log.keep_tied(self._stage, *known, number, values, reduced.touched[slot])
