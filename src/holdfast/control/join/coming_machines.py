"""Machines come: at the start they are waited for, later they fill the places that are missing."""

import holdfast
from holdfast.control.effects import Effect, Emit, StartWorker
from holdfast.control.join.seating import Seating
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m
from holdfast.errors import ConfigError, HoldfastError
from holdfast.observability import events
from holdfast.planner.place.machine import Machine
from holdfast.protocol import messages


class ComingMachines:
    def __init__(self, run: Run, seating: Seating) -> None:
        self._run, self._seating = run, seating
        self._is_over = not run.config.workers.are_processes
        self._began_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Workers have been started."""
        return self._is_over

    def take_over(self) -> None:
        """Another coordinator has started them."""
        self._is_over = True

    def tick(self, at_s: float) -> None:
        """HoldfastError: it was waited for long enough."""
        machines = self._run.config.machines
        self._began_s = at_s if self._began_s is None else self._began_s
        if self._is_over or not machines.count or at_s - self._began_s <= machines.wait_s:
            return
        raise HoldfastError(
            f"machines.wait_s={machines.wait_s:g} reached: {len(self._run.machines.here)} of "
            f"{machines.needed} machines are here ({self._run.machines.names}); start "
            "'holdfast agent' on the others, or begin with fewer (machines.start_with)"
        )

    def check(self, hello: messages.AgentHello, at_s: float) -> None:
        """ConfigError: there is no place for it."""
        machines, name = self._run.machines, hello.machine
        is_here = name in machines.here
        if is_here and machines.silent_s(name, at_s) < self._run.timeouts.look_s:
            raise ConfigError(
                f"a machine called {name} is here already, and has just been heard; "
                "give this one another name"
            )
        version = hello.fingerprint.get("holdfast", holdfast.__version__)
        if version != holdfast.__version__:
            raise ConfigError(
                f"machine {name} has holdfast {version}, the run has {holdfast.__version__}; "
                "install the same on all machines"
            )
        if hello.slots < 1:
            raise ConfigError(
                f"machine {name} has {hello.slots} slots: expected at least 1, for its agent"
            )

    def came(
        self, hello: messages.AgentHello, at_s: float, *, is_own: bool = False
    ) -> list[Effect]:
        """ConfigError: all are here, and too small together."""
        machine = Machine(hello.machine, hello.slots, hello.memory_bytes or None)
        self._run.machines.came(machine, at_s, is_own=is_own)
        return [*self._said(hello, at_s), *self._begin()]

    def _said(self, hello: messages.AgentHello, at_s: float) -> list[Effect]:
        wanted = self._run.config.machines.count
        if not wanted:
            return []  # the only one, which the launcher has started itself
        came = events.MachineCame(
            at_s=at_s,
            machine=hello.machine,
            slots=hello.slots,
            num_here=len(self._run.machines.here),
            num_wanted=wanted,
            memory_bytes=hello.memory_bytes,
            devices=tuple(hello.devices),
        )
        return [Emit(came)]

    def _begin(self) -> list[Effect]:
        """As soon as enough are here."""
        run = self._run
        here = run.machines.here
        if self._is_over or len(here) < max(1, run.config.machines.needed):
            return []
        where = self._seating.first()
        stages = {run.first_stages[worker] for worker in where}
        if len(stages) < run.shape.stages:
            return []  # not a holder for every stage: wait for more
        self._is_over = True
        for worker, name in where.items():
            run.machines.seat(worker, name)
        for worker in run.first_stages.keys() - where.keys():
            run.membership.handle(m.Postponed(worker, 0.0))
        return [StartWorker(worker, name) for worker, name in sorted(where.items())]

    def lost_early(self, name: str, why: str) -> None:
        """Before training. HoldfastError: workers had been started there."""
        if self._run.machines.left(name) and self._run.phase is not RunPhase.TRAINING:
            raise HoldfastError(
                f"machine {name} was lost before training started ({why}); all workers were "
                f"stopped. {self._run.advice}"
            )
