"""Injected faults on the worker they are meant for: when they fire, and how they are carried out.

The executor says what it has reached; an Injector knows which fault waits there and hands it to
actions of a process or of a thread. What a fault means for the run is not known here.
Slowness that lasts belongs to the worker, not to the stage that it holds.
"""

import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.faults.fault import BEGIN, PROCEED, Fault, FaultKind, parse_fault
from holdfast.protocol.messages import FaultReport, Message
from holdfast.schedule.operation import Kind, Op

HANG_LIMIT_S = 600.0
_DONE = ".done"
_NOBODY = WorkerId(-1, -1)
_COUNTED_AS: dict[Kind, tuple[str, ...]] = {
    Kind.F: ("F",),
    Kind.B: ("B",),
    Kind.W: ("W",),
    Kind.BW: ("B", "W"),
    Kind.R: (),
}

Act = Callable[[Fault, int, str, int], None]
"""fault, step, point, operations finished of the lane"""
ShapeLink = Callable[[WorkerId, float, float], None]
"""peer, seconds that each transfer to it takes longer, most bytes a second"""
Contend = Callable[[float], None]
"""1: the CPU is this process's own; above: it has this part of its time only"""


class LastingFaults:
    """Faults that last: what of them acts in the present step. One a worker, for all its stages.

    ``shape_link`` is called at both ends of a link, each for what it sends.
    """

    def __init__(
        self,
        me: WorkerId,
        shape_link: ShapeLink = lambda peer, delay_s, bytes_s: None,
        contend: Contend = lambda factor: None,
    ) -> None:
        self._me, self._shape_link, self._contend = me, shape_link, contend
        self._faults: dict[str, Fault] = {}
        self._active: tuple[Fault, ...] = ()
        self._told: set[Fault] = set()
        self.factor = 1.0  # operations take this many times as long

    def arm(self, faults: Iterable[Fault]) -> None:
        """Also those that it has already: whoever gets another stage is told its faults again."""
        self._faults |= {str(fault): fault for fault in faults if fault.lasting is not None}

    def enter(self, step: int, tell: Callable[[Fault], None]) -> None:
        """``tell`` is called for each fault that begins, the first time it does."""
        if not self._faults:
            return
        before, active = self._active, tuple(f for f in self._faults.values() if f.covers(step))
        if active == before:
            return
        self._active = active
        for fault in active:
            if fault not in self._told:
                self._told.add(fault)
                if fault.worker == self._me:  # a link has another end, which keeps silent
                    tell(fault)
        self._apply([fault for fault in before if fault not in active])

    def stop_contending(self) -> None:
        """The worker is about to end, or to hang: nothing may wake it."""
        self._contend(1.0)

    def _apply(self, over: Sequence[Fault]) -> None:
        self.factor = _product(self._active, FaultKind.SLOW)
        self._contend(_product(self._active, FaultKind.CPU))
        for fault in over:  # before the others: the next one of a link may begin at once
            if fault.kind is FaultKind.LINK:
                self._shape_link(self._other_end(fault), 0.0, math.inf)
        for fault in self._active:
            if fault.kind is FaultKind.LINK and fault.lasting is not None:
                lasting = fault.lasting
                self._shape_link(self._other_end(fault), lasting.delay_s, lasting.bytes_s)

    def _other_end(self, fault: Fault) -> WorkerId:
        assert fault.worker is not None
        assert fault.peer is not None
        return fault.peer if fault.worker == self._me else fault.worker


def _product(active: Iterable[Fault], kind: FaultKind) -> float:
    return math.prod(f.lasting.factor for f in active if f.kind is kind and f.lasting is not None)


class Injector:
    """Fires each fault once, at the first moment its point is reached, from whichever thread.

    ``faults``: those of this worker. Without any, each call is one comparison.
    """

    def __init__(
        self, faults: Sequence[Fault], act: Act, lasting: LastingFaults | None = None
    ) -> None:
        self._waiting = tuple(fault for fault in faults if fault.lasting is None)
        self._act, self._lasting = act, lasting or LastingFaults(_NOBODY)
        self._lasting.arm(faults)
        self.counts: Counter[tuple[int, str]] = Counter()  # (step, kind) -> operations finished
        self._speed = 1.0
        self._lock = threading.Lock()  # a checkpoint's writer reaches points too

    def begin(self, step: int) -> None:
        """A step, or another attempt at it, starts from nothing. Not for the remainder of a
        step."""
        self.enter(step)
        if not self._waiting:
            return
        for key in [key for key in self.counts if key[0] != step - 1]:
            del self.counts[key]  # the step before may have a rest to run after a failure
        self.reach(step, BEGIN)

    def enter(self, step: int, done: int = 0) -> None:
        """From now on it is slow as this step has it. May be said again, and for an earlier one."""
        self._lasting.enter(step, lambda fault: self._act(fault, step, BEGIN, done))

    def before(self, step: int, op: Op, done: int) -> None:
        """The input of ``op`` is here and it is about to be computed."""
        if self._waiting:
            for kind in _COUNTED_AS[op.kind]:
                self.reach(step, f"{kind}{self.counts[step, kind]}", done)

    def after(self, step: int, op: Op, done: int) -> None:
        """``op`` is computed and its result not yet sent."""
        if self._waiting:
            for kind in _COUNTED_AS[op.kind]:
                number = self.counts[step, kind]
                self.counts[step, kind] += 1
                self.reach(step, f"{kind}{number}{_DONE}", done)

    def reach(self, step: int, point: str, done: int = 0) -> None:
        if point == PROCEED:  # of this step only the rest may be left to do, without a beginning
            self.enter(step, done)
        if not self._waiting:
            return
        for fault in self._take(step, point):
            if fault.kind is FaultKind.HANG:
                self._lasting.stop_contending()
            if fault.kind is FaultKind.SLOW:
                self._speed = fault.speed  # the latest counts: speed 1 makes it well again
            self._act(fault, step, point, done)

    def due(self, step: int, point: str) -> bool:
        """Whether the worker will be killed or hang there; for points that need preparation."""
        return any(
            fault.kind is not FaultKind.SLOW and fault.waits_at(step, point)
            for fault in self._waiting
        )

    def slowdown(self, seconds: float) -> float:
        """Seconds to add to an operation, or a benchmark, that took this long."""
        factor = self._lasting.factor / self._speed
        return 0.0 if factor == 1.0 else seconds * (factor - 1.0)

    def _take(self, step: int, point: str) -> list[Fault]:
        # Before they act: whoever wakes up from a hang must not hang again.
        with self._lock:
            taken = [fault for fault in self._waiting if fault.waits_at(step, point)]
            if taken:
                self._waiting = tuple(fault for fault in self._waiting if fault not in taken)
        return taken


@dataclass(frozen=True)
class WorkerFaults:
    """How faults act on one worker, whichever stage it holds."""

    act: Act
    is_silent: Callable[[], bool]  # it is made to hang: nobody may hear of it
    lasting: LastingFaults

    def injector(self, faults: Iterable[str]) -> Injector:
        return Injector([parse_fault(text) for text in faults], self.act, self.lasting)


class Killed(BaseException):
    """This worker is dead: nobody may catch it but its thread's last frame."""


class ProcessActions:
    """Faults of a worker that is a process: real signals."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell

    def act(self, fault: Fault, step: int, point: str, done: int) -> None:
        self._tell(_fired(fault, step, point, done))
        if fault.kind is FaultKind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind is FaultKind.HANG:
            # Stops the whole process. Sent to this thread, so that it is the first to stand.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class ThreadActions:
    """Faults of a worker that is a thread.

    ``die`` closes all that a dead process would no longer have open. ``hanging`` is read by the
    heartbeat thread, which is to be as silent as in a stopped process. Once ``woken`` is set,
    later hangs end at once.
    """

    def __init__(
        self,
        tell: Callable[[Message], None],
        die: Callable[[], None],
        woken: threading.Event,
        limit_s: float = HANG_LIMIT_S,
    ) -> None:
        self._tell, self._die, self._woken, self._limit_s = tell, die, woken, limit_s
        self.hanging = False

    def act(self, fault: Fault, step: int, point: str, done: int) -> None:
        self._tell(_fired(fault, step, point, done))
        if fault.kind is FaultKind.KILL:
            self._die()
            raise Killed(str(fault))
        if fault.kind is FaultKind.HANG:
            self._hang()

    def _hang(self) -> None:
        self.hanging = True
        try:
            self._woken.wait(self._limit_s)
        finally:
            self.hanging = False


def _fired(fault: Fault, step: int, point: str, done: int) -> FaultReport:
    return FaultReport(
        worker=str(fault.worker),
        fault_kind=fault.kind.value,
        fault=str(fault),
        step=step,
        attempt=0,  # whoever passes it on knows better
        point=point,
        done=done,
        at_s=time.monotonic(),
    )
