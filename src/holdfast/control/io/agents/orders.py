"""What agents are told to do with the workers of their machines, and who does it without one."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.cluster import WorkerId
from holdfast.control.io.agents.agent_connections import Agents
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.protocol.records import Address


class AgentOrders:
    """``start_more`` starts workers where there is no agent to do so."""

    def __init__(
        self,
        agents: Agents,
        order: messages.StartWorkers,
        start_more: Callable[[messages.StartWorkers], None],
        send: Callable[[Connection, messages.Message], None],
    ) -> None:
        self._agents, self._order = agents, order
        self._start_more, self._send = start_more, send

    def start(self, worker: WorkerId, machine: str) -> messages.WorkerNotStarted | None:
        """None: somebody does it, or its machine is just being lost."""
        self.end_elsewhere(worker, machine)
        order = replace(self._order, workers=[str(worker)])
        if machine:
            agent = self._agents.connection_to(machine)
            if agent is not None:
                self._send(agent, order)
            return None
        try:
            self._start_more(order)
        except RuntimeError as why:  # no thread to be had
            return messages.WorkerNotStarted(worker=str(worker), reason=str(why))
        return None

    def end_elsewhere(self, worker: WorkerId, machine: str) -> None:
        """One that hangs, and whose place is taken now, would only keep its memory."""
        for agent, pid in self._agents.elsewhere(worker, machine):
            self._send(agent, messages.EndWorker(worker=str(worker), pid=pid))

    def ask_stack(self, worker: WorkerId, connection: Connection | None) -> None:
        """The agent asks by a signal; one that it has not started is asked by a message."""
        agent, pid = self._agents.process_of(worker) or (connection, 0)
        if agent is not None:
            self._send(agent, messages.ShowStack(pid=pid))

    def look_at(self, worker: WorkerId) -> None:
        """Nobody looks at one that no agent has started."""
        if (process := self._agents.process_of(worker)) is not None:
            self._send(process[0], messages.LookAt(pid=process[1]))

    def try_links(self, machine: str, others: Mapping[str, Address]) -> None:
        if (agent := self._agents.connection_to(machine)) is not None:
            self._send(agent, messages.TryLinks(addresses=dict(others)))
