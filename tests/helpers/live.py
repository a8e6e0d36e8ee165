"""A run in progress, as its user sees it: processes to signal, files that grow.

A paced run is slow until it is released, so that there is time to do something to it, and the
fewer steps are left the slower; its result is that of the job ``mixed``.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from helpers import jobs, runs
from holdfast.observability.events import Event, RunStarted, StepFinished, WorkerReady, decode_event
from holdfast.observability.log import EVENTS_FILE

LIMIT_S = 150.0  # no wait of a test takes this long unless it fails
PACE_S = 0.03  # of a sample
SLOWER = ((0.25, 0.5), (0.5, 0.12))  # share of the steps that are left, and the pace from there on
_Event = TypeVar("_Event")
_SLOW_FILE = "slow"
_ITEM = "    def __getitem__(self, index):\n"
_SLOW_ITEM = f"""\
    def __getitem__(self, index):
        try:
            time.sleep(float(pathlib.Path(__file__).with_name("{_SLOW_FILE}").read_text()))
        except FileNotFoundError:
            pass
"""


def wait_until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> float:
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


def is_running(pid: int) -> bool:
    """One that ended and waits for its parent does not count."""
    return process_state(pid) not in ("", "Z", "X")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes_of(address: str) -> list[int]:
    """Agent and workers of the run that listens there: it is in all their command lines."""
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and address.encode() in _command_line(folder)
    ]


def _command_line(folder: Path) -> list[bytes]:
    try:
        return (folder / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # it has just ended


def address_of(events: list[Event]) -> str:
    return [event for event in events if isinstance(event, RunStarted)][-1].address


def assert_nothing_left(outcome: runs.Outcome) -> None:
    """No process of a run that has ended; one that came by hand may need a moment."""
    address = address_of(outcome.events)
    wait_until(lambda: not processes_of(address), f"the processes of {address} to end")


def pace(folder: Path, sample_s: float) -> None:
    """How long each sample takes from now on."""
    new = folder / f"{_SLOW_FILE}.new"
    new.write_text(str(sample_s))
    new.replace(folder / _SLOW_FILE)


def paced(folder: Path) -> Path:
    """The job ``mixed``, slow as long as a file lies beside it."""
    pace(folder, PACE_S)
    text = jobs.MIXED.replace("CLIP_NORM", "1.3").replace(_ITEM, _SLOW_ITEM)
    return jobs.write(folder, "paced", f"import pathlib\nimport time\n{text}")


class Command:
    """A ``holdfast`` command in a process group of its own."""

    def __init__(self, folder: Path, name: str, *words: str, cwd: Path | None = None) -> None:
        self._stdout, self._stderr = folder / f"{name}.out", folder / f"{name}.err"
        with open(self._stdout, "wb") as stdout, open(self._stderr, "wb") as stderr:
            self.process = subprocess.Popen(
                runs.command(*words),
                stdout=stdout,
                stderr=stderr,
                env=runs.environment(),
                start_new_session=True,
                cwd=cwd,
            )

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class LiveRun:
    """A ``holdfast train``, and all that has joined it; ``close`` leaves nothing behind."""

    def __init__(self, folder: Path, *words: str, cwd: Path | None = None) -> None:
        """``cwd``: its working directory, from where the run directory is named."""
        self.run_dir = folder / "run"
        self._folder = folder
        named = str(self.run_dir) if cwd is None else os.path.relpath(self.run_dir, cwd)
        more = ["--run-dir", named, *runs.settings(runs.STAYS_AWAY)]
        self._command = Command(folder, "train", words[0], *more, *words[1:], cwd=cwd)
        self.launcher = self._command.process
        self.joined: list[Command] = []
        self._num_steps = int(words[words.index("--steps") + 1])
        self.agent = 0
        self._events: list[Event] = []
        self._read_bytes = 0

    @property
    def events(self) -> list[Event]:
        """All until now. Only what is new is read: a long run has many."""
        path = self.run_dir / EVENTS_FILE
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole + newline)
            self._events += map(decode_event, whole.decode().splitlines())
        return self._events

    def all_of(self, kind: type[_Event]) -> list[_Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def workers(self) -> dict[str, int]:
        """Process ids of those that came last under each name."""
        return {event.worker: event.pid for event in self.all_of(WorkerReady)}

    @property
    def address(self) -> str:
        return address_of(self.events)

    def wait_for(self, kind: type[_Event], num: int = 1, **values: object) -> list[_Event]:
        """Until that many events of a kind, with these values, are there."""

        def found() -> list[_Event]:
            return [
                event
                for event in self.all_of(kind)
                if all(getattr(event, name) == value for name, value in values.items())
            ]

        def is_there() -> bool:
            self._hold_back()
            ended = self.launcher.poll() is not None  # before the look: its last events count
            there = len(found()) >= num
            assert there or not ended, f"ended before {kind.__name__} {values}: {self.stderr}"
            return there

        wait_until(is_there, f"{num} times {kind.__name__} {values}")
        return found()

    def wait_for_steps(self, num_steps: int) -> None:
        """Until that many are done; from then on the ids of all processes are known."""
        self.wait_for(StepFinished, num_steps)
        self.agent = self.agent or parent_of(next(iter(self.workers.values())))

    def wait_for_more_steps(self, num_steps: int) -> None:
        self.wait_for_steps(len(self.all_of(StepFinished)) + num_steps)

    def kill(self, worker: str, which: signal.Signals = signal.SIGKILL) -> int:
        pid = self.workers[worker]
        os.kill(pid, which)
        return pid

    def join(self, *words: str, cwd: Path | None = None) -> Command:
        """``holdfast worker --join`` by hand."""
        name = f"join-{len(self.joined)}"
        all_words = ["worker", "--join", self.address, "--run-dir", str(self.run_dir), *words]
        self.joined.append(Command(self._folder, name, *all_words, cwd=cwd))
        return self.joined[-1]

    def slow_down(self, sample_s: float) -> None:
        """A paced run takes longer: for what may take a while on a busy machine. Or as before."""
        pace(self._folder, sample_s)

    def _hold_back(self) -> None:
        """A paced run does not end before what is waited for, however slow the machine is."""
        slow = self._folder / _SLOW_FILE
        left = 1 - len(self.all_of(StepFinished)) / self._num_steps
        slower_s = next((pace_s for share, pace_s in SLOWER if left <= share), 0.0)
        if slow.exists() and float(slow.read_text()) < slower_s:
            pace(self._folder, slower_s)

    def release(self) -> None:
        """A paced run goes on at full speed."""
        (self._folder / _SLOW_FILE).unlink(missing_ok=True)

    @property
    def stderr(self) -> str:
        return self._command.stderr

    @property
    def pids(self) -> list[int]:
        return [self.agent, *self.workers.values()]

    def still_running(self) -> list[int]:
        return [pid for pid in self.pids if is_running(pid)]

    def not_reaped(self) -> list[int]:
        return [pid for pid in self.pids if process_state(pid)]

    def wait_for_end(self, limit_s: float = LIMIT_S) -> int:
        """The launcher's exit code."""
        return self.launcher.wait(limit_s)

    def outcome(self, limit_s: float = LIMIT_S) -> runs.Outcome:
        code = self.wait_for_end(limit_s)
        return runs.Outcome(self.run_dir, code, self._command.stdout, self.stderr)

    def close(self) -> None:
        """Before the events are read: a run that has not begun yet has none."""
        self._command.close()
        for command in self.joined:
            command.close()
        if any(isinstance(event, RunStarted) for event in self.events):
            for pid in processes_of(self.address):
                _kill(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
