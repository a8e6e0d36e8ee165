"""Workers as threads that take turns: one runs at a time, and a seed says which.

Every boundary of an operation, every message and every point where a fault could be injected is a
moment at which a worker may lose its turn, die, or be told to halt. So a seed names one history.
"""

import threading
from collections.abc import Callable, Sequence
from random import Random

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import HoldfastError, WaitTimeout
from holdfast.faults.fault import Fault
from holdfast.faults.injection import Injector
from holdfast.schedule.operation import Op
from holdfast.transport.base import ALONE, Bundle, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

LIMIT_S = 60.0  # only guards against hangs: nobody computes this long between two moments


class Dead(BaseException):
    """Nobody catches it but the thread's last frame."""


class Runner(threading.Thread):
    """One call. It runs only in its turn, from one moment to the next."""

    def __init__(self, worker: WorkerId, call: Callable[[], None]) -> None:
        super().__init__(name=f"turns {worker}", daemon=True)
        self.worker = worker
        self.at = "start"  # the moment it has come to
        self.error: BaseException | None = None
        self.ended = False
        self.killed = False
        self._call = call
        self._may_go: Callable[[], bool] = lambda: True
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        try:
            self.wait_for_turn()
            self._call()
        except Dead:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self._back.release()

    # --- in this thread ---

    def moment(self, name: str, may_go: Callable[[], bool] = lambda: True) -> None:
        self.at, self._may_go = name, may_go
        self._back.release()
        self.wait_for_turn()

    def wait_for_turn(self) -> None:
        assert self._go.acquire(timeout=LIMIT_S), f"{self.worker} got no turn after {self.at}"
        if self.killed:
            raise Dead

    # --- in the thread that gives out the turns ---

    @property
    def can_go(self) -> bool:
        return not self.ended and (self.killed or self._may_go())

    def turn(self) -> None:
        self._go.release()
        assert self._back.acquire(timeout=LIMIT_S), f"{self.worker} does not end {self.at}"


class Turns:
    """Gives them out. Some workers are slow, and some hold on to their turn."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.runners: dict[WorkerId, Runner] = {}
        self._slowness: dict[WorkerId, float] = {}
        self._last: Runner | None = None
        self._sticks = random.choice([0.0, 0.5, 0.95])
        self.num_turns = 0
        self.frozen: set[WorkerId] = set()  # they get no turn

    def start(self, worker: WorkerId, call: Callable[[], None]) -> None:
        self.runners[worker] = Runner(worker, call)
        self._slowness[worker] = self._random.choice([1, 1, 20, 500])
        self.runners[worker].start()

    def run(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Whether it came to that; False: nobody can go on, or all have ended."""
        while not until():
            able = [r for r in self.runners.values() if r.can_go and r.worker not in self.frozen]
            if not able:
                return False
            if self._last not in able or self._random.random() >= self._sticks:
                self._last = min(able, key=lambda r: self._random.random() * self._weight(r))
            self._last.turn()
            self.num_turns += 1
        return True

    def _weight(self, runner: Runner) -> float:
        return self._slowness[runner.worker]

    @property
    def stuck(self) -> dict[str, str]:
        return {str(r.worker): r.at for r in self.runners.values() if not r.ended}

    def moment(
        self, worker: WorkerId, name: str, may_go: Callable[[], bool] = lambda: True
    ) -> None:
        """Of ``worker``, if it is its own thread that asks."""
        runner = self.runners.get(worker)
        if runner is threading.current_thread():
            runner.moment(name, may_go)

    def kill(self, worker: WorkerId) -> None:
        """It ends where it is. Its transport is closed by whoever kills it."""
        runner = self.runners.pop(worker)
        runner.killed = True
        if not runner.ended:
            runner.turn()


class Paced(LocalTransport):
    """Waits by giving up the turn: it comes back when the wait would end."""

    def __init__(self, me: WorkerId, hub: LocalHub, turns: Turns) -> None:
        super().__init__(me, hub)
        self._turns = turns

    def send(self, to: WorkerId, tag: Tag, tensor: Tensor, bundle: Bundle = ALONE) -> None:
        self._turns.moment(self.me, f"send {tag} to {to}")
        super().send(to, tag, tensor, bundle)

    def receive(self, source: WorkerId, tag: Tag, timeout_s: float) -> Tensor:
        self._wait([(source, tag)])
        return super().receive(source, tag, timeout_s)

    def receive_all(self, source: WorkerId, tag: Tag, timeout_s: float) -> tuple[Tensor, ...]:
        self._wait([(source, tag)])
        return super().receive_all(source, tag, timeout_s)

    def wait_any(self, wanted: Sequence[tuple[WorkerId, Tag]], timeout_s: float) -> int:
        self._wait(wanted)
        return super().wait_any(wanted, timeout_s)

    def _wait(self, wanted: Sequence[tuple[WorkerId, Tag]]) -> None:
        source, tag = wanted[0]
        self._turns.moment(self.me, f"wait for {tag} from {source}", lambda: self._ends(wanted))

    def _ends(self, wanted: Sequence[tuple[WorkerId, Tag]]) -> bool:
        try:
            super().wait_any(wanted, 0.0)
        except WaitTimeout:
            return False
        except HoldfastError:
            return True
        return True


class Moments(Injector):
    """Makes a moment of every point where a fault could be injected."""

    def __init__(self, me: WorkerId, turns: Turns) -> None:
        super().__init__((), _never)
        self._me, self._turns = me, turns

    def before(self, step: int, op: Op, done: int) -> None:
        self._turns.moment(self._me, f"{step} before {op}")

    def after(self, step: int, op: Op, done: int) -> None:
        self._turns.moment(self._me, f"{step} after {op}")

    def reach(self, step: int, point: str, done: int = 0) -> None:
        self._turns.moment(self._me, f"{step} {point}")


def _never(fault: Fault, step: int, point: str, done: int) -> None:
    raise AssertionError(f"{fault} was not given")
