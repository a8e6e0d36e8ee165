"""Processes that the agent has started: under which id each worker runs there. Pure."""

from typing import TypeAlias

from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError
from holdfast.protocol import messages

OfProcess: TypeAlias = messages.WorkerStarted | messages.WorkerExited | messages.WorkerRuns


class Children:
    def __init__(self) -> None:
        self._started: dict[int, str] = {}  # process id -> worker
        self._running: dict[int, str] = {}  # those of them that the agent is to end

    def hear(self, told: OfProcess) -> None:
        """ProtocolError: the agent speaks of what it has not started."""
        pid, worker = told.pid, told.worker
        if isinstance(told, messages.WorkerStarted):
            self._started[pid] = self._running[pid] = worker
        elif self._started.get(pid, "") != worker:
            raise ProtocolError(f"process {pid} is no {worker} of its own")
        elif isinstance(told, messages.WorkerExited):
            del self._started[pid]
            self._running.pop(pid, None)

    def fence(self, worker: WorkerId) -> None:
        """Nobody waits for its end any more."""
        self._running = {p: name for p, name in self._running.items() if name != str(worker)}

    def pid_of(self, worker: WorkerId) -> int:
        """0: the agent has not started it."""
        return max((pid for pid, name in self._running.items() if name == str(worker)), default=0)

    def all_of(self, worker: WorkerId) -> list[int]:
        """Those of fenced ones as well."""
        return [pid for pid, name in self._started.items() if name == str(worker)]

    @property
    def running(self) -> set[str]:
        return set(self._running.values())

    @property
    def are_running(self) -> bool:
        return bool(self._running)
