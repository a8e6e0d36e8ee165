"""Runs one worker's lanes: the rest of half-done steps first, then step after step.

Order and routes come from the plan, not from here. Tensors for the next or previous stage leave as
soon as they exist; the only waits are for tensors that are not here yet. Whatever breaks a
run off, it leaves whole operations behind: it can be run again with another plan.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from holdfast.batches import Batches, num_tokens
from holdfast.cluster import WorkerId
from holdfast.protocol.records import OperationTime
from holdfast.runtime.activity import LOAD, Activity
from holdfast.runtime.borders import Border
from holdfast.runtime.boundary_log import BoundaryLog
from holdfast.runtime.commit import Committed, Phase, StageCommit
from holdfast.runtime.emulation import EmulatedDevice
from holdfast.runtime.injection import Injector
from holdfast.runtime.job_code import job_code, pause
from holdfast.runtime.ledger import Ledger
from holdfast.runtime.seeding import DRAWING
from holdfast.runtime.stage import Stage
from holdfast.runtime.step_sums import StepSums
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.running import RunningStep
from holdfast.transport.base import Transport


@dataclass
class StepRecord:
    """What one step did on this worker, abandoned attempts included."""

    operations: list[OperationTime] = field(default_factory=list)


class _Redo(Exception):
    """The step before was not what was expected: what was computed since is void."""


@dataclass(frozen=True)
class Work:
    """A plan, as one worker has to follow it. ``steady``: of each step from ``first_step`` on."""

    running: Sequence[RunningStep]
    steady: Callable[[int], RunningStep]  # asked when a step begins; its own number means nothing
    first_step: int
    end_step: int
    timeout_s: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "_of", {one.step: one for one in self.running})

    def routes(self, step: int, attempt: int) -> RunningStep:
        """A half-done step that has to be tried again from its start is one like any other."""
        half_done: RunningStep | None = self._of.get(step)  # type: ignore[attr-defined]
        return half_done if half_done and half_done.attempt >= attempt else self.steady(step)

    @property
    def begins_with(self) -> int:
        return min([one.step for one in self.running], default=self.first_step)


@dataclass(frozen=True)
class Lane:
    """All that an executor works with, in any epoch. ``again`` runs what others need once more."""

    me: WorkerId
    number: int  # of the stage
    stage: Stage
    again: Stage
    batches: Batches
    transport: Transport
    commit: StageCommit
    ledger: Ledger
    sums: StepSums
    injector: Injector
    reduce: Callable[[RunningStep, int, int], None]  # of a step and attempt
    begin_step: Callable[[int, int], None]
    on_commit: Callable[[Committed, StepRecord], None]
    on_first: Callable[[], None]  # the first operation of a plan begins
    check: Callable[[], None]  # raises if this worker is to stop
    device: EmulatedDevice
    staggered: bool
    ran: Callable[[str], None] = lambda who: None  # told which code of the job has run; may raise
    log: BoundaryLog = field(default_factory=BoundaryLog)
    activity: Activity = field(default_factory=Activity)


class Executor:
    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._records: dict[int, StepRecord] = {}
        self._trust = lane.staggered  # until a verdict shows that trust costs more than it gains
        self._border = Border(lane.me, lane.number, lane.transport)
        self._step = 0
        self._attempt = 0
        self._is_first = False

    def run(self, work: Work) -> None:
        """All that is left to do until ``work.end_step`` steps are settled."""
        lane, self._is_first = self._lane, True
        self._timeout_s = work.timeout_s
        lane.again.drop_all()
        self._settle_what_is_known()
        self._resend(work)
        self._step = work.begins_with
        while self._step < work.end_step:
            try:
                self._run_step(work)
            except _Redo:
                continue
            self._step += 1
        if lane.commit.phase is not Phase.COLLECTING:
            self._settle_last()

    def _settle_what_is_known(self) -> None:
        commit = self._lane.commit
        if commit.phase is not Phase.COLLECTING and not commit.missing():
            self._settle_last()

    def _settle_last(self) -> None:
        try:
            self._settle()
        except _Redo:
            return  # whatever was begun of the next step is void and will begin anew

    def _resend(self, work: Work) -> None:
        lane = self._lane
        for routes in work.running:
            for fact, to in routes.resend(lane.me):
                tensors = lane.ledger.find(routes.step, fact)
                self._border.send(to, fact, routes.step, routes.attempt, tensors)

    def _run_step(self, work: Work) -> None:
        lane, step = self._lane, self._step
        self._attempt = self._attempt_of(step)
        self._routes = routes = work.routes(step, self._attempt)
        if step < lane.commit.reduced:
            self._attempt = routes.attempt
            self._run_again(routes)
            return
        if not lane.ledger.has_begun(step, self._attempt):
            lane.stage.drop_all()
            lane.begin_step(step, self._attempt)
            lane.log.begin_step(step)
            lane.injector.begin(step)
        self._records.setdefault(step, StepRecord())
        ops = routes.schedule.lanes.get(lane.me, ())
        self._split = {op.microbatch for op in ops if op.kind is Kind.B}
        for op in ops:
            lane.check()
            self._finish_step_before(op)
            self._run(op)

    def _attempt_of(self, step: int) -> int:
        before = self._lane.commit.verdicts.get(step - 1)
        return int(self._lane.staggered and before is not None and not before.good)

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
            with self._lane.log.waits():
                found = self._lane.transport.wait_any([*missing, *wanted], self._timeout_s)
            if found >= len(missing):
                return True
        return False

    def _settle(self) -> None:
        lane = self._lane
        committed = lane.commit.settle()
        lane.log.settled(committed.step, committed.verdict)
        good = committed.verdict.good
        self._trust = lane.staggered and good
        lane.ledger.release_before(committed.step)
        self._border.release_before(committed.step)
        lane.on_commit(committed, self._records.pop(committed.step, StepRecord()))
        if lane.staggered and not good:
            # Whoever went on with the wrong weights sent tensors under attempt 0: all refuse them.
            lane.transport.forget(committed.step + 1, 0)
            raise _Redo

    # --- operations ---

    def _run(self, op: Op) -> None:
        lane, step = self._lane, self._step
        incoming = self._receive(op)
        lane.injector.before(step, op, lane.ledger.num_done)
        start_s, cpu_s = self._begin(), time.thread_time()
        outgoing = self._computed(op, incoming)
        lane.device.finish(op.kind, start_s)
        if op.kind is not Kind.R:  # whose time is mostly spent waiting for others
            self._slow_down(time.monotonic() - start_s)
        took = (start_s, time.monotonic(), time.thread_time() - cpu_s)
        self._records[step].operations.append(
            OperationTime(str(op), *took, self._border.size_of(op, step))
        )
        if op.microbatch is not None:
            self._keep(op, outgoing)
            lane.ledger.ran(op)
            lane.injector.after(step, op, lane.ledger.num_done)
            self._send(op, outgoing)

    def _begin(self) -> float:
        if self._is_first:
            self._is_first = False
            self._lane.on_first()
        return time.monotonic()

    def _slow_down(self, took_s: float) -> None:
        more_s = self._lane.injector.slowdown(took_s)
        if more_s > 0:
            time.sleep(more_s)

    def _computed(self, op: Op, incoming: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the job's code raises leaves the state as it was, but for an optimizer's step."""
        if op.microbatch is None:
            return self._compute(op, incoming)
        with job_code(self._step, str(op), self._lane.check):
            computed = self._compute(op, incoming)
            if op.kind in (Kind.B, Kind.BW):  # in a forward each layer is told of by itself
                self._lane.ran(f"a backward ({op})")
            return computed

    def _pause(self, pause_s: float) -> None:
        with self._lane.activity.waiting():
            pause(pause_s, self._lane.check)

    def _compute(self, op: Op, incoming: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        lane, microbatch = self._lane, op.microbatch
        if microbatch is None:
            lane.reduce(self._routes, self._step, self._attempt)
            return ()
        with lane.activity.doing(op.kind.name, microbatch):
            match op.kind:
                case Kind.F:
                    return self._forward(lane.stage, microbatch, incoming, counts=True)
                case Kind.B:
                    given = self._border.placed(self._step, microbatch, incoming)
                    return _present(lane.stage.backward_input(microbatch, given))
                case Kind.BW:
                    given = self._border.placed(self._step, microbatch, incoming)
                    return _present(lane.stage.backward(microbatch, given))
                case _:
                    lane.stage.backward_weight(microbatch)
                    return ()

    def _forward(
        self, stage: Stage, microbatch: int, inputs: tuple[Tensor, ...], *, counts: bool
    ) -> tuple[Tensor, ...]:
        """``counts``: its loss and its changes of buffers are part of the step."""
        lane, target = self._lane, None
        is_last = lane.number == self._routes.schedule.shape.last_stage
        if lane.number == 0 or is_last:
            with DRAWING, lane.activity.doing(LOAD, microbatch):
                loaded, target = lane.batches.load(self._step, microbatch, self._pause)
            lane.ran("Job.data or Job.collate")
            inputs = loaded if lane.number == 0 else inputs
        self._border.note_inputs(self._step, microbatch, inputs)
        outputs = stage.forward(
            self._step,
            microbatch,
            inputs,
            target,
            split=not counts or microbatch in self._split,
            constants=[i for i, tensor in enumerate(inputs) if not tensor.requires_grad],
        )
        loss = stage.take_loss(microbatch) if is_last else 0.0
        changes: Mapping[str, Tensor] = stage.take_buffer_changes(microbatch)
        if counts:
            lane.sums.add(changes)
            if is_last:
                lane.sums.add_loss(microbatch, loss, num_tokens(target))
        self._border.note_outputs(self._step, microbatch, outputs)
        return outputs

    # --- operations of a step that is over here, for others who lost their results ---

    def _run_again(self, routes: RunningStep) -> None:
        lane = self._lane
        for op in routes.schedule.lanes.get(lane.me, ()):
            lane.check()
            incoming = self._receive(op)
            start_s = self._begin()
            with lane.commit.old_weights(self._step), job_code(self._step, str(op), lane.check):
                outgoing = self._compute_again(op, incoming)
            lane.device.finish(op.kind, start_s)
            self._keep(op, outgoing)
            self._send(op, outgoing)
        lane.again.drop_all()

    def _compute_again(self, op: Op, incoming: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert op.microbatch is not None
        stage = self._lane.again
        if op.kind is Kind.F:
            return self._forward(stage, op.microbatch, incoming, counts=False)
        given = self._border.placed(self._step, op.microbatch, incoming)
        gradients = _present(stage.backward_input(op.microbatch, given))
        stage.drop(op.microbatch)  # its weight gradient is in a sum already
        return gradients

    # --- tensors over the border ---

    def _keep(self, op: Op, tensors: tuple[Tensor, ...]) -> None:
        last = self._routes.schedule.shape.last_stage
        travels = op.stage < last if op.kind is Kind.F else op.stage > 0 and op.kind is not Kind.W
        if travels:
            self._border.check(op, tensors)
            self._lane.ledger.keep(self._step, op, tensors)
            self._lane.log.keep(self._step, self._attempt, op, tensors)

    def _wanted(self, op: Op) -> list[tuple[WorkerId, Any]]:
        origin = self._routes.origin(op)
        if origin is None:
            return []
        return self._border.wanted(op, origin, self._step, self._attempt)

    def _receive(self, op: Op) -> tuple[Tensor, ...]:
        origin = self._routes.origin(op)
        if origin is None:
            return ()
        with self._lane.log.waits():
            return self._border.receive(op, origin, self._step, self._attempt, self._timeout_s)

    def _send(self, op: Op, tensors: tuple[Tensor, ...]) -> None:
        for to in self._routes.receivers(op):
            self._border.send_result(to, op, self._step, self._attempt, tensors)


def _present(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    return tuple(gradient for gradient in gradients if gradient is not None)
