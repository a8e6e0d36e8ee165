"""Runs of a tiny job in which workers die at exact points.

Workers are threads of this process, so that every operation can be counted where it is run,
also those of the dead. Which points are tried is decided by the tests; what must be true of a run
is in ``chaos_checks``.
"""

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from helpers import jobs, runs
from holdfast.faults.fault import parse_fault
from holdfast.observability.events import WorkerStep
from holdfast.runtime.replay.replay import Replayer
from holdfast.runtime.step.operations import StageOperations
from holdfast.schedule.operation import Op

PER_CENT = int(os.environ.get("HOLDFAST_SWEEP", "4"))  # of all points that are tried
QUICK = PER_CENT < 100
STEPS = 5
LIMIT_S = 150.0  # a run takes half a second; on a busy machine some
PHASES = (
    *("begin", "reduce", "partials", "reduced", "told"),
    *("apply", "half", "applied", "check", "settled"),
)
SAVE = "save"


@dataclass(frozen=True)
class Layout:
    """``clip_norm``: the third step is clipped, those around it are not."""

    text: str
    microbatches: int
    cut: str
    clip_norm: float

    @property
    def pipelines(self) -> int:
        return int(self.text.split("x")[0])

    @property
    def stages(self) -> int:
        return int(self.text.split("x")[1])

    @property
    def workers(self) -> list[str]:
        return [f"{p}.{s}" for p in range(self.pipelines) for s in range(self.stages)]

    @property
    def operations(self) -> list[str]:
        """Points around each own operation of a step."""
        share = self.microbatches // self.pipelines
        each = [f"{kind}{number}" for kind in "FBW" for number in range(share)]
        return [f"{op}{after}" for op in each for after in ("", ".done")]

    def points(self, worker: str) -> list[str]:
        """One holder of a stage saves it for all."""
        saves = [SAVE] if worker.startswith("0.") else []
        return [*self.operations, *PHASES, *saves]


LAYOUTS = {
    "2x2": Layout("2x2", 8, "[2]", 0.55),
    "3x2": Layout("3x2", 9, "[2]", 0.546),
    "2x3": Layout("2x3", 8, "[1, 2]", 0.55),
}


@dataclass(frozen=True)
class Ran:
    """An operation that was computed, whatever became of its result."""

    worker: str
    step: int
    attempt: int
    op: Op
    is_again: bool  # for others, of a step that is over on this worker


class Executions:
    """All operations of a training that this process has computed, in order; none of a replay."""

    def __init__(self) -> None:
        self.ran: list[Ran] = []
        self._own = threading.local()

    def watch(self, monkeypatch) -> None:
        for name, is_again in (("run", False), ("run_again", True)):
            counted = self._counted(getattr(StageOperations, name), is_again)
            monkeypatch.setattr(StageOperations, name, counted)
        replay = Replayer.run

        def replayed(replayer):
            self._own.replays = True
            try:
                return replay(replayer)
            finally:
                self._own.replays = False

        monkeypatch.setattr(Replayer, "run", replayed)

    def _counted(self, run, is_again: bool):
        def counted(operations, op, at, incoming):
            outgoing = run(operations, op, at, incoming)
            if not getattr(self._own, "replays", False):
                self.ran.append(Ran(str(at.me), at.step, at.number, op, is_again))
            return outgoing

        return counted


@dataclass
class Story:
    """A run, and what is needed to understand it if it went wrong."""

    layout: Layout
    faults: tuple[str, ...]
    outcome: runs.Outcome
    ran: Sequence[Ran]
    took_s: float
    stacks: str = ""  # of all threads, if it hung

    @property
    def fired(self) -> list[str]:
        return self.outcome.summary["faults_fired"]

    @property
    def went_back(self) -> bool:
        return bool(self.outcome.summary["went_back"])

    def __str__(self) -> str:
        flags = " ".join(f'--fault "{fault}"' for fault in self.faults)
        lines = [f"{self.layout.text} {flags}: code {self.outcome.exit_code}", self.outcome.stderr]
        lines += ["HUNG", self.stacks] if self.stacks else []
        if (self.outcome.run_dir / "events.jsonl").exists():
            shown = [event for event in self.outcome.events if not isinstance(event, WorkerStep)]
            lines += [str(event) for event in shown]
        error = self.outcome.run_dir / "error.txt"
        lines += [error.read_text()] if error.exists() else []
        return "\n".join(lines)


@dataclass
class Arena:
    """Runs one after the other; those without faults are kept to compare with."""

    folder: Path
    executions: Executions = field(default_factory=Executions)
    _undisturbed: dict[tuple[str, ...], runs.Outcome] = field(default_factory=dict)
    _count: int = 0

    @property
    def run_dir(self) -> Path:
        """Of the newest run."""
        return self.folder / f"run-{self._count}"

    def run(
        self, layout: Layout, faults: Iterable[str], *settings: str, steps: int = STEPS
    ) -> Story:
        faults = tuple(str(parse_fault(fault)) for fault in faults)
        flags = [word for fault in faults for word in ("--fault", fault)]
        return self.start(layout, flags, *settings, steps=steps, faults=faults)

    def start(
        self,
        layout: Layout,
        flags: Sequence[str],
        *settings: str,
        steps: int = STEPS,
        faults: tuple[str, ...] = (),
    ) -> Story:
        self._count += 1
        run_dir = self.run_dir
        name = f"tiny_{layout.text}"
        job = jobs.write(self.folder, name, jobs.TINY.replace("CLIP_NORM", repr(layout.clip_norm)))
        usual = ["checkpoint.at_end=false", "checkpoint.every_steps=0"]
        words = [*runs.layout(layout.text), *flags]
        words += runs.settings(*usual, f"parallel.cut={layout.cut}", *settings)
        self.executions.ran = ran = []
        start_s = time.monotonic()
        with hang_watch() as stacks:
            numbers = {"steps": steps, "microbatches": layout.microbatches}
            outcome = runs.threads(job, run_dir, *words, **numbers)
        took_s = time.monotonic() - start_s
        return Story(layout, faults, outcome, ran, took_s, "".join(stacks))

    def undisturbed(self, layout: Layout, *settings: str, steps: int = STEPS) -> runs.Outcome:
        key = (layout.text, str(steps), *settings)
        if key not in self._undisturbed:
            story = self.run(layout, (), *settings, steps=steps)
            self._undisturbed[key] = runs.finished(story.outcome)
        return self._undisturbed[key]

    def clean(self, story: Story) -> None:
        """Only what went wrong is worth the space."""
        shutil.rmtree(story.outcome.run_dir)


@contextmanager
def hang_watch():
    """Ends a run that takes too long, as two interrupts do; gives the stacks of all threads."""
    stacks: list[str] = []
    is_over = threading.Event()

    def end() -> None:
        if is_over.wait(LIMIT_S):
            return
        stacks.append(all_stacks())
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            is_over.wait(2.0)

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # also just before and after a run
    watch = threading.Thread(target=end, daemon=True)
    watch.start()
    try:
        yield stacks
    finally:
        is_over.set()
        watch.join()
        signal.signal(signal.SIGTERM, before)


def all_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "".join(
        f"--- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
