"""A machine is lost with all its workers: one event, one change.

A worker whose connection is closed may be the first sign of that. So where there are several
machines it is waited for what its agent says: that the process has ended, or nothing at all.
"""

from collections.abc import Mapping

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect, Emit, FenceMachine
from holdfast.control.join.coming_machines import ComingMachines
from holdfast.control.liveness.losing import Losing
from holdfast.control.state.lifecycle import BEFORE_TRAINING
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.errors import HoldfastError
from holdfast.observability import events

CLOSED = "closed its connection"
AGENT_S = 0.1  # in which an agent has told of the end of a process, or is gone as well


class LostMachines:
    def __init__(self, run: Run, coming_machines: ComingMachines, losing: Losing) -> None:
        self._run, self._coming, self._losing = run, coming_machines, losing
        self._closed_s: dict[WorkerId, float] = {}  # and nobody has said why

    def closed(self, worker: WorkerId, at_s: float) -> list[Effect]:
        machines = self._run.machines
        if machines.are_many and machines.of(worker):
            self._closed_s.setdefault(worker, at_s)
            return []
        return self._losing.lose(m.ConnectionClosed(worker, at_s), CLOSED)

    def explained(self, worker: WorkerId) -> None:
        """Its agent has told of its end, or it has come back."""
        self._closed_s.pop(worker, None)

    def tick(self, at_s: float) -> list[Effect]:
        """Those whose agent has said nothing: their machine is there."""
        due = [worker for worker, since_s in self._closed_s.items() if at_s - since_s >= AGENT_S]
        effects: list[Effect] = []
        for worker in due:
            self.explained(worker)
            effects += self._losing.lose(m.ConnectionClosed(worker, at_s), CLOSED)
        return effects

    def lose_silent(self, worker: WorkerId, cause: str, at_s: float) -> list[Effect]:
        """And whoever else is on its machine, if that is silent as well."""
        machines, name = self._run.machines, self._run.machines.of(worker)
        limit_s = self._run.timeouts.look_s
        is_here = name in machines.here  # else its agent has not come back to a successor yet
        if machines.are_many and is_here and machines.silent_s(name, at_s) >= limit_s:
            return self.lose(name, cause, at_s)
        return self._losing.lose(m.SilentTooLong(worker, at_s), cause, silent=True)

    def lose(self, name: str, why: str, at_s: float) -> list[Effect]:
        """HoldfastError: nothing goes on without it."""
        run = self._run
        if run.phase in BEFORE_TRAINING:
            self._coming.lost_early(name, why)
            return [FenceMachine(name)]
        if not run.config.machines.count:
            raise HoldfastError(f"the agent that starts the workers is gone: {why}. {run.advice}")
        return self.lose_together({name: why}, at_s)

    def lose_together(self, whys: Mapping[str, str], at_s: float) -> list[Effect]:
        """While training: several machines in one change. ``whys``: of each by its name."""
        effects: list[Effect] = []
        notices: list[m.Stimulus] = []
        for name, why in whys.items():
            workers = self._run.machines.left(name)
            told = tuple(map(str, workers))
            lost = events.MachineLost(at_s=at_s, machine=name, cause=why, workers=told)
            effects += [FenceMachine(name), Emit(lost)]
            for worker in workers:
                self.explained(worker)
                notices.append(m.ConnectionClosed(worker, at_s))
        causes = [f"its machine {name} was lost: {why}" for name, why in whys.items()]
        if notices:
            cause = " and ".join(causes)
            effects += self._losing.lose_together(notices, cause, explained=True)
        return effects
