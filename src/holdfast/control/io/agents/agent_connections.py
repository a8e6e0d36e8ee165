"""Connections of agents: which machine each speaks for, and the processes it has started."""

from holdfast.cluster import WorkerId
from holdfast.control.io.agents.children import Children
from holdfast.errors import ProtocolError
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection


class Agents:
    """``most``: agents that are let in."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._machines: dict[Connection, str] = {}  # empty: it has not said yet
        self._children: dict[str, Children] = {}
        self._connections: dict[str, Connection] = {}

    @property
    def has_place(self) -> bool:
        return len(self._machines) < self._most

    @property
    def connections(self) -> list[Connection]:
        return list(self._machines)

    @property
    def are_running(self) -> bool:
        return any(children.are_running for children in self._children.values())

    def admit(self, connection: Connection) -> None:
        self._machines[connection] = ""

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._machines

    def check(self, connection: Connection, message: messages.Message) -> None:
        """ProtocolError: it may not say this yet, or not again."""
        is_hello = isinstance(message, messages.AgentHello | messages.AgentAsk | messages.BundleAsk)
        if is_hello == bool(self._machines[connection]):
            when = "a second hello" if is_hello else f"{type(message).__name__} before its hello"
            raise ProtocolError(f"agent: sent {when}")

    def name(self, connection: Connection, machine: str) -> None:
        self._machines[connection] = machine
        self._connections[machine] = connection
        self._children[machine] = Children()

    def machine_of(self, connection: Connection) -> str:
        return self._machines.get(connection, "")

    def connection_to(self, machine: str) -> Connection | None:
        return self._connections.get(machine)

    def hear(
        self,
        connection: Connection,
        told: messages.WorkerStarted | messages.WorkerExited | messages.WorkerRuns,
    ) -> None:
        """ProtocolError: it speaks of what it has not started."""
        self._children[self.machine_of(connection)].hear(told)

    def drop(self, connection: Connection) -> str:
        """The machine that nobody speaks for any more."""
        machine = self._machines.pop(connection, "")
        if self._connections.get(machine) is connection:
            del self._connections[machine], self._children[machine]
        return machine

    # --- its workers ---

    def fence(self, worker: WorkerId) -> None:
        for children in self._children.values():
            children.fence(worker)

    def process_of(self, worker: WorkerId) -> tuple[Connection, int] | None:
        """Its agent, and its process id there; None: no agent has started it."""
        for machine, children in self._children.items():
            if pid := children.pid_of(worker):
                return self._connections[machine], pid
        return None
