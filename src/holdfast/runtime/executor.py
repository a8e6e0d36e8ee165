"""Runs one worker's lane, step after step. Order and routes come from the schedule, not from here.

Tensors for the next or previous stage leave as soon as they exist; the only waits are for tensors
that are not here yet, and they end with the transport.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.job import Batches, num_tokens
from holdfast.runtime.commit import Committed, Phase, StageCommit
from holdfast.runtime.emulation import EmulatedDevice
from holdfast.runtime.stage import Stage
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.schedule import Schedule
from holdfast.transport.base import Channel, Tag, Transport

MAX_BORDER_TENSORS = 16
_MORE = 32  # tensor i of k travels as part _MORE * i + k ...
_CONSTANT = 1024  # ... plus this if it is an activation that takes no gradient


@dataclass
class StepRecord:
    """What one step did on this worker, abandoned attempts included."""

    losses: dict[int, float] = field(default_factory=dict)
    num_tokens: int = 0
    operations: list[tuple[str, float, float]] = field(default_factory=list)


class _TakenBack(Exception):
    """The step before was applied on trust, and wrongly: what was computed since is void."""


@dataclass(frozen=True)
class Lane:
    """All that an executor works with. ``reduce`` runs the stage's reduction of a step."""

    me: WorkerId
    schedule: Schedule
    stage: Stage
    batches: Batches
    transport: Transport
    commit: StageCommit
    reduce: Callable[[int, int], None]
    begin_step: Callable[[], None]
    on_forward: Callable[[Mapping[str, Tensor]], None]  # changes of buffers
    on_commit: Callable[[Committed, StepRecord], None]
    compute: AbstractContextManager[Any]  # held while random numbers may be drawn
    device: EmulatedDevice
    staggered: bool
    timeout_s: float


class Executor:
    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._ops = lane.schedule.lanes[lane.me]
        self._split = {op.microbatch for op in self._ops if op.kind is Kind.B}
        self._last_stage = lane.schedule.shape.last_stage
        self._records: dict[int, StepRecord] = {}
        self._step = 0
        self._attempt = 0
        self._trust = lane.staggered  # until a verdict shows that trust costs more than it gains
        self._border_part = 1  # of the first tensor of the last input
        self._carries: dict[int, list[bool]] = {}  # which outputs get a gradient back

    def run(self, first_step: int, end_step: int) -> None:
        """Steps ``first_step`` to ``end_step`` - 1."""
        self._step, self._attempt = first_step, 0
        while self._step < end_step:
            try:
                self._run_lane()
            except _TakenBack:
                self._lane.stage.drop_all()
                continue
            self._step, self._attempt = self._step + 1, 0
        if self._lane.commit.phase is not Phase.COLLECTING:
            self._settle()

    def _run_lane(self) -> None:
        record = self._records[self._step] = StepRecord(
            operations=self._records.get(self._step, StepRecord()).operations
        )
        self._lane.begin_step()
        for op in self._ops:
            self._finish_step_before(op)
            self._run(op, record)

    # --- the step before this one ---

    def _finish_step_before(self, op: Op) -> None:
        commit = self._lane.commit
        match commit.phase:
            case Phase.COLLECTING:
                return
            case Phase.REDUCED:
                if self._trust and self._input_comes_first(op):
                    commit.apply_on_trust()
                else:
                    self._settle()
            case Phase.ON_TRUST:
                # A bad verdict must end the wait for an input: the sender will never send it.
                if not self._input_comes_first(op):
                    self._settle()

    def _input_comes_first(self, op: Op) -> bool:
        """Whether there is work to do before the verdict of the step before is known."""
        if op.kind is Kind.R:
            return False  # nothing is reduced before the step before is settled
        while missing := self._lane.commit.missing():
            wanted = self._wanted(op)
            if not wanted:
                return True
            found = self._lane.transport.wait_any([*missing, *wanted], self._lane.timeout_s)
            if found >= len(missing):
                return True
        return False

    def _settle(self) -> None:
        committed = self._lane.commit.settle()
        good = committed.verdict.good
        record = self._records.pop(committed.step)
        if self._lane.staggered and not good:
            # Whoever went on with the wrong weights sent tensors under attempt 0: all refuse them.
            self._attempt = 1
            self._lane.transport.forget(committed.step + 1, 0)
        self._trust = self._lane.staggered and good
        self._lane.on_commit(committed, record)
        if committed.taken_back:
            raise _TakenBack

    # --- operations ---

    def _run(self, op: Op, record: StepRecord) -> None:
        incoming = self._receive(op)
        start_s = time.monotonic()
        outgoing = self._compute(op, incoming, record)
        self._lane.device.finish(op.kind, start_s)
        end_s = time.monotonic()
        self._send(op, outgoing)
        record.operations.append((str(op), start_s, end_s))

    def _compute(
        self, op: Op, incoming: tuple[Tensor, ...], record: StepRecord
    ) -> tuple[Tensor, ...]:
        lane, microbatch = self._lane, op.microbatch
        if microbatch is None:
            lane.reduce(self._step, self._attempt)
            return ()
        match op.kind:
            case Kind.F:
                return self._forward(microbatch, incoming, record)
            case Kind.B:
                given = self._placed(microbatch, incoming)
                return _present(lane.stage.backward_input(microbatch, given))
            case Kind.BW:
                given = self._placed(microbatch, incoming)
                return _present(lane.stage.backward(microbatch, given))
            case _:
                lane.stage.backward_weight(microbatch)
                return ()

    def _forward(
        self, microbatch: int, inputs: tuple[Tensor, ...], record: StepRecord
    ) -> tuple[Tensor, ...]:
        lane = self._lane
        stage, target = lane.me.stage, None
        if stage in (0, self._last_stage):
            with lane.compute:
                loaded, target = lane.batches.load(self._step, microbatch)
            inputs = loaded if stage == 0 else inputs
        outputs = lane.stage.forward(
            self._step,
            microbatch,
            inputs,
            target,
            split=microbatch in self._split,
            constants=[i for i, tensor in enumerate(inputs) if not tensor.requires_grad],
        )
        if stage == self._last_stage:
            record.losses[microbatch] = lane.stage.take_loss(microbatch)
            record.num_tokens += num_tokens(target)
        lane.on_forward(lane.stage.take_buffer_changes(microbatch))
        self._carries[microbatch] = [tensor.requires_grad for tensor in outputs]
        return outputs

    def _placed(self, microbatch: int, gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """Gradients as the stage wants them: None for each output that gets none back."""
        arrived = iter(gradients)
        return tuple(next(arrived) if carries else None for carries in self._carries[microbatch])

    # --- tensors over the border ---

    def _wanted(self, op: Op) -> list[tuple[WorkerId, Tag]]:
        """First messages any of which says that the operation's input is here; [] if it needs none.

        The part of the first one tells how many there are.
        """
        if op.kind is Kind.F and op.stage > 0:
            as_before = self._address(op, self._border_part)
            if self._lane.transport.has(*as_before):
                return [as_before]
            counts = range(1, MAX_BORDER_TENSORS + 1)
            return [self._address(op, n + flag) for n in counts for flag in (0, _CONSTANT)]
        if op.kind in (Kind.B, Kind.BW) and op.stage < self._last_stage:
            assert op.microbatch is not None
            count = sum(self._carries[op.microbatch])
            return [self._address(op, count)] if count else []
        return []

    def _address(self, op: Op, part: int) -> tuple[WorkerId, Tag]:
        assert op.microbatch is not None
        forward = op.kind is Kind.F
        source = self._lane.schedule.route(op.stage - 1 if forward else op.stage + 1, op.microbatch)
        channel = Channel.ACTIVATION if forward else Channel.GRADIENT
        return source, Tag(channel, self._step, self._attempt, op.microbatch, part)

    def _receive(self, op: Op) -> tuple[Tensor, ...]:
        wanted = self._wanted(op)
        if not wanted:
            return ()
        lane = self._lane
        first = wanted[lane.transport.wait_any(wanted, lane.timeout_s)]
        count = first[1].part % _MORE
        if op.kind is Kind.F:
            self._border_part = first[1].part
            return tuple(self._receive_activation(op, _MORE * i + count) for i in range(count))
        addresses = [self._address(op, _MORE * i + count) for i in range(count)]
        return tuple(lane.transport.receive(*address, lane.timeout_s) for address in addresses)

    def _receive_activation(self, op: Op, part: int) -> Tensor:
        """With ``requires_grad`` as the sender had it: some kernels are chosen by it."""
        lane = self._lane
        either = [self._address(op, part), self._address(op, part + _CONSTANT)]
        found = lane.transport.wait_any(either, lane.timeout_s)
        tensor = lane.transport.receive(*either[found], lane.timeout_s)
        return tensor.requires_grad_(found == 0)

    def _send(self, op: Op, tensors: tuple[Tensor, ...]) -> None:
        if op.microbatch is None or op.kind is Kind.W:
            return
        forward = op.kind is Kind.F
        to_stage = op.stage + 1 if forward else op.stage - 1
        if not 0 <= to_stage <= self._last_stage:
            return
        if forward and not tensors:
            raise ConfigError(f"stage {op.stage} hands on no tensor; a layer must return some")
        if len(tensors) > MAX_BORDER_TENSORS:
            raise ConfigError(
                f"stage {op.stage} hands on {len(tensors)} tensors; at most {MAX_BORDER_TENSORS}"
            )
        to = self._lane.schedule.route(to_stage, op.microbatch)
        channel = Channel.ACTIVATION if forward else Channel.GRADIENT
        for i, tensor in enumerate(tensors):
            part = _MORE * i + len(tensors)
            if forward and not tensor.requires_grad:
                part += _CONSTANT
            tag = Tag(channel, self._step, self._attempt, op.microbatch, part)
            self._lane.transport.send(to, tag, tensor)


def _present(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    return tuple(gradient for gradient in gradients if gradient is not None)
