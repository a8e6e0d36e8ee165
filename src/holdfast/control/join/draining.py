"""Machines that are about to leave: their workers get no more work, and go when they have none.

A stage that only they hold is first taken by somebody elsewhere. So nothing is lost, and nothing is
done again. If nobody can take it, the machine keeps its workers, and is lost when it goes.
"""

from collections import Counter
from collections.abc import Mapping

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect, Emit, ReleaseMachine
from holdfast.control.join.moving import MoveOrder, Moving
from holdfast.control.state.run import Run
from holdfast.errors import ConfigError
from holdfast.observability import events

RETURN_LIMIT_S = 60.0  # in which the agent of a machine that is to leave finds a new coordinator


class Draining:
    def __init__(self, run: Run, moving: Moving) -> None:
        self._run, self._moving = run, moving
        self._asked_s: dict[str, float] = {}
        self._stays: set[str] = set()  # nobody else can hold what its workers hold

    def check(self, name: str) -> None:
        """ConfigError: there is no such machine, or it cannot be let go."""
        run = self._run
        if name not in run.machines.here:
            here = run.machines.names
            raise ConfigError(
                f"machine {name} is not in the run; expected the name of one that is: {here}"
            )
        if not run.config.machines.count:
            raise ConfigError(f"machine {name} cannot be drained: all workers run there")

    def ask(self, name: str, reason: str, at_s: float) -> list[Effect]:
        run = self._run
        self._forget(at_s)
        if name in self._asked_s:
            return []
        self.recall(name, at_s)
        workers = tuple(map(str, run.machines.on(name)))
        return [Emit(events.MachineDrains(at_s=at_s, machine=name, reason=reason, workers=workers))]

    def recall(self, name: str, at_s: float) -> None:
        """It was asked, perhaps of a coordinator before this one; then its agent is not back."""
        self._asked_s[name] = at_s
        self._run.machines.drain(self._asked_s)

    def next(self, at_s: float) -> list[Effect]:
        """Only while nothing else is under way."""
        run, machines = self._run, self._run.machines
        self._forget(at_s)
        effects: list[Effect] = []
        if self._asked_s and self._asked_s.keys() >= {*machines.here, *machines.seats.values()}:
            run.ending.ask("every machine is to leave", at_s)
            return effects
        here = {name: s for name, s in self._asked_s.items() if name in machines.here}
        for name, since_s in here.items():
            workers = machines.on(name)
            if workers:
                effects += self._empty(name, workers, at_s)
                continue
            machines.left(name)
            took_s = at_s - since_s
            gone = events.MachineDrained(at_s=at_s, machine=name, took_s=took_s)
            effects += [Emit(gone), ReleaseMachine(name)]
        return effects

    def _forget(self, at_s: float) -> None:
        """Those that are gone. Whoever comes back after long comes as a new one."""
        machines = self._run.machines
        self._asked_s = {
            name: since_s
            for name, since_s in self._asked_s.items()
            if name in machines.draining
            and (name in machines.here or at_s - since_s <= RETURN_LIMIT_S)
        }
        machines.drain(self._asked_s)

    def _empty(self, name: str, workers: list[WorkerId], at_s: float) -> list[Effect]:
        if self._moving.is_wanted or not all(worker in self._run.stages for worker in workers):
            return []
        leaving = {w for each in self._asked_s for w in self._run.machines.on(each)}
        orders = takers(self._run.stages, leaving, f"machine {name} is to leave")
        if orders is None:
            return self._keep(name, at_s)
        self._stays.discard(name)
        if not orders:
            reason = f"its machine {name} is to leave"
            orders = [MoveOrder(worker, None, reason, may_return=True) for worker in workers]
        self._moving.order(orders)
        return []

    def _keep(self, name: str, at_s: float) -> list[Effect]:
        if name in self._stays:
            return []
        self._stays.add(name)
        reason = (
            f"machine {name} keeps its workers although it is to leave: nobody else can hold their "
            "stages; when it goes they are rebuilt from the log, or all go back to the checkpoint"
        )
        return [Emit(events.Warned(at_s=at_s, reason=reason))]


def takers(
    stages: Mapping[WorkerId, int], leaving: set[WorkerId], reason: str
) -> list[MoveOrder] | None:
    """Who is to hold a stage that only those hold who leave; None: there is nobody for it."""
    staying = {worker: stage for worker, stage in stages.items() if worker not in leaving}
    held = Counter(staying.values())
    lone = sorted({stages[worker] for worker in leaving if worker in stages} - held.keys())
    orders = []
    for stage in lone:
        free = [w for w in sorted(staying) if held[staying[w]] > 1]
        if not free:
            return None
        taker = max(free, key=lambda worker: (held[staying[worker]], worker))
        held[staying.pop(taker)] -= 1
        orders.append(MoveOrder(taker, stage, reason))
    return orders
