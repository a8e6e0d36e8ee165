"""A cluster as the launcher of a run sees it: what brings up its agents, and ends with it."""

import threading
from pathlib import Path

from holdfast.launch.clusters import Cluster, MachineEnded, Say
from holdfast.protocol.messages import StartWorkers
from holdfast.protocol.spec import Access

PAUSE_S = 0.2
MOST_DEAF = 50  # ten seconds


class ClusterAgents:
    """A ``Starter``. Machines are listened to in a thread of its own, whatever the run does."""

    def __init__(
        self, cluster: Cluster, ticket: Path, *, machines: int, needed: int, complain: Say
    ) -> None:
        """``needed``: with fewer the run cannot begin."""
        self._cluster, self._ticket = cluster, ticket
        self._machines, self._needed, self._complain = machines, needed, complain
        self._spare = 0
        self._missing: dict[str, str] = {}  # machine -> why it has not come
        self._reason: str | None = None
        self._num_deaf, self._deaf_for = 0, ""  # how often in a row nobody could be heard
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, access: Access, order: StartWorkers) -> None:
        """Workers that come later are started by the agents that are there."""
        if self._thread is not None:
            return
        self._spare = self._cluster.start(self._ticket, self._machines) - self._needed
        self._thread = threading.Thread(target=self._listen, name="cluster", daemon=True)
        self._thread.start()

    def ended(self) -> str | None:
        """Why too few machines can come; None: all is well, or may be yet."""
        return self._reason

    def stop(self) -> None:
        if self._thread is not None:
            self.leave()
            self._cluster.stop()

    def leave(self) -> None:
        """They stay, if they were told to outlive their launcher."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()

    def _listen(self) -> None:
        """Whatever goes wrong here, the next time may be better: nobody else hears the machines."""
        while not self._is_over.wait(PAUSE_S):
            try:
                for ended in self._cluster.poll():
                    self._hear(ended)
            except Exception as why:
                self._note_deafness(f"{type(why).__name__}: {why}")
            else:
                self._num_deaf, self._deaf_for = 0, ""

    def _note_deafness(self, why: str) -> None:
        """Said once for each reason. If it lasts, and no agent is there, the run ends with it."""
        line = f"the machines cannot be listened to ({why})"
        if why != self._deaf_for:
            self._complain(f"{line}; trying again")
        self._num_deaf, self._deaf_for = self._num_deaf + 1, why
        if self._num_deaf == MOST_DEAF:
            self._reason = f"{line}; start the run again"

    def _hear(self, ended: MachineEnded) -> None:
        line = f"{ended.machine}: {ended.reason}"
        if ended.is_last:
            self._reason = line
        elif ended.was_up:
            self._missing.pop(ended.machine, None)
        else:
            self._missing[ended.machine] = line
        if len(self._missing) > self._spare:
            self._reason = "; ".join(self._missing.values())
        if self._reason is None:
            self._complain(line)
