"""Starts workers on one machine and tells the coordinator the moment one ends.

Workers are forked from this process, which has loaded torch already: 0.1 s instead of seconds
each. It must therefore own no thread. Single-threaded: one selector, pidfds for the children.
"""

import math
import selectors
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from holdfast.cluster import parse_worker
from holdfast.config import RunConfig
from holdfast.control.io.agents.agent_line import AgentLine
from holdfast.control.io.agents.gathering import Gatherer
from holdfast.control.io.agents.worker_processes import WorkerProcesses
from holdfast.control.state.timeouts import Timeouts
from holdfast.errors import ConfigError, PeerLost
from holdfast.host.network import unreached
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import (
    AgentBeat,
    AgentHello,
    AgentRefused,
    Begone,
    EndWorker,
    Leaving,
    LinksTried,
    LookAt,
    Message,
    Renewals,
    ShowStack,
    StartWorkers,
    Stop,
    TryLinks,
    WorkerExited,
)
from holdfast.protocol.spec import Access, WorkerSpec

BEAT_S = 0.2
TRY_LINKS_S = 1.0  # no worker is there meanwhile that could be missed


@dataclass(frozen=True, slots=True)
class Departure:
    """This machine is to go."""

    reason: str
    within_s: float  # 0: now


class Agent:
    """``run_worker`` runs in the forked child and returns its exit code; ``say`` takes lines.

    ``adapted``: an order as it is carried out on this machine, which may have other directories and
    addresses than the launcher's. ``leaves``: asked again and again; None: it stays.
    """

    def __init__(
        self,
        connection: Connection,
        access: Access,
        hello: AgentHello,
        prepare: Callable[[RunConfig], None],
        run_worker: Callable[[WorkerSpec], int],
        say: Callable[[str], None] = lambda line: None,
        adapted: Callable[[StartWorkers], StartWorkers] = lambda order: order,
        leaves: Callable[[], Departure | None] = lambda: None,
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._line = AgentLine(connection, access, self._selector)
        self._gathering = Gatherer(self._selector)
        self._processes = WorkerProcesses(
            self._selector, self._gathering, run_worker, self._line.let_go, say
        )
        self._prepare, self._say = prepare, say
        self._hello, self._adapted = hello, adapted
        self.ended_for = ""  # what the launcher has said
        self._leaves = leaves
        self._leaves_by_s = math.inf  # once it has been said that this machine is to go
        self._beat_s, self._next_beat_s = BEAT_S, 0.0
        self._prepared: RunConfig | None = None

    def run(self) -> int:
        """0: the run is over; 1: the launcher is gone. ConfigError: there is no place for it."""
        try:
            self._line.send(self._hello)
            while True:
                if self._turn(self._pause_s()) or self._is_told_to_stop(at_last=True):
                    return 0
                if self._line.look():
                    self._say_again()
                self._tell(self._processes.start_due())
                self._processes.kill_due()
                self._beat()
                if self._is_to_go():
                    return 0
        except PeerLost:
            return 1  # the launcher is gone, and nobody takes over: take the workers along
        finally:
            self._end()

    def _say_again(self) -> None:
        """To a coordinator that has taken over: who runs here, and who has ended meanwhile."""
        self._leaves_by_s = math.inf
        self._gathering.begin_anew()
        self._tell([self._hello, *self._processes.running, *self._line.take_unsaid()])

    def _tell(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._line.send(message)

    def _turn(self, timeout_s: float) -> bool:
        """Handle what has happened; True when told to stop."""
        for key, _ in self._selector.select(timeout_s):
            if self._selector.get_map().get(key.fd) is not key:
                continue  # what came before it in this turn has closed it
            if key.fd in self._processes:
                self._line.send(self._processes.reap(key.fd))
            elif key.data is not None:
                self._gathering.hear(key.data)
            elif key.fileobj is self._line.connection and self._is_told_to_stop():
                return True
        return False

    def _is_told_to_stop(self, *, at_last: bool = False) -> bool:
        """``at_last``: by what was heard when the line broke."""
        heard = self._line.take_last_words() if at_last else self._line.read()
        return any(self._obey(message) for message in heard)

    def _obey(self, message: Message) -> bool:
        match message:
            case StartWorkers():
                self._start_all(self._adapted(message))
            case ShowStack():
                self._processes.show_stack(message.pid)
            case LookAt():
                self._tell(self._processes.look_at(message.pid))
            case Renewals():
                self._gathering.renew(message)
            case EndWorker():
                self._processes.end_soon(message)
            case TryLinks(addresses=addresses):
                self._line.send(LinksTried(unreached=unreached(addresses, TRY_LINKS_S)))
            case Stop():
                self.ended_for = message.reason
                return True
            case Begone():
                raise PeerLost(message.reason)
            case AgentRefused():
                raise ConfigError(message.reason)
            case _:
                self._say(f"holdfast agent: ignored {type(message).__name__}")
        return False

    def _start_all(self, order: StartWorkers) -> None:
        config = order.config
        self._line.follow(order)
        if config != self._prepared:  # the same for those that come later
            self._prepare(config)
            self._prepared = config
            self._beat_s = _beat_s(config)
        for worker in order.workers:
            self._tell(self._processes.start(self._spec(worker, order, config)))

    def _spec(self, worker: str, order: StartWorkers, config: RunConfig) -> WorkerSpec:
        return WorkerSpec(
            parse_worker(worker),
            self._line.access,
            order.job,
            order.job_sha256,
            config,
            order.run_dir,
            order.resumed,
            order.launch,
        )

    def _pause_s(self) -> float:
        due_s = min([self._next_beat_s, *self._processes.due_s])
        pause_s = max(0.0, due_s - time.monotonic())
        return min(pause_s, self._line.pause_s)

    def _is_to_go(self) -> bool:
        """At once. Before that its workers are let go in good order, if there is time."""
        departure, now_s = self._leaves(), time.monotonic()
        if departure is None:
            return False
        if self._leaves_by_s == math.inf:
            self._line.send(Leaving(reason=departure.reason))
            self.ended_for = "it was told to leave, and has waited long enough"
        self._leaves_by_s = min(self._leaves_by_s, now_s + departure.within_s)
        return now_s >= self._leaves_by_s

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_beat_s or self._gathering.is_full:
            self._next_beat_s = now_s + self._beat_s
            self._line.send(self._gathering.take(self._beat_s) or AgentBeat())
            self._gathering.passed_on(is_heard=self._line.connection is not None)

    def _end(self) -> None:
        self._line.stop_reading()
        self._gathering.end()
        self._processes.end_all(self._tell_if_heard)

    def _tell_if_heard(self, exited: WorkerExited) -> None:
        with suppress(PeerLost):  # nobody is left to be told
            self._line.send(exited)


def _beat_s(config: RunConfig) -> float:
    """As its workers do, and in a small run not less often than usual."""
    workers = config.workers
    limits = workers.heartbeat_timeout_s, workers.start_limit_s, ()
    beat_s = Timeouts.of(*limits, config.num_workers).beat_s
    return beat_s if config.is_gathered else min(BEAT_S, beat_s)
