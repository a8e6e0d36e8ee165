"""Sockets around the coordinator: one selector loop, no thread. Decides nothing itself."""

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from holdfast.auth.handshake import COORDINATOR, Identity
from holdfast.auth.stamps import Stamps
from holdfast.bundle.serving import BundleServer
from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import (
    AskStack,
    CheckLinks,
    Effect,
    Emit,
    Fence,
    FenceMachine,
    LookAtWorker,
    ReleaseMachine,
    SealResult,
    Send,
    StartWorker,
    TellAgents,
)
from holdfast.control.io.agents.agent_connections import Agents
from holdfast.control.io.agents.machine_desk import Line, MachineDesk
from holdfast.control.io.agents.passed_on import Hear, PassedOnWords
from holdfast.control.io.entry.entrance import Entrance
from holdfast.control.io.entry.rights import check_right, join_answer, sent_away
from holdfast.control.io.entry.strangers import Stranger, Strangers, TakeCourier, send_away
from holdfast.control.io.entry.worker_connections import WorkerConnections
from holdfast.control.io.in_order import InOrder
from holdfast.control.io.last_words import Unheard
from holdfast.control.io.succession.signs import Signs
from holdfast.control.io.worker_clocks import WorkerClocks
from holdfast.errors import Deposed, HoldfastError, PeerLost, ProtocolError
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.codec import encode
from holdfast.protocol.connection import Connection
from holdfast.protocol.spec import Access

STOP_LIMIT_S = 1.5  # with the agent's grace well below the 5 s in which a run must have stopped
SEND_LIMIT_S = 0.5  # a worker that takes nothing for so long must not hold up the others
MORE_STRANGERS = 64  # than workers of the run; descriptors are few
TICK_S = 0.05


class Server:
    """``perform`` carries out every effect that is not a message, e.g. writing an event.

    ``start_more`` starts workers where there is no agent to do so. ``most_agents``: nobody else is
    taken for one, whatever it has proven.
    """

    def __init__(
        self,
        listener: socket.socket,
        access: Access,
        coordinator: Coordinator,
        perform: Callable[[Effect], None],
        start_workers: messages.StartWorkers,
        *,
        start_more: Callable[[messages.StartWorkers], None] = lambda order: None,
        most_agents: int = 1,
        take_seals: Callable[[], Sequence[SealResult]] = lambda: (),
        leads: Callable[[float], bool] = lambda now_s: True,
        bundle: BundleServer | None = None,
        take_courier: TakeCourier = send_away,
    ) -> None:
        self._listener, self._access = listener, access
        self._coordinator = coordinator
        self._perform, self._take_seals = perform, take_seals
        self._start_workers, workers = start_workers, start_workers.config.workers
        self._silence_limit_s = workers.silence_limit_s
        self._selector = selectors.DefaultSelector()
        self._unheard, self._clocks = Unheard(self._selector), WorkerClocks()
        me = Identity(COORDINATOR, "", access.generation)
        most = len(coordinator.workers) + MORE_STRANGERS
        self.strangers = Strangers(self._selector, listener, access.secret, me, most, take_courier)
        self._peers: dict[Connection, Identity] = {}  # all who have proven who they are
        self._workers = WorkerConnections()
        self._agents = Agents(most_agents)
        known = (access.generation, start_workers.launch, coordinator)
        self._entrance = Entrance(*known, self._agents, self._workers)
        is_past = coordinator.parts.reports.is_past
        hear = Hear(self._hear_as_said, coordinator.hear_beats, self._apply)
        self._passed_on = PassedOnWords(self._agents, self._workers, hear, is_past)
        line = Line(self._send, self._drop, self._apply, self._log, self._passed_on.take)
        supplies = start_more, bundle or BundleServer(None)
        self._machines = MachineDesk(coordinator, self._agents, start_workers, *supplies, line)
        self._effects = InOrder(self._do)
        self._encoded: tuple[messages.Message, bytes] | None = None
        self._num_interrupts, self._ticked_s, self._signs = 0, 0.0, Signs(coordinator, leads)
        self.deposed: Deposed | None = None  # another coordinator has taken over

    @property
    def num_peers(self) -> int:
        """How many are connected who have proven who they are."""
        return len(self._peers)

    def interrupt(self) -> None:
        """Ask the loop to stop the run; safe in a signal handler."""
        self._num_interrupts += 1

    def run(
        self, start_limit_s: float, agent_ended: Callable[[], str | None] = lambda: None
    ) -> None:
        """Until the run is over and its workers are gone."""
        self.strangers.open()
        started_s = time.monotonic()
        while not self._coordinator.over and self.deposed is None:
            time.sleep(self._coordinator.pause_s)  # so that more is heard at once
            self.turn(TICK_S)
            self._tick(now_s := time.monotonic())
            started_s = now_s if self._coordinator.is_gathering else started_s
            awaits = self._coordinator.is_gathering or not self._agents.connections
            if awaits and (why := agent_ended()):
                self._fail(HoldfastError(why))
            elif self._coordinator.starting and now_s - started_s > start_limit_s:
                waited = f"workers.start_limit_s={start_limit_s:g} reached while "
                self._fail(HoldfastError(waited + self._coordinator.waiting_for()))
        if self.deposed is None:
            self.wait_for_workers()

    def close(self) -> None:
        for agent in self._agents.connections if self.deposed is None else ():
            self._send(agent, messages.Stop(reason="the run is over"))
        # Whoever closes first may cost the other side the last word: they are to hang up.
        self._turn_while(lambda: self._agents.connections and self.deposed is None)
        for connection in list(self._peers):
            self._drop(connection)
        self.strangers.close()
        self._selector.close()
        self._listener.close()

    def _tick(self, now_s: float) -> None:
        while self._num_interrupts:
            self._num_interrupts -= 1
            self._apply(self._coordinator.interrupt(now_s))
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            self.strangers.tick(now_s)
            for connection in self._entrance.late(now_s):
                self._log(str(self._peers[connection]), "did not say what it had come for")
                self._drop(connection)
            if number := self.strangers.count_refused(now_s):  # one line for many
                self._log("strangers", f"{number} did not prove that they belong to the run")
            self._apply(self._clocks.due(self._workers.here, now_s))
            self._apply(self._signs.due(self._workers.here, now_s))
            self._apply(self._coordinator.tick(now_s))
            self._hear_of_seals()

    def wait_for_workers(self) -> None:
        """They were told to stop; those that do not are killed by the agent in close()."""
        for connection in list(self._workers.loading.values()):
            self._send(connection, messages.Stop(reason="the run is over"))
        here, agents = self._workers.here, self._agents
        self._turn_while(lambda: agents.are_running or here or self._signs.awaited)

    def _turn_while(self, goes_on: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while goes_on() and time.monotonic() < deadline_s:
            self.turn(TICK_S)

    # --- what comes in ---

    def turn(self, timeout_s: float) -> None:
        """One look at what has come, for at most so long."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self.strangers.accept()
            elif isinstance(key.fileobj, Stranger):
                if (proven := self.strangers.read(key.fileobj)) is not None:
                    self._admit(*proven)
            elif isinstance(key.fileobj, Connection) and key.fileobj in self._peers:
                self._read(key.fileobj)

    def _admit(self, peer: Identity, sock: socket.socket, stamps: Stamps) -> None:
        """It belongs to the run. Whether there is a place for it is another question."""
        try:
            connection = Connection(sock, stamps, SEND_LIMIT_S, self._silence_limit_s)
        except OSError:  # it has hung up already
            sock.close()
            return
        self._peers[connection] = peer
        self._selector.register(connection, selectors.EVENT_READ)
        if why := self._entrance.refusal(peer):
            self._send(connection, sent_away(peer, self._access.generation, why))
            self._log(str(peer), why)
            self._drop(connection)
        else:
            self._entrance.enter(peer, connection, time.monotonic())

    def _read(self, connection: Connection) -> None:
        try:
            for message in self._unheard.words(connection):
                if connection in self._peers:  # else an earlier message had it dropped
                    self._dispatch(connection, message)
                    self._workers.heard(connection)
                    self._passed_on.heard(connection)
        except (PeerLost, ProtocolError) as why:
            self._lose(connection, why)

    def _lose(self, connection: Connection, why: HoldfastError) -> None:
        if isinstance(why, ProtocolError) and connection in self._peers:
            self._log(str(self._peers[connection]), str(why))
        is_worker = connection in self._workers
        machine = self._agents.machine_of(connection)
        peer = self._drop(connection)
        if machine:
            self._apply(self._coordinator.machines.lost(machine, str(why), time.monotonic()))
        elif peer is not None and is_worker:
            self._apply(self._coordinator.lost_connection(peer.name, time.monotonic()))

    def _dispatch(self, connection: Connection, message: messages.Message) -> None:
        """ProtocolError: it has said what it may not say."""
        is_here = self._workers.is_here(connection)
        check_right(self._peers[connection], message, has_said_hello=is_here)
        if isinstance(message, messages.BundleAsk):
            self._entrance.asks_on(connection, time.monotonic())
        if self._machines.hear(connection, message):
            return
        match message:
            case messages.JoinRequest():
                return self._answer(connection, message)
            case messages.Reattach():
                return self._take_back(connection, message)
            case messages.Hello():
                worker = parse_worker(message.worker)
                if self._workers.loading.get(worker) is not connection:
                    raise ProtocolError(f"{self._peers[connection]}: has no place to say hello in")
                self._workers.came(worker, connection)
        self._apply(self._handled(message))

    def _take_back(self, connection: Connection, told: messages.Reattach) -> None:
        worker = parse_worker(told.worker)
        answer = self._signs.answer(told, is_new=self._workers.loading.get(worker) is connection)
        if answer is None:
            self._entrance.stays(connection)
            self._workers.came(worker, connection)
            return self._apply(self._handled(told))
        self._send(connection, answer)
        if isinstance(answer, messages.Begone):
            self._drop(connection)

    def _hear_as_said(self, connection: Connection, message: messages.Message) -> None:
        """What an agent has passed on. If it is nonsense, that is not the agent's fault."""
        try:
            self._apply(self._handled(message))
        except ProtocolError as why:
            self._lose(connection, why)

    def _handled(self, message: messages.Message) -> list[Effect]:
        now_s = time.monotonic()
        heard = self._clocks.heard(message, now_s)
        return [] if heard is None else self._coordinator.handle(heard, now_s)

    def _log(self, who: str, reason: str) -> None:
        if self._coordinator.over:
            return  # its last event is that it is over
        dropped = events.ConnectionDropped(at_s=time.monotonic(), who=who, reason=reason)
        self._perform_or_fail(Emit(dropped))

    def _answer(self, connection: Connection, request: messages.JoinRequest) -> None:
        order = self._start_workers
        grant = partial(self._coordinator.grant, request, order.job_sha256, time.monotonic())
        self._send(connection, join_answer(grant, order))
        self._drop(connection)

    # --- what is to be done ---

    def _apply(self, effects: Sequence[Effect]) -> None:
        self._effects.apply(effects)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                if effect.to in self._workers.here:
                    self._send(self._workers.here[effect.to], effect.message)
            case Fence():
                self._fence(effect.worker)
            case StartWorker() | AskStack() | LookAtWorker():
                told = self._machines.do(effect, self._workers.here.get(effect.worker))
                self._apply([] if told is None else self._handled(told))
            case FenceMachine() | ReleaseMachine() | CheckLinks() | TellAgents():
                self._machines.do(effect, None)
            case _:
                self._perform_or_fail(effect)

    def _fence(self, worker: WorkerId) -> None:
        self._agents.fence(worker)
        if (connection := self._workers.of(worker)) is not None:
            self._hear_last_words(connection)
            self._drop(connection)

    def _hear_last_words(self, connection: Connection) -> None:
        if not self._workers.is_here(connection):
            return
        peer = self._peers[connection]
        for message in self._unheard.last_words(connection):
            try:
                check_right(peer, message, has_said_hello=True)
                effects = self._handled(message)
            except ProtocolError:
                return  # it is lost already
            self._apply(effects)

    def _perform_or_fail(self, effect: Effect) -> None:
        try:
            self._perform(effect)
        except Deposed as why:
            self.deposed = why
            self._effects.stop()
            return
        except HoldfastError as why:
            self._fail(why)
        self._hear_of_seals()

    def _hear_of_seals(self) -> None:
        for result in self._take_seals():
            self._apply(self._coordinator.heard_of_seal(result, time.monotonic()))

    def _fail(self, why: HoldfastError) -> None:
        self._apply(self._coordinator.fail(why, time.monotonic()))

    def _send(self, connection: Connection, message: messages.Message) -> None:
        if self._encoded is None or self._encoded[0] is not message:  # the same to many
            self._encoded = (message, encode(message))
        try:
            connection.send_encoded(self._encoded[1])
        except PeerLost as why:
            if connection in self._peers:
                self._hear_last_words(connection)
                self._lose(connection, why)

    def _drop(self, connection: Connection) -> Identity | None:
        peer = self._peers.pop(connection, None)
        if peer is None:
            return None  # a send that failed has done it
        self._entrance.stays(connection)
        self._agents.drop(connection)
        self._selector.unregister(connection)
        connection.close()
        self._workers.drop(connection)
        self._passed_on.drop(connection)
        return peer
