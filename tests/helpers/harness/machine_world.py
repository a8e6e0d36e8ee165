"""A coordinator among scripted machines: their agents start scripted workers as they are told."""

from collections.abc import Mapping
from typing import Any

from helpers.agents import agent_hello
from helpers.harness.coordinator_world import World, pid_of
from holdfast.cluster import parse_worker
from holdfast.control.effects import Effect, FenceMachine, ReleaseMachine, StartWorker
from holdfast.protocol import messages


class MachineWorld(World):
    """``slots``: of the machines that come at once, by name; ``count``: that the run wants."""

    def __init__(self, slots: Mapping[str, int], *, count: int = 0, **more: Any) -> None:
        machines = {"count": count or len(slots), **more.pop("machines", {})}
        super().__init__(**{"pipelines": 2, "stages": 2, **more}, machines=machines)
        self.up: set[str] = set()  # whose agents are heard
        self.where: dict[str, str] = {}
        for name, number in slots.items():
            self.machine_comes(name, number)

    def machine_comes(self, name: str, slots: int = 2) -> list[Effect]:
        self.up.add(name)
        hello = agent_hello(machine=name, slots=slots)
        return self.obey(self.take(self.run.machines.came(hello, self.at_s)))

    def machine_dies(self, name: str) -> list[Effect]:
        """Its connections close, the agent's last."""
        self.up.discard(name)
        first = len(self.effects)
        for worker in [worker for worker, there in self.where.items() if there == name]:
            if self.actors.pop(worker, None) is not None:
                self.take(self.run.lost_connection(worker, self.at_s))
        self.take(self.run.machines.lost(name, "closed by the other side", self.at_s))
        return self.effects[first:]

    def machine_falls_silent(self, name: str) -> None:
        self.up.discard(name)
        for worker, there in self.where.items():
            if there == name and worker in self.actors:
                self.actors[worker].silent = self.actors[worker].mute = True

    def drain(self, name: str) -> list[Effect]:
        return self.take(self.run.machines.drain(name, "it is old", self.at_s))

    def obey(self, effects: list[Effect]) -> list[Effect]:
        """As agents do: whoever is to be started says hello."""
        for effect in effects:
            if isinstance(effect, StartWorker):
                worker = str(effect.worker)
                self.where[worker] = effect.machine
                started = messages.WorkerStarted(worker=worker, pid=pid_of(worker))
                self.handle(started)
                self.come(worker)
            if isinstance(effect, FenceMachine | ReleaseMachine):
                for worker in [w for w, there in self.where.items() if there == effect.machine]:
                    self.actors.pop(worker, None)
        self.pump()
        return effects

    def tick(self, after_s: float = 0.0) -> list[Effect]:
        for name in self.up & self.run.run.machines.here.keys():
            self.run.machines.spoke(name, self.at_s + after_s)
        return self.obey(super().tick(after_s))

    def seats(self) -> dict[str, str]:
        """The machine of each worker that is there."""
        machines = self.run.run.machines
        return {name: machines.of(parse_worker(name)) for name in sorted(self.actors)}
