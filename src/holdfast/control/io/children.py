"""Processes that the agent has started: under which id each worker runs there. Pure."""

from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError


class Children:
    def __init__(self) -> None:
        self._started: dict[int, str] = {}  # process id -> worker
        self._running: dict[int, str] = {}  # those of them that the agent is to end

    def started(self, pid: int, worker: str) -> None:
        self._started[pid] = self._running[pid] = worker

    def exited(self, pid: int, worker: str) -> None:
        self.check(pid, worker)
        del self._started[pid]
        self._running.pop(pid, None)

    def check(self, pid: int, worker: str) -> None:
        """ProtocolError: the agent speaks of what it has not started."""
        if self._started.get(pid, "") != worker:
            raise ProtocolError(f"process {pid} is no {worker} of its own")

    def fence(self, worker: WorkerId) -> None:
        """Nobody waits for its end any more."""
        self._running = {p: name for p, name in self._running.items() if name != str(worker)}

    def pid_of(self, worker: WorkerId) -> int:
        """0: the agent has not started it."""
        return max((pid for pid, name in self._running.items() if name == str(worker)), default=0)

    @property
    def are_running(self) -> bool:
        return bool(self._running)
