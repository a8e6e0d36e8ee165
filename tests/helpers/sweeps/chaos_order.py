"""Runs in which things happen in one order, however busy the machine is: some wait for others.

Only for workers that are threads.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Effect, Emit, SealCheckpoint
from holdfast.control.io.recorder import RunRecorder
from holdfast.faults.fault import COPY, Fault, FaultKind
from holdfast.faults.injection import Injector, ThreadActions
from holdfast.observability.events import (
    FaultFired,
    JoinFailed,
    RunStarted,
    WorkerJoined,
)
from holdfast.runtime.step.operations import StageOperations
from holdfast.schedule.operation import Kind, Op
from holdfast.transport.local.transport import LocalTransport

LIMIT_S = 60.0  # nobody waits this long unless the test fails
DAWDLE_S = 0.03  # of an operation


def unhurried_joins(patch: pytest.MonkeyPatch) -> None:
    """As long as somebody whom a fault has called is on its way into the run, operations take
    longer: it has time to enter before the run is over."""
    perform, run = RunRecorder.perform, StageOperations.run
    on_the_way = 0

    def noted(recorder: RunRecorder, effect: Effect) -> None:
        nonlocal on_the_way
        event = effect.event if isinstance(effect, Emit) else None
        if isinstance(event, RunStarted):
            on_the_way = 0
        if isinstance(event, FaultFired) and event.fault.startswith("join"):
            on_the_way += 1
        if isinstance(event, WorkerJoined | JoinFailed):
            on_the_way -= 1
        perform(recorder, effect)

    def dawdling(operations: StageOperations, *more: Any) -> Any:
        if on_the_way > 0:
            time.sleep(DAWDLE_S)
        return run(operations, *more)

    patch.setattr(RunRecorder, "perform", noted)
    patch.setattr(StageOperations, "run", dawdling)


def steps_wait_for_checkpoints(patch: pytest.MonkeyPatch, every: int) -> None:
    """Of one run: nobody trains more than a step ahead of a checkpoint that is not whole."""
    heard_of_seal, run = Coordinator.heard_of_seal, StageOperations.run
    whole, is_news = {0}, threading.Condition()

    def noted(coordinator: Coordinator, told: Any, at_s: float) -> list[Effect]:
        effects = heard_of_seal(coordinator, told, at_s)
        if isinstance(told, SealCheckpoint):  # else it has failed
            with is_news:
                whole.add(told.step)
                is_news.notify_all()
        return effects

    def waiting(operations: StageOperations, op: Op, at: Any, incoming: Any) -> Any:
        before = max(at.step - 1, 0)
        needed = before - before % every
        with is_news:
            assert is_news.wait_for(lambda: needed in whole, LIMIT_S), f"no checkpoint {needed}"
        return run(operations, op, at, incoming)

    patch.setattr(Coordinator, "heard_of_seal", noted)
    patch.setattr(StageOperations, "run", waiting)


def backward_waits_for_the_halt(patch: pytest.MonkeyPatch, waits: str, step: int) -> None:
    """In that step, counted from 0, worker ``waits`` uses no gradient before it is told to stop."""
    run, interrupt, is_told = StageOperations.run, LocalTransport.interrupt, threading.Event()

    def noted(transport: LocalTransport, epoch: int) -> None:
        interrupt(transport, epoch)
        if str(transport.me) == waits:
            is_told.set()

    def waiting(operations: StageOperations, op: Op, at: Any, incoming: Any) -> Any:
        if (str(at.me), at.step) == (waits, step) and op.kind in (Kind.B, Kind.BW):
            assert is_told.wait(LIMIT_S), f"nobody has told {waits} to stop"
        return run(operations, op, at, incoming)

    patch.setattr(LocalTransport, "interrupt", noted)
    patch.setattr(StageOperations, "run", waiting)


def death_waits_for_a_point(
    patch: pytest.MonkeyPatch, of: str, worker: str, step: int, point: str
) -> None:
    """``of`` is not killed before ``worker`` has come to that point."""
    act, reach, is_there = ThreadActions.act, Injector.reach, threading.Event()

    def waiting(actions: ThreadActions, fault: Fault, *more: Any) -> None:
        if fault.kind is FaultKind.KILL and str(fault.worker) == of:
            assert is_there.wait(LIMIT_S), f"{worker} does not come to {point}"
        act(actions, fault, *more)

    def noted(injector: Injector, at: int, name: str, done: int = 0) -> None:
        if (at, name, threading.current_thread().name) == (step, point, f"holdfast {worker}"):
            is_there.set()
        reach(injector, at, name, done)

    patch.setattr(ThreadActions, "act", waiting)
    patch.setattr(Injector, "reach", noted)


def copies_wait_for_the_death(patch: pytest.MonkeyPatch, of: str) -> None:
    """Whoever joins has no whole copy before ``of`` is killed."""
    wait_for_the_death, reach = _death(patch, of), Injector.reach

    def waiting(injector: Injector, step: int, point: str, done: int = 0) -> None:
        if point == COPY:
            wait_for_the_death()
        reach(injector, step, point, done)

    patch.setattr(Injector, "reach", waiting)


def _death(patch: pytest.MonkeyPatch, of: str) -> Callable[[], None]:
    act, is_dead = ThreadActions.act, threading.Event()

    def noted(actions: ThreadActions, fault: Fault, *more: Any) -> None:
        if fault.kind is FaultKind.KILL and str(fault.worker) == of:
            is_dead.set()
        act(actions, fault, *more)

    def wait() -> None:
        assert is_dead.wait(LIMIT_S), f"nobody has killed {of}"

    patch.setattr(ThreadActions, "act", noted)
    return wait
