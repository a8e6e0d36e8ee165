"""Runs of a tiny job in which workers die at exact points, and what must be true of them after.

Workers are threads of this process, so that every operation can be counted where it is run,
also those of the dead. Which points are tried is decided by the tests.
"""

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from helpers import jobs, runs
from holdfast.cluster import WorkerId
from holdfast.faults.fault import parse_fault
from holdfast.observability.events import FaultFired, WorkerJoined, WorkerLost, WorkerMoved
from holdfast.observability.events import WorkerStep as Step
from holdfast.runtime.executor import Executor
from holdfast.schedule.operation import Kind, Op, parse_op

TINY = '''
"""Four small layers with all that is hard: dropout, batch norm, tied ends, clipping."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from holdfast.job import Job

WIDTH = 6


class Numbers:
    def __len__(self):
        return 50

    def __getitem__(self, index):
        phase = torch.arange(WIDTH) * (index + 1) * 0.37
        return phase.sin() * (1 + index % 3), phase.cos()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2))

    def forward(self, x):
        return x + self.inner(x)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


def job():
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return Job(
        layers=[first, Residual(), Normed(), last],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-2),
        data=Numbers(),
        microbatch_size=2,
        lr_schedule=lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step)),
        clip_norm=CLIP_NORM,
    )
'''

STEPS = 5
LIMIT_S = 60.0  # a run takes half a second; on a busy machine a few
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
    """All operations that executors of this process have computed, in order."""

    def __init__(self) -> None:
        self.ran: list[Ran] = []

    def watch(self, monkeypatch) -> None:
        for name, is_again in (("_compute", False), ("_compute_again", True)):
            monkeypatch.setattr(Executor, name, self._counted(getattr(Executor, name), is_again))

    def _counted(self, compute, is_again: bool):
        def counted(executor, op, incoming):
            outgoing = compute(executor, op, incoming)
            if op.microbatch is not None:
                who, step, attempt = str(executor._lane.me), executor._step, executor._attempt
                self.ran.append(Ran(who, step, attempt, op, is_again))
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
            shown = [event for event in self.outcome.events if not isinstance(event, Step)]
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
        run_dir = self.folder / f"run-{self._count}"
        name = f"tiny_{layout.text}"
        job = jobs.write(self.folder, name, TINY.replace("CLIP_NORM", repr(layout.clip_norm)))
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


# --- what must be true ---


def assert_ended_well(story: Story) -> None:
    assert not story.stacks, f"hung:\n{story}"
    assert (story.outcome.exit_code, story.outcome.stderr) == (0, ""), str(story)
    assert story.outcome.summary["outcome"] == "finished", str(story)


def assert_same(story: Story, undisturbed: runs.Outcome) -> None:
    assert_ended_well(story)
    assert story.outcome.sha256 == undisturbed.sha256, str(story)
    assert story.outcome.losses == undisturbed.losses, f"{undisturbed.losses}\n{story}"


def assert_fired(story: Story, faults: Iterable[str] | None = None) -> None:
    wanted = story.faults if faults is None else [str(parse_fault(fault)) for fault in faults]
    assert sorted(story.fired) == sorted(wanted), str(story)
    lost = {event.worker for event in story.outcome.events if isinstance(event, WorkerLost)}
    killed = {str(parse_fault(f).worker) for f in wanted if not f.startswith(("join", "slow"))}
    assert killed <= lost, str(story)


def stage_was_lost(story: Story) -> bool:
    """Whether at some time nobody held some stage, from what happened to whom."""
    holds = {worker: int(worker.split(".")[1]) for worker in story.layout.workers}
    for event in story.outcome.events:
        match event:
            case FaultFired() if event.fault.startswith(("kill", "hang")):
                holds.pop(event.worker, None)
            case WorkerJoined():
                holds[event.worker] = event.stage
            case WorkerMoved():
                holds[event.worker] = event.to_stage
        if set(holds.values()) != set(range(story.layout.stages)):
            return True
    return False


def parts(op: Op) -> list[Op]:
    if op.kind is not Kind.BW:
        return [op]
    return [Op(op.stage, kind, op.microbatch) for kind in (Kind.B, Kind.W)]


def who_ran(ran: Iterable[Ran]) -> Mapping[tuple[int, int, Op], list[str]]:
    """(step, attempt, operation) -> all who have computed it, in order."""
    found: dict[tuple[int, int, Op], list[str]] = defaultdict(list)
    for one in ran:
        for part in parts(one.op):
            found[one.step, one.attempt, part].append(one.worker)
    return found


def run_again(story: Story) -> dict[tuple[int, int, Op], list[str]]:
    return {key: who for key, who in who_ran(story.ran).items() if len(who) > 1}


def assert_only_lost_work_is_redone(story: Story, victim: str) -> None:
    """Each operation once, but those that the victim had finished at most once more."""
    again = run_again(story)
    for key, who in again.items():
        assert len(who) == 2, f"{key} was run by {who}\n{story}"
        assert who[0] == victim, f"{key} was run by {who}\n{story}"
        assert who[1] != victim, f"{key} was run by {who}\n{story}"
    counted = sum(recovery["redone"] for recovery in story.outcome.summary["recoveries"])
    assert counted == len(again), f"{counted} counted, {sorted(map(str, again))} ran\n{story}"


def assert_events_tell_what_ran(story: Story, victim: str) -> None:
    """The operations of survivors in the events are those that were counted."""
    for worker in story.layout.workers:
        if worker == victim:
            continue
        told = sorted(
            (event.step, text)
            for event in story.outcome.events
            if isinstance(event, Step) and event.worker == worker
            for text, _, _ in event.ops
            if parse_op(text).microbatch is not None
        )
        ran = sorted(
            (one.step, str(one.op))
            for one in story.ran
            if one.worker == worker and not one.is_again
        )
        assert told == ran, f"worker {worker}\n{story}"


def stage_of(worker: str) -> int:
    return WorkerId(*map(int, worker.split("."))).stage
