"""A run in progress, as its user sees it: processes to signal, files that grow."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from helpers import runs
from holdfast.observability.events import (
    EVENTS_FILE,
    Event,
    StepFinished,
    WorkerReady,
    read_events,
)

LIMIT_S = 60.0  # no wait of a test takes this long unless it fails


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """Poll; returns how long it took."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < limit_s, f"waited {limit_s:g} s in vain: {what}"
        time.sleep(0.01)
    return time.monotonic() - start_s


def process_state(pid: int) -> str:
    """As in /proc: "R", "S", "T" (stopped), "Z" (ended, not reaped); "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class LiveRun:
    """A ``holdfast train`` in a process group of its own; ``close`` leaves nothing behind."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.run_dir = folder / "run"
        self._stderr = folder / "stderr.txt"
        with open(folder / "stdout.txt", "wb") as stdout, open(self._stderr, "wb") as stderr:
            self.launcher = subprocess.Popen(
                runs.command(*words, "--run-dir", str(self.run_dir)),
                stdout=stdout,
                stderr=stderr,
                env=runs.environment(),
                start_new_session=True,
            )
        self.workers: dict[str, int] = {}
        self.agent = 0

    def wait_for_steps(self, num_steps: int) -> None:
        """Until that many are done; from then on the ids of all processes are known."""

        def are_done() -> bool:
            assert self.launcher.poll() is None, self.stderr
            return len([e for e in self._events() if isinstance(e, StepFinished)]) >= num_steps

        wait_until(are_done, f"{num_steps} steps")
        ready = [event for event in self._events() if isinstance(event, WorkerReady)]
        self.workers = {event.worker: event.pid for event in ready}
        [self.agent] = {parent_of(pid) for pid in self.workers.values()}

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    @property
    def pids(self) -> list[int]:
        return [self.agent, *self.workers.values()]

    def still_running(self) -> list[int]:
        """Agent and workers that run; one that ended and waits for its parent does not count."""
        return [pid for pid in self.pids if process_state(pid) not in ("", "Z", "X")]

    def not_reaped(self) -> list[int]:
        return [pid for pid in self.pids if process_state(pid)]

    def wait_for_end(self, limit_s: float) -> int:
        """The launcher's exit code."""
        return self.launcher.wait(limit_s)

    def close(self) -> None:
        for pid in (self.launcher.pid, *self.pids):
            if pid and (pid != self.launcher.pid or self.launcher.poll() is None):
                _kill(pid)
        self.launcher.wait()

    def _events(self) -> list[Event]:
        path = self.run_dir / EVENTS_FILE
        return read_events(path) if path.exists() else []


def _kill(pid: int) -> None:
    if process_state(pid) not in ("", "Z", "X"):
        os.kill(pid, signal.SIGKILL)
