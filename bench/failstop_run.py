"""A run of Holdfast on emulated devices that is watched and disturbed from outside.

Starts it, follows its events, sends signals to its workers, and leaves no process behind. Knows
how to read a stall off the records of operations, but no bars and no sections.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from groups import groups_of, signal_all
from holdfast.observability.events import (
    Event,
    Recovered,
    StepFinished,
    WorkerReady,
    WorkerStep,
    decode_event,
)
from holdfast.observability.log import EVENTS_FILE
from holdfast.schedule.operation import Fact, Kind, Op, Shape, makes, needs, parse_op

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny_gpt.py"
OP_S = 0.020
EMULATED = "device.emulate=F=20ms,B=20ms,W=20ms"
STAYS_AWAY = "workers.replace=0"  # whoever is killed: it is the others that are timed
START_LIMIT_S = 180.0
_POLL_S = 0.02
_END_LIMIT_S = 20.0
_PR_SET_PDEATHSIG = 1

Kept = TypeVar("Kept")
Found = TypeVar("Found")


class RunError(Exception):
    """A run did not do what it was started for; says what was awaited and its last words."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """``microbatches``: a pipeline."""

    pipelines: int
    stages: int
    microbatches: int
    steps: int = 0
    settings: Sequence[str] = ()
    faults: Sequence[str] = ()

    @property
    def num_workers(self) -> int:
        return self.pipelines * self.stages

    @property
    def shape(self) -> Shape:
        return Shape(self.pipelines, self.stages, self.pipelines * self.microbatches)

    def command(self, run_dir: Path, *, resume: bool) -> list[str]:
        settings = (EMULATED, "checkpoint.at_end=false", STAYS_AWAY, *self.settings)
        return [
            sys.executable, "-m", "holdfast", "train", str(EXAMPLE),
            "--pipelines", str(self.pipelines), "--stages", str(self.stages),
            "--microbatches", str(self.pipelines * self.microbatches), "--steps", str(self.steps),
            *(("--resume", str(run_dir)) if resume else ("--run-dir", str(run_dir))),
            *(part for setting in settings for part in ("--set", setting)),
            *(part for fault in self.faults for part in ("--fault", fault)),
        ]  # fmt: skip


class Run:
    """In a process group of its own. Use as a context: it ends with it, whatever happened."""

    def __init__(self, job: Job, folder: Path, *, resume: bool = False) -> None:
        self.job = job
        self.events: list[Event] = []
        run_dir = folder / "run"
        self._path, self._output = run_dir / EVENTS_FILE, folder / "output.txt"
        # A resumed run goes on in the same file.
        self._read_bytes = self._path.stat().st_size if resume else 0
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                job.command(run_dir, resume=resume),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    # --- what it does ---

    def poll(self) -> bool:
        """Read what is new; False when nothing more will come."""
        running = self._process.poll() is None
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole) + len(newline)
            self.events += (decode_event(line.decode()) for line in whole.split(b"\n") if line)
        return running

    def of(self, kind: type[Kept]) -> list[Kept]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def next_step(self) -> int:
        steps = self.of(StepFinished)
        return steps[-1].step + 1 if steps else 0

    @property
    def num_members(self) -> int:
        """After the last change that is complete."""
        changes = self.of(Recovered)
        return changes[-1].members if changes else self.job.num_workers

    @property
    def is_whole(self) -> bool:
        return self.num_members == self.job.num_workers

    def wait(self, what: str, condition: Callable[[], Found | None], limit_s: float) -> Found:
        """What ``condition`` finds, once that is anything but None or False."""
        until_s = time.monotonic() + limit_s
        while True:
            running = self.poll()
            found = condition()
            if found is not None and found is not False:
                return found
            if not running:
                raise RunError(f"the run ended before {what}: {self.last_words()}")
            if time.monotonic() > until_s:
                raise RunError(f"{limit_s:g} s passed before {what}: {self.last_words()}")
            time.sleep(_POLL_S)

    def wait_for_step(self, step: int, limit_s: float) -> None:
        """Until all before ``step`` are finished."""
        self.wait(f"step {step}", lambda: self.next_step >= step, limit_s)

    def last_words(self) -> str:
        lines = self._output.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    # --- what is done to it ---

    def strike(self, worker: str, number: signal.Signals) -> float:
        """Send a signal to a worker; when that was."""
        pid = next(r.pid for r in reversed(self.of(WorkerReady)) if r.worker == worker)
        if os.getpgid(pid) not in groups_of(self._process.pid):
            raise RunError(f"process {pid} is not of this run")
        at_s = time.monotonic()
        os.kill(pid, number)
        return at_s

    def kill_all(self) -> float:
        """The launcher and all that it has started, at once; when that was."""
        if self._process.poll() is not None:
            raise RunError(f"the run ended by itself: {self.last_words()}")
        at_s = time.monotonic()
        signal_all(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return at_s

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill_all()
        until_s = time.monotonic() + _END_LIMIT_S
        while left := list(_members(self._process.pid)):
            if time.monotonic() > until_s:
                raise RunError(f"processes {left} of the run do not end")
            for pid in left:
                _kill_if_there(pid)
            time.sleep(_POLL_S)


def _members(group: int) -> Iterable[int]:
    """Live processes of a process group."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(of_group) == group and state not in "ZX":
            yield int(path.parent.name)


def _kill_if_there(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _die_with_parent() -> Any:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# --- what its records say ---


def names(shape: Shape) -> list[str]:
    return [f"{d}.{s}" for d in range(shape.pipelines) for s in range(shape.stages)]


class Trial(NamedTuple):
    """Seconds since the signal."""

    notice_s: float
    stopped_s: float  # the last operation that was under way has ended
    plan_s: float
    ready_s: float  # the next operation of the last survivor that needs nothing new from others
    operation_s: float  # the next operation of the last survivor of all
    resumed_s: float  # the same as the coordinator has it


class Ran(NamedTuple):
    """An operation in the records of the one that ran it."""

    worker: str
    step: int
    op: Op
    start_s: float
    end_s: float


def trial_of(events: Sequence[Event], shape: Shape, victim: str, signal_s: float) -> Trial | None:
    """None: there was no recovery, or a survivor has recorded no operation since."""
    changes = (e for e in events if isinstance(e, Recovered) and victim in e.workers)
    change = next((c for c in changes if c.resumed_s > signal_s), None)
    if change is None:
        return None
    survivors = {name for name in names(shape) if name != victim}
    ran = [one for one in records(events) if one.worker in survivors]
    later = [one for one in ran if one.start_s >= change.plan_s]
    nexts = {one.worker: one for one in sorted(later, key=lambda one: -one.start_s)}
    if nexts.keys() != survivors:
        return None
    new = {(one.step, fact) for one in later for fact in makes(one.op)}
    stopped_s = max((one.end_s for one in ran if one.start_s < change.plan_s), default=0.0)
    ready_s = [n.start_s for n in nexts.values() if not waits_for_others(n, new, shape)]
    times_s = (
        change.notice_s,
        max(stopped_s, change.notice_s),
        change.plan_s,
        max(ready_s, default=change.plan_s),
        max(one.start_s for one in nexts.values()),
        change.resumed_s,
    )
    return Trial(*(at_s - signal_s for at_s in times_s))


def records(events: Sequence[Event]) -> Iterator[Ran]:
    for event in events:
        if isinstance(event, WorkerStep):
            for text, start_s, end_s in event.ops:
                yield Ran(event.worker, event.step, parse_op(text), start_s, end_s)


def waits_for_others(one: Ran, new: Collection[tuple[int, Fact]], shape: Shape) -> bool:
    """Whether it cannot begin before others have run something: lost work that is done again, or a
    pipeline that fills. That would take as long if stopping and planning took no time."""
    if one.op.kind is Kind.R:  # it begins, and waits for the others' sums then
        return False
    return any((one.step, fact) in new for fact in needs(one.op, shape))
