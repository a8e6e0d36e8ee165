"""Runs one worker's lanes in one epoch: the remainder of half-done steps first, then step after
step.

Order and routes come from the plan, tensors from a boundary, neither is known here. Tensors for the
next or previous stage leave as soon as they exist; the only waits are for tensors that are not
here yet. Whatever breaks a run off, it leaves whole operations behind: another executor can go on.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.cluster import WorkerId
from holdfast.faults.injection import Injector
from holdfast.protocol.records import OperationTime
from holdfast.runtime.probe.emulation import EmulatedDevice
from holdfast.runtime.step.attempt import Attempt
from holdfast.runtime.step.crossings import Tensors
from holdfast.runtime.step.ending import StepEnding
from holdfast.runtime.step.ledger import Ledger
from holdfast.runtime.step.operations import StageOperations
from holdfast.runtime.update.commit import CommitPhase, Committed
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.running import RunningStep
from holdfast.transport.base import Tag


class EpochPlan:
    """A plan, as one worker follows it: half-done steps, then those from ``first_step`` on."""

    def __init__(
        self,
        me: WorkerId,
        running: Sequence[RunningStep],
        steady: Callable[[int], RunningStep],
        *,
        first_step: int,
        end_step: int,
    ) -> None:
        """``steady`` is asked when a step begins."""
        self.me, self.running = me, tuple(running)
        self.end_step = end_step
        self._steady = steady
        self._half_done = {one.step: one for one in running}
        self.begins_with = min(self._half_done, default=first_step)

    def attempt(self, step: int, number: int) -> Attempt:
        """A half-done step that has to be tried again from its start is one like any other."""
        half_done = self._half_done.get(step)
        if half_done is None or half_done.attempt < number:
            return Attempt(self.me, step, number, self._steady(step))
        return Attempt(self.me, step, number, half_done)


class BoundaryTensors(Protocol):
    """Where the tensors of the neighbouring stages come from, and where one's own go."""

    def begin_step(self, step: int) -> None:
        """From its start, or from its start once more."""
        ...

    def comes_before(self, op: Op, at: Attempt, others: Sequence[tuple[WorkerId, Tag]]) -> bool:
        """Waits until the input of ``op`` is here, or one of these; which. True: it needs none."""
        ...

    def receive(self, op: Op, at: Attempt) -> Tensors:
        """What ``op`` needs of a neighbouring stage, with ``requires_grad`` as its maker had it."""
        ...

    def keep(self, op: Op, at: Attempt, tensors: Tensors) -> None:
        """``op`` has made these. From now on others may ask for them, again and again."""
        ...

    def send(self, op: Op, at: Attempt, tensors: Tensors) -> None:
        """To whoever needs them."""
        ...

    def send_again(self, routes: RunningStep) -> None:
        """What was kept of a half-done step and is missing elsewhere."""
        ...

    def forget(self, step: int, attempt: int) -> None:
        """Nothing of this attempt, or of an earlier one, is received any more."""
        ...


# --- what a run tells its owner, who may act on it before the run goes on ---


@dataclass(frozen=True, slots=True)
class FirstOperation:
    """The first operation of the plan begins."""


@dataclass(frozen=True, slots=True)
class StepBegins:
    """From its start. Not told of the remainder of a step."""

    step: int


@dataclass(frozen=True, slots=True)
class StepSettled:
    """``operations``: all that ran of it here, abandoned attempts included."""

    committed: Committed
    operations: Sequence[OperationTime]


@dataclass(frozen=True, slots=True)
class StandsStill:
    """All steps before ``version`` are final here, and none after it has begun."""

    version: int


Happening = FirstOperation | StepBegins | StepSettled | StandsStill
Happenings = Iterator[Happening]


class _Redo(Exception):
    """The step before was not what was expected: what was computed since is void."""


class Executor:
    def __init__(
        self,
        plan: EpochPlan,
        operations: StageOperations,
        boundary: BoundaryTensors,
        ending: StepEnding,
        *,
        ledger: Ledger,
        injector: Injector,
        device: EmulatedDevice,
        check: Callable[[], None],
        stands_still: Callable[[int], bool] = lambda version: False,
    ) -> None:
        """``check`` raises if this worker is to stop. ``stands_still``: whether there is something
        to do with a version before the step after it begins."""
        self._plan, self._operations, self._boundary = plan, operations, boundary
        self._ending, self._commit = ending, ending.commit
        self._ledger, self._injector, self._device = ledger, injector, device
        self._check, self._stands_still = check, stands_still
        self._has_begun = False

    def run(self) -> Happenings:
        """All that is left to do until the last step of the plan is committed."""
        self._operations.end_run_again()
        if self._commit.phase is not CommitPhase.COLLECTING and not self._ending.missing():
            yield from self._settle_last()
        for routes in self._plan.running:
            self._boundary.send_again(routes)
        step = self._plan.begins_with
        while step < self._plan.end_step:
            if self._stands_still(step):
                yield from self._stand_still(step)
            try:
                yield from self._run_step(step)
            except _Redo:
                continue
            step += 1
        if self._commit.phase is not CommitPhase.COLLECTING:
            yield from self._settle_last()
        if self._stands_still(step):
            yield from self._stand_still(step)

    def _stand_still(self, version: int) -> Happenings:
        if self._commit.phase is not CommitPhase.COLLECTING:
            yield from self._settle_last()
        self._check()
        if not self._has_begun:
            yield from self._tell_first()
        yield StandsStill(version)

    def _run_step(self, step: int) -> Happenings:
        at = self._plan.attempt(step, self._commit.attempt_at(step))
        if step < self._commit.reduced:
            yield from self._run_again(replace(at, number=at.routes.attempt))
            return
        if not self._ledger.has_begun(step, at.number):
            yield from self._begin_step(at)
        self._operations.foresee(at, self._plan.end_step)
        for op in at.lane:
            self._check()
            if self._commit.phase is not CommitPhase.COLLECTING:
                yield from self._finish_step_before(op, at)
            incoming = self._boundary.receive(op, at)
            self._injector.before(step, op, self._ledger.num_done)
            if not self._has_begun:
                yield from self._tell_first()
            self._run(op, at, incoming)

    def _begin_step(self, at: Attempt) -> Happenings:
        self._operations.begin_step()
        self._ledger.begin(at.step, at.number)
        self._injector.enter(at.step)  # a benchmark is as slow as the step
        yield StepBegins(at.step)
        self._boundary.begin_step(at.step)
        self._injector.begin(at.step)

    def _tell_first(self) -> Happenings:
        self._has_begun = True
        yield FirstOperation()

    # --- the step before this one ---

    def _finish_step_before(self, op: Op, at: Attempt) -> Happenings:
        if self._commit.phase is CommitPhase.REDUCED:
            if self._commit.speculates and self._input_comes_first(op, at):
                self._commit.apply_speculatively()
            else:
                yield from self._settle()
        # A bad verdict must end the wait for an input: the sender will never send it.
        elif not self._input_comes_first(op, at):
            yield from self._settle()

    def _input_comes_first(self, op: Op, at: Attempt) -> bool:
        """Whether there is work to do before the verdict of the step before is known."""
        if op.kind is Kind.R or (op.kind is not Kind.F and self._commit.is_alone):
            return False  # nothing is reduced, or summed in the same memory, before it is committed
        while missing := self._ending.missing():
            if self._boundary.comes_before(op, at, missing):
                return True
        return False

    def _settle(self) -> Happenings:
        committed = self._ending.commit_step()
        self._ledger.release_before(committed.step)
        self._operations.crossings.release_before(committed.step)
        yield StepSettled(committed, self._ledger.take_times(committed.step))
        if self._commit.voids_the_next(committed.verdict):
            # Whoever went on with the wrong weights sent tensors under attempt 0: all refuse them.
            self._boundary.forget(committed.step + 1, 0)
            raise _Redo

    def _settle_last(self) -> Happenings:
        try:
            yield from self._settle()
        except _Redo:
            return  # whatever was begun of the next step is void and will begin anew

    # --- operations ---

    def _run(self, op: Op, at: Attempt, incoming: Tensors) -> None:
        ledger, start_s, cpu_s = self._ledger, time.monotonic(), time.thread_time()
        span = self._device.real.begin()
        outgoing: Tensors = ()
        if op.kind is Kind.R:
            self._ending.reduce(at)
        else:
            outgoing = self._operations.run(op, at, incoming)
        if span is not None:
            span.end()
        self._device.finish(op.kind, start_s)
        if op.kind is not Kind.R:  # whose time is mostly spent waiting for others
            self._slow_down(time.monotonic() - start_s)
        took = (start_s, time.monotonic(), time.thread_time() - cpu_s)
        size = self._operations.crossings.size_of(at.step, op.microbatch)
        ledger.took(at.step, OperationTime(str(op), *took, size), span)
        if op.kind is not Kind.R:
            self._boundary.keep(op, at, outgoing)
            ledger.ran(op)
            self._injector.after(at.step, op, ledger.num_done)
            self._boundary.send(op, at, outgoing)

    def _slow_down(self, took_s: float) -> None:
        more_s = self._injector.slowdown(took_s)
        if more_s > 0:
            time.sleep(more_s)

    def _run_again(self, at: Attempt) -> Happenings:
        """Operations of a step that is over here, for others who lost their results."""
        for op in at.lane:
            self._check()
            incoming = self._boundary.receive(op, at)
            if not self._has_begun:
                yield from self._tell_first()
            start_s = time.monotonic()
            with self._commit.old_weights(at.step):
                outgoing = self._operations.run_again(op, at, incoming)
            self._device.finish(op.kind, start_s)
            self._boundary.keep(op, at, outgoing)
            self._boundary.send(op, at, outgoing)
        self._operations.end_run_again()
