"""What of a stage's work goes into the boundary log: tensors over logged boundaries, verdicts,
ties.

The executor tells it everything; it picks. Files and threads are the writer's. Knows nothing of
replays.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import HoldfastError
from holdfast.protocol import messages
from holdfast.protocol.records import LogOrder
from holdfast.runtime.link.control_link import Stopped
from holdfast.runtime.reduce.buckets import ParameterName
from holdfast.runtime.reduce.verdict import Verdict
from holdfast.runtime.update.commit import StepResult
from holdfast.schedule.operation import Kind, Op
from holdfast.storage.log.frame import SAID_AGAIN, Flag, FrameKind, FrameName
from holdfast.storage.log.segment import LogIdentity
from holdfast.storage.log.tensors import frame_bytes
from holdfast.storage.log.writer import CLOSE_LIMIT_S, LogWriter
from holdfast.storage.places import Places

_LEAST_QUEUE_BYTES = 64 << 20
_STEPS_QUEUED = 4  # most that the disk may be behind
_VERDICTS_KEPT = 1000  # a checkpoint is whole some steps after it was taken
_NO_LIMIT_BYTES = 1 << 60
_NOTHING: AbstractContextManager[Any] = nullcontext()

SendMessage = Callable[[messages.Message], None]


class BoundaryLog:
    """Logs nothing: for runs without a log. ``FileLog`` is the other one."""

    @property
    def num_bytes(self) -> int:
        """Written in all."""
        return 0

    # --- by the training thread ---

    def begin_step(self, step: int) -> None: ...

    def keep(self, step: int, attempt: int, op: Op, tensors: Sequence[Tensor]) -> None:
        """What ``op``, of any stage, has made for a neighbouring stage; never changed any more."""

    def reduced(self, result: StepResult) -> None:
        """The stage's gradient of a step is there: tied parameters may be wanted elsewhere."""

    def keep_tied(
        self, stage: int, step: int, attempt: int, number: int, values: Tensor, touched: bool
    ) -> None:
        """One tied parameter's reduced gradient, padded; ``number``: of its bucket."""

    def committed(self, step: int, verdict: Verdict) -> None: ...

    def waits(self) -> AbstractContextManager[Any]:
        """Around every wait for others: there is time to write."""
        return _NOTHING

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was logged can be read; False: it stopped, or takes longer."""
        return True

    def close(self, timeout_s: float = CLOSE_LIMIT_S) -> None:
        """``timeout_s`` = 0: without writing what is left, as one that is killed."""

    # --- by the control thread ---

    def boundaries(self, boundaries: Collection[int], limit_bytes: int) -> None:
        """Which boundaries are logged from now on, and what the log may take; 0: no limit."""

    def sealed(self, step: int) -> None:
        """A checkpoint is whole: nothing from before it is wanted any more."""


def open_log(
    log: LogOrder | None,
    places: Places,
    *,
    worker: WorkerId,
    stage: int,
    slots: Mapping[int, Sequence[ParameterName]],
    ties: Sequence[Sequence[ParameterName]],
    every_steps: int,
    tell: SendMessage,
) -> BoundaryLog:
    """As ``Assign.log`` says. ``slots``: of every stage; ``every_steps``: between checkpoints."""
    if log is None:
        return BoundaryLog()
    own = _spanning(stage, slots, ties)
    return FileLog(
        log, places, worker=worker, stage=stage, ties=own, every_steps=every_steps, tell=tell
    )


class SpanningTie(NamedTuple):
    """A tied parameter with twins in several stages, this one among them."""

    number: int  # of its bucket
    slot: int  # in this stage
    first_stage: int
    last_stage: int

    def crosses(self, boundaries: Collection[int]) -> bool:
        """Whether its stages may be replayed without each other."""
        return any(boundary in boundaries for boundary in range(self.first_stage, self.last_stage))


def _spanning(
    stage: int,
    slots: Mapping[int, Sequence[ParameterName]],
    ties: Sequence[Sequence[ParameterName]],
) -> list[SpanningTie]:
    found = []
    for number, tie in enumerate(ties, start=1):
        twins = set(tie)
        stages = [other for other, names in slots.items() if not twins.isdisjoint(names)]
        if stage in stages and len(stages) > 1:
            slot = next(i for i, name in enumerate(slots[stage]) if name in twins)
            found.append(SpanningTie(number, slot, min(stages), max(stages)))
    return found


@dataclass
class _Volume:
    """What one step of this worker takes in a log, whether or not it is logged."""

    step: int
    activation_bytes: int = 0
    gradient_bytes: int = 0
    tied_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return self.activation_bytes + self.gradient_bytes + self.tied_bytes


class FileLog(BoundaryLog):
    def __init__(
        self,
        log: LogOrder,
        places: Places,
        *,
        worker: WorkerId,
        stage: int,
        ties: Sequence[SpanningTie],
        every_steps: int,
        tell: SendMessage,
    ) -> None:
        self._name, self._stage, self._ties = str(worker), stage, ties
        self._every_steps, self._tell = every_steps, tell
        self._boundaries = frozenset(log.boundaries)
        self._volume: _Volume | None = None  # of the step that is being measured
        self._is_measured = False
        self._verdicts: dict[int, Verdict] = {}  # of the last steps
        self._writer = LogWriter(
            lambda: places.log_root() / self._name,
            Path(places.log_mirror) / self._name if places.log_mirror else None,
            LogIdentity(log.run, self._name),
            limit_bytes=log.limit_bytes,
            # Until a step has shown how much there is, slowness cannot be told from size.
            queue_bytes=_NO_LIMIT_BYTES,
            on_state=self._on_state,
        )

    @property
    def num_bytes(self) -> int:
        return self._writer.num_bytes

    @property
    def queue_bytes(self) -> int:
        """Most that may wait to be written."""
        return self._writer.queue_bytes

    @property
    def is_alive(self) -> bool:
        """Whether its writing thread runs."""
        return self._writer.is_alive

    # --- by the training thread ---

    def begin_step(self, step: int) -> None:
        falls = bool(self._every_steps) and step % self._every_steps == 0
        self._writer.begin_step(step, new_segment=falls)
        if not self._is_measured and (self._volume is None or self._volume.step == step):
            self._volume = _Volume(step)  # again: what an abandoned attempt made is void

    def keep(self, step: int, attempt: int, op: Op, tensors: Sequence[Tensor]) -> None:
        assert op.microbatch is not None
        forward = op.kind is Kind.F
        if (op.stage if forward else op.stage - 1) in self._boundaries:
            kind = FrameKind.ACTIVATION if forward else FrameKind.GRADIENT
            self._writer.append(kind, op.stage, step, attempt, op.microbatch, tensors)
        volume = self._volume
        if volume is not None and volume.step == step and op.stage == self._stage:
            if forward:
                volume.activation_bytes += frame_bytes(tensors)
            else:
                volume.gradient_bytes += frame_bytes(tensors)

    def reduced(self, result: StepResult) -> None:
        reduced = result.reduced
        for tie in self._ties:
            if tie.crosses(self._boundaries):
                values = reduced.layout.padded(reduced.flat, tie.slot)
                touched = reduced.touched[tie.slot]
                step, attempt = result.step, result.attempt
                self.keep_tied(self._stage, step, attempt, tie.number, values, touched)

    def keep_tied(
        self, stage: int, step: int, attempt: int, number: int, values: Tensor, touched: bool
    ) -> None:
        flags = Flag.TOUCHED if touched else Flag.NONE
        self._writer.append(FrameKind.TIED, stage, step, attempt, number, (values,), flags)
        if self._volume is not None and self._volume.step == step:
            self._volume.tied_bytes += frame_bytes((values,))

    def committed(self, step: int, verdict: Verdict) -> None:
        recent = {s: v for s, v in self._verdicts.items() if s > step - _VERDICTS_KEPT}
        self._verdicts = recent | {step: verdict}  # a new one: the control thread reads it
        if self._boundaries:
            name, tensors, flags = self._verdict_frame(step, verdict, attempt=0)
            self._writer.append(*name, tensors, flags)
        if self._volume is not None and self._volume.step == step:
            self._measured(self._volume)

    def _verdict_frame(
        self, step: int, verdict: Verdict, attempt: int
    ) -> tuple[FrameName, tuple[Tensor, ...], Flag]:
        has_scale = verdict.scale is not None
        flags = Flag.SCALED if has_scale else Flag.NONE
        flags |= Flag.SKIP if verdict.skip else Flag.NONE
        numbers = [verdict.norm, verdict.scale if has_scale else 0.0]
        values = torch.tensor(numbers, dtype=torch.float64)
        return FrameName(FrameKind.VERDICT, self._stage, step, attempt, 0), (values,), flags

    def _measured(self, volume: _Volume) -> None:
        self._volume, self._is_measured = None, True
        queue_bytes = max(_LEAST_QUEUE_BYTES, _STEPS_QUEUED * volume.num_bytes)
        self._writer.queue_bytes = queue_bytes
        told = messages.LogVolume(
            worker=self._name,
            step=volume.step,
            activation_bytes=volume.activation_bytes,
            gradient_bytes=volume.gradient_bytes,
            tied_bytes=volume.tied_bytes,
        )
        self._tell(told)

    def waits(self) -> AbstractContextManager[Any]:
        return self._writer.waits()

    def flush(self, timeout_s: float) -> bool:
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_LIMIT_S) -> None:
        self._writer.close(timeout_s)

    # --- by the control thread ---

    def boundaries(self, boundaries: Collection[int], limit_bytes: int) -> None:
        self._boundaries = frozenset(boundaries)
        self._writer.limit_bytes = limit_bytes
        if not boundaries:
            self._writer.silence()

    def sealed(self, step: int) -> None:
        # The verdict of the step before tells how often the first one to replay was tried; said
        # again here, it does not keep the whole segment that it was in.
        verdict = self._verdicts.get(step - 1)
        if verdict is not None and self._boundaries:
            self._writer.trim(step, *self._verdict_frame(step - 1, verdict, SAID_AGAIN))
        else:
            self._writer.trim(step)

    # --- by any thread ---

    def _on_state(self, logging: bool, step: int, reason: str) -> None:
        state = messages.LogState(
            worker=self._name,
            step=step,
            logging=logging,
            reason=reason,
            num_bytes=self._writer.num_bytes,
        )
        try:
            self._tell(state)
        except (HoldfastError, Stopped):
            return  # the launcher is gone; whoever trains will notice
