"""The coordinator's side of agents and operators: what they say of machines, and what is said to
them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.bundle.serving import BundleServer
from holdfast.cluster import parse_worker
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import (
    AskStack,
    CheckLinks,
    Effect,
    FenceMachine,
    LookAtWorker,
    ReleaseMachine,
    StartWorker,
    TellAgents,
)
from holdfast.control.io.agents.agent_connections import Agents
from holdfast.control.io.agents.children import OfProcess
from holdfast.control.io.agents.orders import AgentOrders
from holdfast.control.io.entry.rights import told
from holdfast.errors import ConfigError
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection


@dataclass(frozen=True)
class Line:
    """What a server lends to those who speak for it."""

    send: Callable[[Connection, messages.Message], None]
    drop: Callable[[Connection], object]
    apply: Callable[[Sequence[Effect]], None]
    log: Callable[[str, str], None]  # who, and what is to be known of it
    pass_on: Callable[[Connection, messages.Gathered], None]  # what workers say by their agent


class MachineDesk:
    def __init__(
        self,
        coordinator: Coordinator,
        agents: Agents,
        order: messages.StartWorkers,
        start_more: Callable[[messages.StartWorkers], None],
        bundle: BundleServer,
        line: Line,
    ) -> None:
        self._coordinator, self._agents, self._order = coordinator, agents, order
        self._orders = AgentOrders(agents, order, start_more, line.send)
        self._bundle, self._line = bundle, line

    def hear(self, connection: Connection, message: messages.Message) -> bool:
        """Whether it was about a machine, and is dealt with. ProtocolError: it may not say this."""
        now_s = time.monotonic()
        if connection in self._agents:
            self._agents.check(connection, message, now_s)
        machine = self._agents.machine_of(connection)
        if machine:
            self._coordinator.machines.spoke(machine, now_s)
        if isinstance(message, OfProcess):
            self._agents.hear(connection, message)
        of_worker = OfProcess | messages.WorkerNotStarted
        if isinstance(message, of_worker) and self._is_past(message, machine):
            return True
        return self._answered(connection, message, machine)

    def _is_past(self, told: OfProcess | messages.WorkerNotStarted, machine: str) -> bool:
        """It is of a process whose worker was started elsewhere meanwhile: that one is ended, and
        nobody is heard for it here."""
        seat = self._coordinator.machines.seat_of(told.worker)
        is_past = seat not in ("", machine)
        if is_past and isinstance(told, messages.WorkerStarted):
            worker = parse_worker(told.worker)
            self._orders.end_elsewhere(worker, seat)
            self._agents.fence_on(machine, worker)
        return is_past

    def _answered(self, connection: Connection, message: messages.Message, machine: str) -> bool:
        match message:
            case messages.AgentBeat():
                pass
            case messages.Gathered():
                self._line.pass_on(connection, message)
            case messages.BundleAsk():
                self._line.send(connection, self._bundle.answer(message))
            case messages.LinksTried(unreached=unreached):
                now_s = time.monotonic()
                self._line.apply(self._coordinator.machines.checked(machine, unreached, now_s))
            case messages.AgentAsk():
                self._line.send(connection, told(self._order))
            case messages.AgentHello():
                self._take(connection, message)
            case messages.DrainMachine():
                refused = self._drain(message.machine, "an operator has asked for it")
                self._line.send(connection, messages.DrainAnswer(refused=refused))
            case messages.Leaving():
                if refused := self._drain(machine, message.reason):
                    self._line.log(f"machine {machine}", refused)
            case _:
                return False
        return True

    def _take(self, connection: Connection, hello: messages.AgentHello) -> None:
        try:
            is_own = connection.is_within_machine
            effects = self._coordinator.machines.came(hello, time.monotonic(), is_own=is_own)
        except ConfigError as why:
            self._line.send(connection, messages.AgentRefused(reason=str(why)))
            self._line.log(f"machine {hello.machine}", str(why))
            self._line.drop(connection)
            return
        fences = [effect for effect in effects if isinstance(effect, FenceMachine)]
        self._line.apply(fences)  # the one before it, under the same name
        self._agents.name(connection, hello.machine)
        self._line.apply([effect for effect in effects if effect not in fences])

    def _drain(self, machine: str, reason: str) -> str:
        """Why not; empty: it is being done."""
        try:
            self._line.apply(self._coordinator.machines.drain(machine, reason, time.monotonic()))
        except ConfigError as why:
            return str(why)
        return ""

    def do(self, effect: Effect, worker: Connection | None) -> messages.Message | None:
        """``worker``: the connection of whom it is about. What has come of it at once, if any."""
        match effect:
            case StartWorker():
                return self._orders.start(effect.worker, effect.machine)
            case AskStack():
                self._orders.ask_stack(effect.worker, worker)
            case LookAtWorker():
                self._orders.look_at(effect.worker)
            case TellAgents():
                for connection in self._agents.named_as(effect.machine):
                    self._line.send(connection, effect.message)
            case CheckLinks():
                self._orders.try_links(effect.machine, effect.others)
            case ReleaseMachine() | FenceMachine():
                agent = self._agents.connection_to(effect.machine)
                if agent is not None and isinstance(effect, ReleaseMachine):
                    self._line.send(agent, messages.Stop(reason="it is drained"))
                if agent is not None:
                    self._line.drop(agent)
        return None
