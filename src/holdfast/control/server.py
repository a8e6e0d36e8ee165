"""Sockets around the coordinator: one selector loop, no thread. Decides nothing itself."""

import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Effect, Fence, Send, StartWorker
from holdfast.control.peer import user_of_peer
from holdfast.control.run import RunPhase
from holdfast.errors import ConfigError, HoldfastError, PeerLost, ProtocolError
from holdfast.protocol import messages
from holdfast.protocol.codec import encode
from holdfast.protocol.connection import Connection

STOP_LIMIT_S = 1.5  # with the agent's grace well below the 5 s in which a run must have stopped
SEND_LIMIT_S = 0.5  # a worker that takes nothing for so long must not hold up the others
HELLO_LIMIT_BYTES = 1 << 18  # a first message may carry a traceback
HELLO_LIMIT_S = 30.0
MORE_STRANGERS = 64  # than workers of the run; descriptors are few
TICK_S = 0.02
_MOST_LAST_READS = 16  # one that lives may go on sending for ever


def listen(config: RunConfig) -> socket.socket:
    """The launcher's port, open before any worker starts."""
    control = config.control
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((control.host, control.port))
        sock.listen(256)
    except OSError as why:
        sock.close()
        raise ConfigError(
            f"control.port={control.port}: cannot listen on {control.host} ({why.strerror}); "
            "choose another port, or 0 for any free one"
        ) from why
    return sock


class Server:
    """``perform`` carries out every effect that is not a message, e.g. writing an event.

    ``start_more`` starts workers where there is no agent to do so.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        coordinator: Coordinator,
        perform: Callable[[Effect], None],
        start_workers: messages.StartWorkers,
        *,
        start_more: Callable[[messages.StartWorkers], None] = lambda order: None,
    ) -> None:
        self._listener = listener
        self._token = token
        self._coordinator = coordinator
        self._perform = perform
        self._start_workers = start_workers
        self._start_more = start_more
        self._selector = selectors.DefaultSelector()
        self._workers: dict[WorkerId, Connection] = {}
        self._names: dict[Connection, str] = {}  # "agent" or a worker; "" until it has said hello
        self._strangers: dict[Connection, float] = {}  # no hello yet; until when they may stay
        self._sockets: dict[Connection, socket.socket] = {}  # of the strangers
        self._agent: Connection | None = None
        self._running: dict[int, str] = {}  # process id -> worker, of those the agent is to end
        self._todo: deque[Effect] = deque()
        self._is_applying = False
        self._encoded: tuple[messages.Message, bytes] | None = None
        self._num_interrupts = 0
        self._ticked_s = 0.0

    def interrupt(self) -> None:
        """Ask the loop to stop the run; safe in a signal handler."""
        self._num_interrupts += 1

    def run(
        self, start_limit_s: float, agent_ended: Callable[[], str | None] = lambda: None
    ) -> None:
        """Until the run is over and its workers are gone."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        started_s = time.monotonic()
        while not self._coordinator.over:
            self._turn(TICK_S)
            now_s = time.monotonic()
            self._tick(now_s)
            if self._agent is None and (why := agent_ended()):
                self._fail(HoldfastError(why))
            elif self._coordinator.starting and now_s - started_s > start_limit_s:
                waited = f"workers.start_limit_s={start_limit_s:g} reached while "
                self._fail(HoldfastError(waited + self._coordinator.waiting_for()))
        self._wait_for_workers()

    def close(self) -> None:
        if self._agent is not None:
            self._send(self._agent, messages.Stop(reason="the run is over"))
        for connection in list(self._names):
            self._drop(connection)
        self._selector.close()
        self._listener.close()

    def _tick(self, now_s: float) -> None:
        while self._num_interrupts:
            self._num_interrupts -= 1
            if self._coordinator.phase is RunPhase.TRAINING:
                sys.stdout.write(
                    "interrupted: ends the step and saves it; once more: ends at once\n"
                )
                sys.stdout.flush()
            self._apply(self._coordinator.interrupt(now_s))
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            for stranger in [c for c, until_s in self._strangers.items() if now_s > until_s]:
                self._drop(stranger)
            self._apply(self._coordinator.tick(now_s))

    def _wait_for_workers(self) -> None:
        """They were told to stop; those that do not are killed by the agent in close()."""
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while (self._running or self._workers) and time.monotonic() < deadline_s:
            self._turn(0.05)

    # --- what comes in ---

    def _turn(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, Connection) and key.fileobj in self._names:
                self._read(key.fileobj)

    def _accept(self) -> None:
        try:
            sock = self._listener.accept()[0]
            connection = Connection(sock, HELLO_LIMIT_BYTES)
        except OSError:  # a caller that gave up, or out of descriptors
            return
        sock.settimeout(SEND_LIMIT_S)
        if len(self._strangers) >= len(self._coordinator.workers) + MORE_STRANGERS:
            self._drop(min(self._strangers, key=lambda one: self._strangers[one]))  # the oldest
        self._names[connection] = ""
        self._strangers[connection] = time.monotonic() + HELLO_LIMIT_S
        self._sockets[connection] = sock
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: Connection) -> None:
        try:
            for message in connection.read():
                if connection in self._names:  # else an earlier message had it dropped
                    self._dispatch(connection, message)
        except (PeerLost, ProtocolError) as why:
            self._lose(connection, why)

    def _lose(self, connection: Connection, why: HoldfastError) -> None:
        is_worker = connection in self._workers.values()
        name = self._drop(connection)
        if name == "agent":
            self._agent = None
            advice = self._coordinator.run.advice
            self._fail(HoldfastError(f"the agent that starts the workers is gone: {why}. {advice}"))
        elif is_worker:
            self._apply(self._coordinator.lost_connection(name, time.monotonic()))

    def _dispatch(self, connection: Connection, message: messages.Message) -> None:
        if not self._names[connection] and not self._welcome(connection, message):
            return
        match message:
            case messages.AgentHello():
                self._send(connection, self._start_workers)
                return
            case messages.WorkerStarted():
                self._running[message.pid] = message.worker
            case messages.WorkerExited():
                self._running.pop(message.pid, None)
        self._apply(self._coordinator.handle(message, time.monotonic()))

    def _welcome(self, connection: Connection, message: messages.Message) -> bool:
        """The first message must be a hello, a wish to join, or a reason why there is no hello."""
        if isinstance(message, messages.JoinRequest):
            self._answer(connection, message)
            return False
        if getattr(message, "token", None) != self._token:
            self._drop(connection)
            return False
        match message:
            case messages.AgentHello():
                self._names[connection], self._agent = "agent", connection
            case messages.Hello() if self._coordinator.accepts(message.worker):
                self._names[connection] = message.worker
                self._workers[parse_worker(message.worker)] = connection
            case messages.Failed() if self._coordinator.knows(message.worker):
                self._names[connection] = message.worker
            case _:
                self._send(connection, messages.Stop(reason="there is no place for you here"))
                self._drop(connection)
                return False
        del self._strangers[connection], self._sockets[connection]
        connection.trust()
        return True

    def _answer(self, connection: Connection, request: messages.JoinRequest) -> None:
        """To somebody who has no token yet: only the user whose run this is gets one."""
        reply: messages.Message
        order = self._start_workers
        try:
            if user_of_peer(self._sockets[connection]) not in (None, os.getuid()):
                raise ConfigError("only the user who has started the run may join it")
            worker = self._coordinator.grant(request, order.job_sha256, time.monotonic())
            reply = messages.JoinGranted(
                worker=str(worker),
                token=self._token,
                job=order.job,
                job_sha256=order.job_sha256,
                config=order.config,
            )
        except ConfigError as why:
            reply = messages.Stop(reason=str(why))
        self._send(connection, reply)
        self._drop(connection)

    # --- what is to be done ---

    def _apply(self, effects: Sequence[Effect]) -> None:
        """In order; what an effect leads to comes after those that were there before it."""
        self._todo.extend(effects)
        if self._is_applying:
            return
        self._is_applying = True
        try:
            while self._todo:
                self._do(self._todo.popleft())
        finally:
            self._is_applying = False

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                if effect.to in self._workers:
                    self._send(self._workers[effect.to], effect.message)
            case Fence():
                self._fence(effect.worker)
            case StartWorker():
                self._start(effect.worker)
            case _:
                self._perform_or_fail(effect)

    def _fence(self, worker: WorkerId) -> None:
        self._running = {p: name for p, name in self._running.items() if name != str(worker)}
        connection = self._workers.get(worker)
        if connection is None:
            return
        self._hear_last_words(connection)
        self._drop(connection)

    def _hear_last_words(self, connection: Connection) -> None:
        if connection in self._workers.values():
            for message in self._last_words(connection):
                self._apply(self._coordinator.handle(message, time.monotonic()))

    def _last_words(self, connection: Connection) -> list[messages.Message]:
        """What it had sent before it was lost, e.g. that a part of a checkpoint is on disk."""
        heard: list[messages.Message] = []
        try:
            for _ in range(_MOST_LAST_READS):
                if not any(key.fileobj is connection for key, _ in self._selector.select(0)):
                    break
                heard += connection.read()
        except (PeerLost, ProtocolError):
            return heard
        return heard

    def _start(self, worker: WorkerId) -> None:
        order = replace(self._start_workers, workers=[str(worker)])
        if self._agent is not None:
            self._send(self._agent, order)
        else:
            self._start_more(order)

    def _perform_or_fail(self, effect: Effect) -> None:
        try:
            self._perform(effect)
        except HoldfastError as why:
            self._fail(why)

    def _fail(self, why: HoldfastError) -> None:
        self._apply(self._coordinator.fail(why, time.monotonic()))

    def _send(self, connection: Connection, message: messages.Message) -> None:
        if self._encoded is None or self._encoded[0] is not message:  # the same to many
            self._encoded = (message, encode(message))
        try:
            connection.send_encoded(self._encoded[1])
        except PeerLost as why:
            if connection in self._names:
                self._hear_last_words(connection)
                self._lose(connection, why)

    def _drop(self, connection: Connection) -> str:
        if connection not in self._names:
            return ""  # a send that failed has done it
        name = self._names.pop(connection)
        self._strangers.pop(connection, None)
        self._sockets.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()
        self._workers = {w: c for w, c in self._workers.items() if c is not connection}
        return name
