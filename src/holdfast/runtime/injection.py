"""Injected faults on the worker they are meant for: when they fire, and how they are carried out.

The executor says what it has reached; an Injector knows which fault waits there and hands it to
actions of a process or of a thread. What a fault means for the run is not known here.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from holdfast.faults.fault import BEGIN, Fault, FaultKind
from holdfast.protocol.messages import FaultFired, Message
from holdfast.schedule.operation import Kind, Op

HANG_LIMIT_S = 600.0
_DONE = ".done"
_COUNTED_AS: dict[Kind, tuple[str, ...]] = {
    Kind.F: ("F",),
    Kind.B: ("B",),
    Kind.W: ("W",),
    Kind.BW: ("B", "W"),
    Kind.R: (),
}

Act = Callable[[Fault, int, str, int], None]
"""fault, step, point, operations finished of the lane"""


class Injector:
    """Fires each fault once, at the first moment its point is reached, from whichever thread.

    ``faults``: kill, hang and slow of this worker. Without any, each call is one comparison.
    """

    def __init__(self, faults: Sequence[Fault], act: Act) -> None:
        self._waiting = tuple(faults)
        self._act = act
        self._counts: Counter[tuple[int, str]] = Counter()  # (step, kind) -> operations finished
        self._speed = 1.0
        self._lock = threading.Lock()  # a checkpoint's writer reaches points too

    def begin(self, step: int) -> None:
        """A step, or another attempt at it, starts from nothing. Not for the rest of a step."""
        if not self._waiting:
            return
        for key in [key for key in self._counts if key[0] != step - 1]:
            del self._counts[key]  # the step before may have a rest to run after a failure
        self.reach(step, BEGIN)

    def before(self, step: int, op: Op, done: int) -> None:
        """The input of ``op`` is here and it is about to be computed."""
        if self._waiting:
            for kind in _COUNTED_AS[op.kind]:
                self.reach(step, f"{kind}{self._counts[step, kind]}", done)

    def after(self, step: int, op: Op, done: int) -> None:
        """``op`` is computed and its result not yet sent."""
        if self._waiting:
            for kind in _COUNTED_AS[op.kind]:
                number = self._counts[step, kind]
                self._counts[step, kind] += 1
                self.reach(step, f"{kind}{number}{_DONE}", done)

    def reach(self, step: int, point: str, done: int = 0) -> None:
        if not self._waiting:
            return
        for fault in self._take(step, point):
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
        """Seconds to add to an operation that took this long."""
        return 0.0 if self._speed == 1.0 else seconds * (1.0 / self._speed - 1.0)

    def _take(self, step: int, point: str) -> list[Fault]:
        # Before they act: whoever wakes up from a hang must not hang again.
        with self._lock:
            taken = [fault for fault in self._waiting if fault.waits_at(step, point)]
            if taken:
                self._waiting = tuple(fault for fault in self._waiting if fault not in taken)
        return taken


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


def _fired(fault: Fault, step: int, point: str, done: int) -> FaultFired:
    return FaultFired(
        worker=str(fault.worker),
        fault=str(fault),
        step=step,
        attempt=0,  # whoever passes it on knows better
        point=point,
        done=done,
        at_s=time.monotonic(),
    )
