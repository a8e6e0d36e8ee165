"""A simulated coordinator's side of agents: what they say of machines, and what they are told.

Follows ``control/io/agents/machine_desk.py`` and ``orders.py``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from holdfast.cluster import WorkerId, parse_worker
from holdfast.control import effects as e
from holdfast.control.coordinator import Coordinator
from holdfast.control.io.agents.children import OfProcess
from holdfast.errors import ConfigError
from holdfast.protocol import messages
from holdfast.simulator.messages.network import ControlLine

OF_MACHINES = (
    e.StartWorker,
    e.LookAtWorker,
    e.TellAgents,
    e.CheckLinks,
    e.FenceMachine,
    e.ReleaseMachine,
)


class MachineHost(Protocol):
    coordinator: Coordinator
    machine: str
    agents: Any
    around: Any

    @property
    def now_s(self) -> float: ...

    def stimulate(self, act: Callable[[], list[e.Effect]]) -> None: ...

    def apply(self, found: Sequence[e.Effect]) -> None: ...

    def drop(self, line: ControlLine) -> None: ...


class MachineSide:
    def __init__(self, host: MachineHost) -> None:
        self._host = host

    def hear(self, line: ControlLine, message: messages.Message) -> None:
        self._host.agents.check(line, message, self._host.now_s)
        machine, machines = self._host.agents.machine_of(line), self._host.coordinator.machines
        if machine:
            machines.spoke(machine, self._host.now_s)
        if isinstance(message, OfProcess):
            self._host.agents.hear(line, message)
        if isinstance(message, OfProcess) and self._is_past(message, machine):
            return
        match message:
            case messages.AgentBeat():
                pass
            case messages.AgentHello():
                self._take_agent(line, message)
            case messages.LinksTried():
                told = message.unreached
                self._host.stimulate(lambda: machines.checked(machine, told, self._host.now_s))
            case messages.Leaving():
                self.drain(machine)
            case _:
                self._host.stimulate(
                    lambda: self._host.coordinator.handle(message, self._host.now_s)
                )

    def drain(self, machine: str) -> None:
        now_s = self._host.now_s
        try:
            self._host.stimulate(
                lambda: self._host.coordinator.machines.drain(machine, "to leave", now_s)
            )
        except ConfigError:
            return

    def _is_past(self, told: OfProcess, machine: str) -> bool:
        seat = self._host.coordinator.machines.seat_of(told.worker)
        is_past = seat not in ("", machine)
        if is_past and isinstance(told, messages.WorkerStarted):
            self._end_elsewhere(parse_worker(told.worker), seat)
            self._host.agents.fence_on(machine, parse_worker(told.worker))
        return is_past

    def _take_agent(self, line: ControlLine, hello: messages.AgentHello) -> None:
        is_own = hello.machine == self._host.machine
        try:
            found = self._host.coordinator.machines.came(hello, self._host.now_s, is_own=is_own)
        except ConfigError as why:
            line.tell(messages.AgentRefused(reason=str(why)))
            self._host.drop(line)
            return
        fences = [effect for effect in found if isinstance(effect, e.FenceMachine)]
        self._host.apply(fences)
        self._host.agents.name(line, hello.machine)
        self._host.stimulate(lambda: [effect for effect in found if effect not in fences])

    def _end_elsewhere(self, worker: WorkerId, machine: str) -> None:
        for agent, pid in self._host.agents.elsewhere(worker, machine):
            agent.tell(messages.EndWorker(worker=str(worker), pid=pid))

    def do(self, effect: e.Effect) -> None:
        match effect:
            case e.StartWorker():
                self._start_worker(effect)
            case e.LookAtWorker():
                if (process := self._host.agents.process_of(effect.worker)) is not None:
                    process[0].tell(messages.LookAt(pid=process[1]))
            case e.TellAgents():
                for line in self._host.agents.named_as(effect.machine):
                    line.tell(effect.message)
            case e.CheckLinks():
                if (agent := self._host.agents.connection_to(effect.machine)) is not None:
                    agent.tell(messages.TryLinks(addresses=dict(effect.others)))
            case e.FenceMachine() | e.ReleaseMachine():
                self._let_go(effect)

    def _start_worker(self, effect: e.StartWorker) -> None:
        self._end_elsewhere(effect.worker, effect.machine)
        agent = self._host.agents.connection_to(effect.machine) if effect.machine else None
        if agent is not None:
            agent.tell(replace(self._host.around.order, workers=[str(effect.worker)]))

    def _let_go(self, effect: e.FenceMachine | e.ReleaseMachine) -> None:
        agent = self._host.agents.connection_to(effect.machine)
        if agent is None:
            return
        if isinstance(effect, e.ReleaseMachine):
            agent.tell(messages.Stop(reason="it is drained"))
        self._host.drop(agent)
