"""The machines of a simulated run: agents, the workers they have started, disk and network."""

import random
from abc import ABC, abstractmethod
from typing import Any

from holdfast.schedule.operation import Op
from holdfast.simulator.messages.network import ControlLine, VirtualNetwork
from holdfast.simulator.messages.scenario import Scenario
from holdfast.simulator.messages.shelf import Shelf
from holdfast.simulator.messages.simulated_agent import SimulatedAgent
from holdfast.simulator.messages.virtual_time import VirtualTime
from holdfast.simulator.messages.worker.simulated_worker import SimulatedWorker
from holdfast.simulator.messages.worker.tensor_box import STATE, UPDATE, Wanted

_UPDATE = 0.05  # of the time that a whole state takes


class SimulatedMachines(ABC):
    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.config = scenario, scenario.config()
        self.time, self.shelf = VirtualTime(), Shelf()
        self.dice = random.Random(f"world-{scenario.seed}")
        self.measured = scenario.measured
        costs = scenario.costs
        self.network = VirtualNetwork(self.time, self.dice, costs.link_s, costs.slow_words)
        self.network.delays_s = self.measured.rows.get("link", ()) if self.measured else ()
        self.slowness: dict[str, float] = {}  # machine -> operations take so many times as long
        self.agents: dict[str, SimulatedAgent] = {}
        self.processes: dict[int, SimulatedWorker] = {}
        self._ports: dict[int, SimulatedWorker] = {}
        self._num_processes = 0
        self._probes_s: dict[int, float] = {}  # by step

    @abstractmethod
    def note(self, *words: str) -> None:
        """Something has happened."""

    @abstractmethod
    def connected(self, near: Any, role: str, above: int) -> tuple[ControlLine | None, int]:
        """To the newest coordinator that can be reached, and its generation."""

    @abstractmethod
    def attached(self, pid: int, generation: int) -> None:
        """A process speaks to this coordinator now."""

    def new_process(self, name: str, machine: str) -> SimulatedWorker:
        self._num_processes += 1
        process = SimulatedWorker(self, name, 1000 + self._num_processes, machine)
        self.processes[process.pid] = process
        self._ports[process.port] = process
        return process

    def process_at(self, host: str, port: int) -> SimulatedWorker | None:
        return self._ports.get(port)

    def process_of(self, name: str) -> SimulatedWorker | None:
        """The newest that is alive under this name."""
        alive = [p for p in self.processes.values() if p.name == name and p.is_alive]
        return alive[-1] if alive else None

    def process_behind(self, line: ControlLine) -> SimulatedWorker | None:
        near = line.near
        if not isinstance(near, SimulatedWorker) or near.link.line is not line:
            return None
        return near if near.pid in self.processes else None

    def may_reach(self, machine: str, other: str) -> bool:
        return other in self.agents and not self.network.is_cut(machine, other)

    # --- what things take ---

    def operation_s(self, op: Op) -> float:
        costs, measured = self.scenario.costs, self.measured
        if measured is not None and (took_s := measured.operation_s(op, self.dice)) is not None:
            return took_s
        return costs.of(op.kind) * (1 + costs.spread * (self.dice.random() - 0.5))

    def measured_s(self, name: str) -> float:
        """Of a row of ``RecordedTimes``; 0 in a world that is drawn."""
        return 0.0 if self.measured is None else self.measured.draw_s(name, self.dice)

    def probe_s(self, step: int) -> float:
        """The same for all: they send at once."""
        if step not in self._probes_s:
            self._probes_s[step] = self.measured_s("probe")
        return self._probes_s[step]

    def load_s(self) -> float:
        return self._usual_s("start", 0.2 + 0.4 * self.dice.random())

    def build_s(self) -> float:
        return self._usual_s("build", 0.1 + 0.2 * self.dice.random())

    def write_s(self) -> float:
        return 0.05 + 0.3 * self.dice.random()

    def copying_s(self, name: Wanted) -> float:
        """How long a message occupies its link."""
        if name.channel == STATE:
            return self.scenario.costs.copy_s
        return _UPDATE * self.scenario.costs.copy_s if name.channel == UPDATE else 0.0

    def _usual_s(self, name: str, drawn_s: float) -> float:
        return drawn_s if self.measured is None else self.measured.draw_s(name, self.dice, drawn_s)

    def ended(self, worker: SimulatedWorker, code: int) -> None:
        self.note("ended", worker.name, str(code))
        self.processes.pop(worker.pid, None)
        agent = self.agents.get(worker.machine)
        if agent is not None:
            self.time.after(0.002, agent.exited, worker, code)
        self.lost_by_others(worker)

    def lost_by_others(self, gone: SimulatedWorker) -> None:
        limit_s = min(self.config.workers.heartbeat_timeout_s or 10.0, 10.0)
        for other in self.processes.values():
            if other.peers.get(gone.name) is gone:
                self.time.after(limit_s, other.unreached, gone, other.epoch)

    # --- machines ---

    def machine_comes(self, name: str, slots: int = 0) -> None:
        """``slots`` 0: as many as it had."""
        old = self.agents.get(name)
        if old is not None and old.is_alive:
            return
        slots = slots or (1 if old is None else old.slots)
        limit_s = self.config.workers.orphan_limit_s
        agent = self.agents[name] = SimulatedAgent(self, name, slots, limit_s)
        self.time.after(0.05 + 0.05 * self.dice.random(), agent.start)

    def machine_goes(self, name: str, *, silently: bool) -> None:
        agent = self.agents.get(name)
        if agent is None or not agent.is_alive:
            return
        there = list(agent.processes.values())
        for process in there:
            self.shelf.logs.pop(process.name, None)
        if silently:
            agent.lose_power()
            for process in there:
                self.processes.pop(process.pid, None)
                self.lost_by_others(process)
        else:
            agent.end()
