"""Sockets around the coordinator: one selector loop, no thread. Decides nothing itself."""

import selectors
import socket
import time
from collections.abc import Callable, Sequence

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.control.coordinator import Coordinator, Effect, Phase, Send
from holdfast.errors import ConfigError, HoldfastError, PeerLost, ProtocolError
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection

STOP_LIMIT_S = 1.5  # with the agent's grace well below the 5 s in which a run must have stopped
HELLO_LIMIT_BYTES = 1 << 18  # a first message may carry a traceback
HELLO_LIMIT_S = 30.0


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
    """``perform`` carries out every effect that is not a message, e.g. writing an event."""

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        coordinator: Coordinator,
        perform: Callable[[Effect], None],
        start_workers: messages.StartWorkers,
    ) -> None:
        self._listener = listener
        self._token = token
        self._coordinator = coordinator
        self._perform = perform
        self._start_workers = start_workers
        self._selector = selectors.DefaultSelector()
        self._workers: dict[WorkerId, Connection] = {}
        self._names: dict[Connection, str] = {}  # "agent" or a worker; "" until it has said hello
        self._strangers: dict[Connection, float] = {}  # no hello yet; until when they may stay
        self._agent: Connection | None = None
        self._running: set[str] = (
            set()
        )  # workers whose process the agent started and not yet reaped
        self._interrupted = False

    def interrupt(self) -> None:
        """Ask the loop to stop the run; safe in a signal handler."""
        self._interrupted = True

    def run(
        self, start_limit_s: float, agent_ended: Callable[[], str | None] = lambda: None
    ) -> None:
        """Until the run is over and its workers are gone."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        started_s = time.monotonic()
        while not self._coordinator.over:
            self._turn(0.1)
            now_s = time.monotonic()
            self._drop_strangers(now_s)
            self._apply(self._coordinator.tick(now_s))
            if self._interrupted:
                advice = self._coordinator.advice()
                self._fail(HoldfastError(f"interrupted; all workers were stopped. {advice}"))
            elif self._agent is None and (why := agent_ended()):
                self._fail(HoldfastError(why))
            elif self._starting() and now_s - started_s > start_limit_s:
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

    def _drop_strangers(self, now_s: float) -> None:
        for stranger in [c for c, until_s in self._strangers.items() if now_s > until_s]:
            self._drop(stranger)

    def _starting(self) -> bool:
        return self._coordinator.phase in (Phase.STARTING, Phase.MEASURING, Phase.BUILDING)

    def _wait_for_workers(self) -> None:
        """They were told to stop; those that do not are killed by the agent in close()."""
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while (self._running or self._workers) and time.monotonic() < deadline_s:
            self._turn(0.05)

    def _turn(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                connection = self._accept()
                if connection is None:
                    continue
                self._names[connection] = ""
                self._strangers[connection] = time.monotonic() + HELLO_LIMIT_S
                self._selector.register(connection, selectors.EVENT_READ)
            elif isinstance(key.fileobj, Connection) and key.fileobj in self._names:
                self._read(key.fileobj)

    def _accept(self) -> Connection | None:
        try:
            return Connection(self._listener.accept()[0], HELLO_LIMIT_BYTES)
        except OSError:  # a caller that gave up, or out of descriptors
            return None

    def _read(self, connection: Connection) -> None:
        try:
            for message in connection.read():
                if connection in self._names:  # else an earlier message had it dropped
                    self._dispatch(connection, message)
        except (PeerLost, ProtocolError) as why:
            name = self._drop(connection)
            if name == "agent":
                self._fail(HoldfastError(f"the agent that starts the workers is gone: {why}"))
            elif name:
                now_s = time.monotonic()
                self._apply(self._coordinator.suspect(name, "closed its connection", now_s))

    def _dispatch(self, connection: Connection, message: messages.Message) -> None:
        if not self._names[connection] and not self._welcome(connection, message):
            return
        match message:
            case messages.AgentHello():
                self._send(connection, self._start_workers)
            case messages.WorkerStarted():
                self._running.add(message.worker)
            case _:
                if isinstance(message, messages.WorkerExited):
                    self._running.discard(message.worker)
                self._apply(self._coordinator.handle(message, time.monotonic()))

    def _welcome(self, connection: Connection, message: messages.Message) -> bool:
        """The first message must be a hello, or a worker's reason why there is none."""
        if isinstance(message, messages.AgentHello) and message.token == self._token:
            self._names[connection], self._agent = "agent", connection
        elif isinstance(message, messages.Hello) and message.token == self._token:
            self._names[connection] = message.worker
            self._workers[parse_worker(message.worker)] = connection
        elif isinstance(message, messages.Failed) and message.token == self._token:
            self._names[connection] = message.worker
        else:
            self._drop(connection)
            return False
        del self._strangers[connection]
        connection.trust()
        return True

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                self._perform_or_fail(effect)
            elif effect.to in self._workers:
                self._send(self._workers[effect.to], effect.message)

    def _perform_or_fail(self, effect: Effect) -> None:
        try:
            self._perform(effect)
        except HoldfastError as why:
            self._fail(why)

    def _fail(self, why: HoldfastError) -> None:
        self._apply(self._coordinator.fail(why, time.monotonic()))

    def _send(self, connection: Connection, message: messages.Message) -> None:
        try:
            connection.send(message)
        except PeerLost:
            return  # its end is noticed by reading

    def _drop(self, connection: Connection) -> str:
        name = self._names.pop(connection, "")
        self._strangers.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()
        self._workers = {w: c for w, c in self._workers.items() if c is not connection}
        return name
