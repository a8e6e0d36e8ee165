"""A cluster beside a run: started, listened to in a thread of its own, and ended with the run."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.launch.clusters import Cluster, MachineEnded, Say

_PAUSE_S = 0.2


class _Follower:
    def __init__(
        self, cluster: Cluster, spare: int, complain: Say, give_up: Callable[[str], None]
    ) -> None:
        self._cluster, self._spare = cluster, spare
        self._complain, self._give_up = complain, give_up
        self._missing: dict[str, str] = {}  # machine -> why it never came
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_PAUSE_S):
            for ended in self._cluster.poll():
                self._hear(ended)

    def _hear(self, ended: MachineEnded) -> None:
        line = f"{ended.machine}: {ended.reason}"
        if ended.was_up:
            self._missing.pop(ended.machine, None)
        else:
            self._missing[ended.machine] = line
        if len(self._missing) > self._spare >= 0:
            self._spare = -1  # once
            self._give_up("; ".join(self._missing.values()))
        else:
            self._complain(line)


@contextmanager
def followed(
    cluster: Cluster,
    ticket: Path,
    *,
    machines: int,
    needed: int,
    complain: Say,
    give_up: Callable[[str], None],
) -> Iterator[None]:
    """``needed``: with fewer the run cannot begin.

    ``give_up`` is called, in another thread, when so few can come: with the reason of each that
    cannot. Those that were there and end are only complained of: the run knows what to do.
    """
    num_asked = cluster.start(ticket, machines)
    follower = _Follower(cluster, num_asked - needed, complain, give_up)
    follower.start()
    try:
        yield
    finally:
        follower.stop()
        cluster.stop()
