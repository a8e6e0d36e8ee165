"""Who comes in after it has proven who it is: as a worker, as an agent, or to ask for something."""

from holdfast.auth.handshake import AGENT, JOINER, OPERATOR, Identity
from holdfast.cluster import parse_worker
from holdfast.control.coordinator import Coordinator
from holdfast.control.io.agents.agent_connections import Agents
from holdfast.control.io.entry.rights import refusal
from holdfast.control.io.entry.worker_connections import WorkerConnections
from holdfast.protocol.connection import Connection

ASK_LIMIT_S = 5.0  # of one who has proven to belong to the run, and wants to join


class Entrance:
    """``generation`` and ``launch``: of this coordinator, and of the first before it."""

    def __init__(
        self,
        generation: int,
        launch: int,
        coordinator: Coordinator,
        agents: Agents,
        workers: WorkerConnections,
    ) -> None:
        self._generation, self._launch, self._coordinator = generation, launch, coordinator
        self._agents, self._workers = agents, workers
        self._asking: dict[Connection, float] = {}  # wants to join, or back; until when it may stay

    def refusal(self, peer: Identity) -> str:
        """Why there is no place for it; empty: there is."""
        wants = self._agents.has_place
        told = (peer, self._generation, self._is_free)
        return refusal(*told, wants_agent=wants, launch=self._launch)

    def enter(self, peer: Identity, connection: Connection, now_s: float) -> None:
        if peer.role == AGENT:
            self._agents.admit(connection, now_s)
        elif peer.role in (JOINER, OPERATOR) or not self._is_free(peer.name):
            self._asking[connection] = now_s + ASK_LIMIT_S
        else:
            self._workers.loads(parse_worker(peer.name), connection)

    def asks_on(self, connection: Connection, now_s: float) -> None:
        """While it takes pieces of what it has asked for it may stay."""
        if connection in self._asking:
            self._asking[connection] = now_s + ASK_LIMIT_S

    def late(self, now_s: float) -> list[Connection]:
        """They have had time enough to say what they have come for."""
        asking = [connection for connection, until_s in self._asking.items() if now_s > until_s]
        return [*asking, *self._agents.late(now_s)]

    def stays(self, connection: Connection) -> None:
        self._asking.pop(connection, None)

    def _is_free(self, name: str) -> bool:
        return self._coordinator.accepts(name) and parse_worker(name) not in self._workers.loading
