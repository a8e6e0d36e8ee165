"""The processes of workers on one machine: forked, watched by pidfds, and ended.

What is to be told of them is returned. Knows no connection.
"""

import ctypes
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from holdfast.cluster import WorkerId
from holdfast.control.io.agents.gathering import Gatherer
from holdfast.control.liveness.exits import describe
from holdfast.host.scarce import PAUSES_S
from holdfast.protocol.messages import (
    EndWorker,
    WorkerExited,
    WorkerNotStarted,
    WorkerRuns,
    WorkerStarted,
)
from holdfast.protocol.spec import WorkerSpec

STOP_GRACE_S = 1.0
START_PAUSES_S = PAUSES_S
_PR_SET_PDEATHSIG = 1
# States of a process that does something, if only sleep in a call, or wait for a disk or debugger.
_RUNS = ("R", "S", "D", "t")

Started = WorkerStarted | WorkerNotStarted


@dataclass(frozen=True, slots=True)
class _Child:
    worker: str
    pid: int
    pidfd: int
    slot: int


@dataclass(frozen=True, slots=True)
class _Start:
    """That did not succeed so far."""

    spec: WorkerSpec
    num_tried: int
    due_s: float


class WorkerProcesses:
    """``run_worker`` runs in the forked child, once that has let go of what is the agent's."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        gathering: Gatherer,
        run_worker: Callable[[WorkerSpec], int],
        let_go: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._selector, self._gathering = selector, gathering
        self._run_worker, self._let_go, self._say = run_worker, let_go, say
        self._children: dict[int, _Child] = {}
        self._waiting: dict[WorkerId, _Start] = {}
        self._ends_s: dict[int, float] = {}  # pidfd of a child -> when it is killed

    def __contains__(self, pidfd: int) -> bool:
        return pidfd in self._children

    @property
    def running(self) -> list[WorkerStarted]:
        return [WorkerStarted(worker=c.worker, pid=c.pid) for c in self._children.values()]

    @property
    def due_s(self) -> list[float]:
        """When something is to be done."""
        return [*(start.due_s for start in self._waiting.values()), *self._ends_s.values()]

    # --- start ---

    def start(self, spec: WorkerSpec) -> list[Started]:
        """Nothing: it is tried again soon."""
        self._end_earlier(str(spec.worker))
        return self._start(spec)

    def start_due(self) -> list[Started]:
        told: list[Started] = []
        for start in list(self._waiting.values()):
            if start.due_s <= time.monotonic():
                told += self._start(start.spec, start.num_tried)
        return told

    def _start(self, spec: WorkerSpec, num_tried: int = 0) -> list[Started]:
        """What the machine is short of may be there in a moment: the others are seen meanwhile."""
        self._waiting.pop(spec.worker, None)
        name = str(spec.worker)
        try:
            return [WorkerStarted(worker=name, pid=self._fork(spec))]
        except OSError as why:
            if num_tried == len(START_PAUSES_S):
                return [WorkerNotStarted(worker=name, reason=why.strerror or str(why))]
            due_s = time.monotonic() + START_PAUSES_S[num_tried]
            self._waiting[spec.worker] = _Start(spec, num_tried + 1, due_s)
            return []

    def _fork(self, spec: WorkerSpec) -> int:
        """OSError: there is no such process, nor a trace of it."""
        parent, name = os.getpid(), str(spec.worker)
        spec = replace(spec, slot=self._free_slot())
        if spec.config.is_gathered:
            spec = replace(spec, relay=self._gathering.open(name))
        pid = os.fork()
        if pid == 0:
            self._become_worker(spec, parent)
        if spec.relay is not None:
            spec.relay.close()
        try:
            self._watch(name, pid, spec.slot)
        except OSError:  # nobody would see it end
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        return pid

    def _free_slot(self) -> int:
        taken = {child.slot for child in self._children.values()}
        return next(slot for slot in count() if slot not in taken)

    def _watch(self, worker: str, pid: int, slot: int) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            self._selector.register(pidfd, selectors.EVENT_READ)
        except OSError:
            os.close(pidfd)
            raise
        self._children[pidfd] = _Child(worker, pid, pidfd, slot)

    def _become_worker(self, spec: WorkerSpec, parent: int) -> None:
        code = 1
        try:
            libc = ctypes.CDLL(None)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:  # else the agent died before the line above took effect
                self._let_go()
                self._selector.close()
                self._gathering.leave()
                for pidfd in self._children:
                    os.close(pidfd)
                code = self._run_worker(spec)
        except Exception:  # the end of this process: nobody else could say why
            self._say(traceback.format_exc())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # --- look ---

    def show_stack(self, pid: int) -> None:
        for child in self._children.values():
            if child.pid == pid:
                signal.pidfd_send_signal(child.pidfd, signal.SIGUSR1)  # as runtime/worker/stacks.py

    def look_at(self, pid: int) -> list[WorkerRuns]:
        return [
            WorkerRuns(worker=child.worker, pid=pid)
            for child in self._children.values()
            if child.pid == pid and process_state(pid) in _RUNS
        ]

    # --- end ---

    def _end_earlier(self, worker: str) -> None:
        """One that hangs, and whose place is taken now, would only keep its memory."""
        for child in self._children.values():
            if child.worker == worker:
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
                self._gathering.close(worker)

    def end_soon(self, order: EndWorker) -> None:
        """It may be on its way out already."""
        for child in self._children.values():
            if (child.worker, child.pid) == (order.worker, order.pid):
                self._ends_s[child.pidfd] = time.monotonic() + STOP_GRACE_S

    def kill_due(self) -> None:
        for pidfd, due_s in list(self._ends_s.items()):
            if due_s <= time.monotonic():
                del self._ends_s[pidfd]
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def reap(self, pidfd: int) -> WorkerExited:
        child = self._children.pop(pidfd)
        self._selector.unregister(pidfd)
        self._ends_s.pop(pidfd, None)
        os.close(pidfd)
        _, status = os.waitpid(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return WorkerExited(worker=child.worker, pid=child.pid, how=describe(code), code=code)

    def end_all(self, tell: Callable[[WorkerExited], None]) -> None:
        """Wait a little for those that end by themselves, then kill the rest."""
        deadline_s = time.monotonic() + STOP_GRACE_S
        while self._children and time.monotonic() < deadline_s:
            for key, _ in self._selector.select(0.1):
                tell(self.reap(key.fd))
        for pidfd in list(self._children):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            tell(self.reap(pidfd))


def process_state(pid: int) -> str:
    """As in /proc: of its first thread; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
