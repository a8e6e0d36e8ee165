"""Starts workers on one machine and tells the coordinator the moment one ends.

Workers are forked from this process, which has loaded torch already: 0.1 s instead of seconds
each. It must therefore own no thread. Single-threaded: one selector, pidfds for the children.
"""

import ctypes
import math
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.control.io.agents.agent_line import AgentLine
from holdfast.control.liveness.exits import describe
from holdfast.errors import ConfigError, PeerLost
from holdfast.host.network import unreached
from holdfast.host.scarce import PAUSES_S
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import (
    AgentBeat,
    AgentHello,
    AgentRefused,
    Begone,
    Leaving,
    LinksTried,
    LookAt,
    Message,
    ShowStack,
    StartWorkers,
    Stop,
    TryLinks,
    WorkerExited,
    WorkerNotStarted,
    WorkerRuns,
    WorkerStarted,
)
from holdfast.protocol.spec import Access, WorkerSpec

STOP_GRACE_S = 1.0
START_PAUSES_S = PAUSES_S
BEAT_S = 0.2
TRY_LINKS_S = 1.0  # no worker is there meanwhile that could be missed
_PR_SET_PDEATHSIG = 1
# States of a process that does something, if only sleep in a call, or wait for a disk or debugger.
_RUNS = ("R", "S", "D", "t")


@dataclass(frozen=True, slots=True)
class _Child:
    worker: str
    pid: int
    pidfd: int


@dataclass(frozen=True, slots=True)
class _Start:
    """That did not succeed so far."""

    spec: WorkerSpec
    num_tried: int
    due_s: float


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
        self._prepare = prepare
        self._run_worker = run_worker
        self._say = say
        self._hello, self._adapted = hello, adapted
        self.ended_for = ""  # what the launcher has said
        self._leaves = leaves
        self._leaves_by_s = math.inf  # once it has been said that this machine is to go
        self._beat_s, self._next_beat_s = BEAT_S, 0.0
        self._prepared: RunConfig | None = None
        self._children: dict[int, _Child] = {}
        self._waiting: dict[WorkerId, _Start] = {}

    def run(self) -> int:
        """0: the run is over; 1: the launcher is gone. ConfigError: there is no place for it."""
        try:
            self._line.send(self._hello)
            while True:
                if self._turn(self._pause_s()) or self._is_told_to_stop(at_last=True):
                    return 0
                if self._line.look():
                    self._say_again()
                self._start_due()
                self._beat()
                if self._is_to_go():
                    return 0
        except PeerLost:
            return 1  # the launcher is gone, and nobody takes over: take the workers along
        finally:
            self._end_children()

    def _say_again(self) -> None:
        """To a coordinator that has taken over: who runs here, and who has ended meanwhile."""
        running = [WorkerStarted(worker=c.worker, pid=c.pid) for c in self._children.values()]
        self._leaves_by_s = math.inf
        for message in [self._hello, *running, *self._line.take_unsaid()]:
            self._line.send(message)

    def _turn(self, timeout_s: float) -> bool:
        """Handle what has happened; True when told to stop."""
        for key, _ in self._selector.select(timeout_s):
            if key.fd in self._children:
                self._reap(self._children[key.fd])
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
                message = self._adapted(message)
                config = message.config
                self._line.follow(message)
                if config != self._prepared:  # the same for those that come later
                    self._prepare(config)
                    self._prepared = config
                    self._beat_s = min(BEAT_S, config.workers.heartbeat_timeout_s / 10 or BEAT_S)
                for worker in message.workers:
                    self._end_earlier(worker)
                    self._start(self._spec(worker, message, config))
            case ShowStack():
                self._show_stack(message.pid)
            case LookAt():
                self._look_at(message.pid)
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

    def _start(self, spec: WorkerSpec, num_tried: int = 0) -> None:
        """What the machine is short of may be there in a moment: the others are seen meanwhile."""
        self._waiting.pop(spec.worker, None)
        name = str(spec.worker)
        try:
            pid = self._fork(spec)
        except OSError as why:
            if num_tried == len(START_PAUSES_S):
                reason = why.strerror or str(why)
                self._line.send(WorkerNotStarted(worker=name, reason=reason))
            else:
                due_s = time.monotonic() + START_PAUSES_S[num_tried]
                self._waiting[spec.worker] = _Start(spec, num_tried + 1, due_s)
        else:
            self._line.send(WorkerStarted(worker=name, pid=pid))

    def _pause_s(self) -> float:
        due_s = min((start.due_s for start in self._waiting.values()), default=math.inf)
        pause_s = max(0.0, min(self._next_beat_s, due_s) - time.monotonic())
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
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._beat_s
            self._line.send(AgentBeat())

    def _start_due(self) -> None:
        for start in list(self._waiting.values()):
            if start.due_s <= time.monotonic():
                self._start(start.spec, start.num_tried)

    def _fork(self, spec: WorkerSpec) -> int:
        """OSError: there is no such process, nor a trace of it."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(spec, parent)
        try:
            self._watch(str(spec.worker), pid)
        except OSError:  # nobody would see it end
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        return pid

    def _watch(self, worker: str, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            self._selector.register(pidfd, selectors.EVENT_READ)
        except OSError:
            os.close(pidfd)
            raise
        self._children[pidfd] = _Child(worker, pid, pidfd)

    def _end_earlier(self, worker: str) -> None:
        """One that hangs, and whose place is taken now, would only keep its memory."""
        for child in self._children.values():
            if child.worker == worker:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)

    def _become_worker(self, spec: WorkerSpec, parent: int) -> None:
        code = 1
        try:
            libc = ctypes.CDLL(None)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:  # else the agent died before the line above took effect
                # The descriptors only: shutting the shared connection down would end the agent's.
                if self._line.connection is not None:
                    os.close(self._line.connection.fileno())
                self._selector.close()
                for pidfd in self._children:
                    os.close(pidfd)
                code = self._run_worker(spec)
        except Exception:  # the end of this process: nobody else could say why
            self._say(traceback.format_exc())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _show_stack(self, pid: int) -> None:
        for child in self._children.values():
            if child.pid == pid:
                signal.pidfd_send_signal(child.pidfd, signal.SIGUSR1)  # as runtime/worker/stacks.py

    def _look_at(self, pid: int) -> None:
        for child in self._children.values():
            if child.pid == pid and process_state(pid) in _RUNS:
                self._line.send(WorkerRuns(worker=child.worker, pid=pid))

    def _reap(self, child: _Child) -> None:
        self._selector.unregister(child.pidfd)
        del self._children[child.pidfd]
        os.close(child.pidfd)
        _, status = os.waitpid(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        exited = WorkerExited(worker=child.worker, pid=child.pid, how=describe(code), code=code)
        self._line.send(exited)

    def _end_children(self) -> None:
        """Wait a little for those that end by themselves, then kill the rest."""
        deadline_s = time.monotonic() + STOP_GRACE_S
        self._line.stop_reading()
        while self._children and time.monotonic() < deadline_s:
            for key, _ in self._selector.select(0.1):
                self._reap_quietly(self._children[key.fd])
        for child in list(self._children.values()):
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            self._reap_quietly(child)

    def _reap_quietly(self, child: _Child) -> None:
        try:
            self._reap(child)
        except PeerLost:
            return  # nobody is left to be told


def process_state(pid: int) -> str:
    """As in /proc: of its first thread; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
