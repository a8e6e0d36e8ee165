"""Starts workers on one machine and tells the coordinator the moment one ends.

Workers are forked from this process, which has loaded torch already: 0.1 s instead of seconds
each. It must therefore own no thread. Single-threaded: one selector, pidfds for the children.
"""

import ctypes
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.cluster import parse_worker
from holdfast.config import RunConfig, config_from
from holdfast.control.exits import describe
from holdfast.errors import PeerLost
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import (
    AgentHello,
    Message,
    ShowStack,
    StartWorkers,
    Stop,
    WorkerExited,
    WorkerStarted,
)
from holdfast.protocol.spec import Access, WorkerSpec

STOP_GRACE_S = 1.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class _Child:
    worker: str
    pid: int
    pidfd: int


class Agent:
    """``run_worker`` runs in the forked child and returns its exit code."""

    def __init__(
        self,
        connection: Connection,
        access: Access,
        prepare: Callable[[RunConfig], None],
        run_worker: Callable[[WorkerSpec], int],
    ) -> None:
        self._connection = connection
        self._access = access
        self._prepare = prepare
        self._run_worker = run_worker
        self._prepared: RunConfig | None = None
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        self._selector.register(self._connection, selectors.EVENT_READ)
        try:
            self._connection.send(AgentHello(pid=os.getpid()))
            while True:
                if self._turn(timeout_s=1.0):
                    return 0
        except PeerLost:
            return 1  # the launcher is gone: take the workers along
        finally:
            self._end_children()

    def _turn(self, timeout_s: float) -> bool:
        """Handle what has happened; True when told to stop."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._connection:
                if any(self._obey(message) for message in self._connection.read()):
                    return True
            else:
                self._reap(self._children[key.fd])
        return False

    def _obey(self, message: Message) -> bool:
        match message:
            case StartWorkers():
                config = config_from(message.config)
                if config != self._prepared:  # the same for those that come later
                    self._prepare(config)
                    self._prepared = config
                for worker in message.workers:
                    self._start(worker, message, config)
            case ShowStack():
                self._show_stack(message.pid)
            case Stop():
                return True
            case _:
                sys.stderr.write(f"holdfast agent: ignored {type(message).__name__}\n")
        return False

    def _start(self, worker: str, order: StartWorkers, config: RunConfig) -> None:
        self._end_earlier(worker)
        spec = WorkerSpec(parse_worker(worker), self._access, order.job, order.job_sha256, config)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(spec, parent)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = _Child(worker, pid, pidfd)
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._connection.send(WorkerStarted(worker=worker, pid=pid))

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
                os.close(self._connection.fileno())
                self._selector.close()
                for pidfd in self._children:
                    os.close(pidfd)
                code = self._run_worker(spec)
        except Exception:  # the end of this process: nobody else could say why
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _show_stack(self, pid: int) -> None:
        for child in self._children.values():
            if child.pid == pid:
                signal.pidfd_send_signal(child.pidfd, signal.SIGUSR1)  # as runtime/stacks.py

    def _reap(self, child: _Child) -> None:
        self._selector.unregister(child.pidfd)
        del self._children[child.pidfd]
        os.close(child.pidfd)
        _, status = os.waitpid(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        exited = WorkerExited(worker=child.worker, pid=child.pid, how=describe(code), code=code)
        self._connection.send(exited)

    def _end_children(self) -> None:
        """Wait a little for those that end by themselves, then kill the rest."""
        deadline_s = time.monotonic() + STOP_GRACE_S
        self._selector.unregister(self._connection)
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
