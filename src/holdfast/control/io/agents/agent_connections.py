"""Connections of agents: which machine each speaks for, and the processes it has started."""

from holdfast.cluster import WorkerId
from holdfast.control.io.agents.children import Children, OfProcess
from holdfast.errors import ProtocolError
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection

HELLO_LIMIT_S = 60.0  # it may look through a large job, or wait for its disk, between two words


class Agents:
    """``most``: agents that are let in."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._machines: dict[Connection, str] = {}  # empty: it has not said yet
        self._until_s: dict[Connection, float] = {}  # those may stay
        self._children: dict[str, Children] = {}
        self._connections: dict[str, Connection] = {}

    @property
    def has_place(self) -> bool:
        return len(self._machines) < self._most

    @property
    def connections(self) -> list[Connection]:
        return list(self._machines)

    def named_as(self, machine: str) -> list[Connection]:
        """Of machines that are part of the run: all, or the one of this name."""
        names = [machine] if machine else list(self._connections)
        return [self._connections[name] for name in names if name in self._connections]

    @property
    def are_running(self) -> bool:
        return any(children.are_running for children in self._children.values())

    def admit(self, connection: Connection, at_s: float) -> None:
        self._machines[connection] = ""
        self._until_s[connection] = at_s + HELLO_LIMIT_S

    def late(self, at_s: float) -> list[Connection]:
        """Those that have not said hello, nor asked for anything, for too long."""
        return [each for each, until_s in self._until_s.items() if at_s > until_s]

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._machines

    def check(self, connection: Connection, message: messages.Message, at_s: float) -> None:
        """ProtocolError: it may not say this yet, or not again."""
        if connection in self._until_s:
            self._until_s[connection] = at_s + HELLO_LIMIT_S
        is_hello = isinstance(message, messages.AgentHello | messages.AgentAsk | messages.BundleAsk)
        if is_hello == bool(self._machines[connection]):
            when = "a second hello" if is_hello else f"{type(message).__name__} before its hello"
            raise ProtocolError(f"agent: sent {when}")

    def name(self, connection: Connection, machine: str) -> None:
        self._machines[connection] = machine
        self._until_s.pop(connection, None)
        self._connections[machine] = connection
        self._children[machine] = Children()

    def machine_of(self, connection: Connection) -> str:
        return self._machines.get(connection, "")

    def connection_to(self, machine: str) -> Connection | None:
        return self._connections.get(machine)

    def hear(self, connection: Connection, told: OfProcess) -> None:
        """ProtocolError: it speaks of what it has not started."""
        self._children[self.machine_of(connection)].hear(told)

    def workers_of(self, connection: Connection) -> set[str]:
        """Those that it has started, and that nobody has given up since."""
        machine = self.machine_of(connection)
        return self._children[machine].running if machine else set()

    def drop(self, connection: Connection) -> str:
        """The machine that nobody speaks for any more."""
        machine = self._machines.pop(connection, "")
        self._until_s.pop(connection, None)
        if self._connections.get(machine) is connection:
            del self._connections[machine], self._children[machine]
        return machine

    # --- its workers ---

    def fence(self, worker: WorkerId) -> None:
        for children in self._children.values():
            children.fence(worker)

    def fence_on(self, machine: str, worker: WorkerId) -> None:
        """There alone: somebody else has its name elsewhere."""
        self._children[machine].fence(worker)

    def process_of(self, worker: WorkerId) -> tuple[Connection, int] | None:
        """Its agent, and its process id there; None: no agent has started it."""
        for machine, children in self._children.items():
            if pid := children.pid_of(worker):
                return self._connections[machine], pid
        return None

    def elsewhere(self, worker: WorkerId, machine: str) -> list[tuple[Connection, int]]:
        """Processes under its name on all other machines, those that are given up as well."""
        return [
            (self._connections[name], pid)
            for name, children in self._children.items()
            for pid in children.all_of(worker)
            if name != machine
        ]
