"""What a worker has of its running steps: how far each micro-batch is, every tensor it sent, times.

What was sent is kept until nobody can ask for it again, so that a failure elsewhere costs no
operation here. Knows nothing of plans: it only remembers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from holdfast.device.processor import DeviceSpan
from holdfast.planner.remainder.facts import PROGRESS_AFTER, MicrobatchProgress
from holdfast.protocol.records import OperationTime
from holdfast.schedule.operation import Fact, Kind, Op, What

Tensors = tuple[Tensor, ...]


@dataclass
class KeptTensors:
    """Boundary tensors of one step, by micro-batch."""

    activations: dict[int, Tensors] = field(default_factory=dict)
    gradients: dict[int, Tensors] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        each = (*self.activations.values(), *self.gradients.values())
        return sum(tensor.nbytes for tensors in each for tensor in tensors)


class Ledger:
    """``step`` and ``attempt``: what the sums in the accumulators are of."""

    def __init__(self) -> None:
        self.step = -1
        self.attempt = 0
        self.num_done = 0  # operations of this step, since the newest plan
        self.peak_bytes = 0
        self._progress: dict[int, MicrobatchProgress] = {}
        self._kept: dict[int, KeptTensors] = {}
        self._times: dict[int, list[tuple[OperationTime, DeviceSpan | None]]] = {}
        self._bytes = 0
        self._done_before = (-1, 0)  # step, operations of it
        self._attempt_before = 0

    def done_of(self, step: int) -> int:
        """Operations finished of the running step, or of the one before it."""
        if step == self.step:
            return self.num_done
        return self._done_before[1] if step == self._done_before[0] else 0

    def attempt_of(self, step: int) -> int:
        return self.attempt if step == self.step else self._attempt_before

    @property
    def progress(self) -> Mapping[int, MicrobatchProgress]:
        return self._progress

    @property
    def kept(self) -> Mapping[int, KeptTensors]:
        return self._kept

    def begin(self, step: int, attempt: int) -> None:
        """Nothing is done yet; what an abandoned attempt left behind is void."""
        if step != self.step:
            self._done_before, self._attempt_before = (self.step, self.num_done), self.attempt
        self.step, self.attempt, self.num_done = step, attempt, 0
        self._progress = {}
        self._drop(step)

    def clear(self) -> None:
        """The state goes back: nothing of any step is done."""
        self.begin(-1, 0)
        self._done_before, self._attempt_before = (-1, 0), 0
        self.release_before(max(self._kept, default=-1) + 1)

    def new_plan(self) -> None:
        """Operations are counted in the lane of the plan that is followed."""
        self.num_done, self._done_before = 0, (-1, 0)

    def has_begun(self, step: int, attempt: int) -> bool:
        return (self.step, self.attempt) == (step, attempt)

    def ran(self, op: Op) -> None:
        """An operation of the step that the accumulators are of is finished."""
        self.num_done += 1
        if op.microbatch is not None:
            self._progress[op.microbatch] = PROGRESS_AFTER[op.kind]

    def took(self, step: int, time: OperationTime, span: DeviceSpan | None = None) -> None:
        """Also of an attempt that is abandoned later, and before an epoch ends."""
        self._times.setdefault(step, []).append((time, span))

    def take_times(self, step: int) -> Sequence[OperationTime]:
        """Of a step that is committed. Can be taken once."""
        taken = self._times.pop(step, [])
        return [time if span is None else _by_device(time, span) for time, span in taken]

    def keep(self, step: int, op: Op, tensors: Tensors) -> None:
        """``tensors``: what ``op`` made for a neighbouring stage."""
        assert op.microbatch is not None
        kept = self._kept.setdefault(step, KeptTensors())
        place = kept.activations if op.kind is Kind.F else kept.gradients
        before = place.get(op.microbatch, ())
        place[op.microbatch] = tensors
        self._bytes += sum(t.nbytes for t in tensors) - sum(t.nbytes for t in before)
        self.peak_bytes = max(self.peak_bytes, self._bytes)

    def find(self, step: int, fact: Fact) -> Tensors:
        """A kept tensor; KeyError would mean that facts were told which were not there."""
        assert fact.microbatch is not None
        kept = self._kept[step]
        place = kept.activations if fact.what is What.ACTIVATION else kept.gradients
        return place[fact.microbatch]

    def release_before(self, step: int) -> None:
        for old in [kept for kept in self._kept if kept < step]:
            self._drop(old)

    def _drop(self, step: int) -> None:
        dropped = self._kept.pop(step, None)
        if dropped is not None:
            self._bytes -= dropped.num_bytes


def _by_device(time: OperationTime, span: DeviceSpan) -> OperationTime:
    return time._replace(end_s=max(time.start_s, time.end_s + span.longer_s()))
