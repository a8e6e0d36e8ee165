"""What the recovery bench runs: jobs, who dies in them, and the ways to recover.

Only descriptions; how they are run and what is read off them is elsewhere.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from failstop_run import EMULATED, EXAMPLE, STAYS_AWAY, Job

HEADLINE, TABLE, REAL = "emulated, 1f1b", "emulated, zero-bubble", "tiny GPT 1x4"
PEERS = "emulated, 2 pipelines"
PLAIN = "plain"
CHECKPOINT_STEP = 2  # the shorter, the shorter the bench
AFTER_STEPS = 2  # that are finished after the one in which somebody dies
NEVER = 100_000  # steps between checkpoints


@dataclass(frozen=True, kw_only=True)
class Task(Job):
    """On real devices unless its settings say otherwise."""

    def command(self, run_dir: Path, *, resume: bool) -> list[str]:
        numbers = {
            "--pipelines": self.pipelines,
            "--stages": self.stages,
            "--microbatches": self.shape.microbatches,
            "--steps": self.steps,
            "--resume" if resume else "--run-dir": run_dir,
        }
        return [
            sys.executable, "-m", "holdfast", "train", str(EXAMPLE),
            *(str(part) for pair in numbers.items() for part in pair),
            *(part for setting in (STAYS_AWAY, *self.settings) for part in ("--set", setting)),
            *(part for fault in self.faults for part in ("--fault", fault)),
        ]  # fmt: skip


class Way(NamedTuple):
    """How to recover. ``restarts``: all is killed at once and started again by hand."""

    settings: tuple[str, ...] = ()
    restarts: bool = False
    num_helpers: int | None = None  # that replay; -1: all survivors; None: nobody does


_LOG = "recovery.log=boundary"
WAYS = {
    "restart": Way(restarts=True),
    "global": Way(("recovery.mode=global",)),
    "checkfreq": Way(("recovery.mode=checkfreq", "checkpoint.every_steps=10")),
    "commit": Way(("recovery.mode=commit",)),
    "no log": Way(),
    "swift": Way(("recovery.mode=swift", _LOG), num_helpers=1),
    "helpers=0": Way((_LOG, "recovery.helpers=0"), num_helpers=1),
    "helpers=4": Way((_LOG, "recovery.helpers=4"), num_helpers=4),
    "helpers=-1": Way((_LOG, "recovery.helpers=-1"), num_helpers=-1),
    "undo": Way((_LOG, "recovery.consistency=undo"), num_helpers=-1),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, who dies, and after which of the ways it is measured."""

    name: str
    task: Task
    victim: str
    ways: tuple[str, ...]
    lost_steps: int = 20

    @property
    def fault(self) -> str:
        """At the begin of its step."""
        return f"kill {self.victim} @ {CHECKPOINT_STEP + self.lost_steps + 1}"

    @property
    def stage(self) -> int:
        return int(self.victim.partition(".")[2])

    def job(self, way: Way, *faults: str) -> Task:
        settings = (
            *self.task.settings, "checkpoint.at_end=false", f"checkpoint.every_steps={NEVER}",
            *way.settings,
        )  # fmt: skip
        num_steps = CHECKPOINT_STEP + self.lost_steps + 1 + AFTER_STEPS
        return replace(self.task, steps=num_steps, settings=settings, faults=faults)


# While nothing happens.
VARIANTS: dict[str, tuple[str, ...]] = {
    PLAIN: (),
    "log": ("recovery.log=boundary",),
    "swift": ("recovery.mode=swift", "recovery.log=boundary"),
    "global": ("recovery.mode=global",),
    "checkfreq": ("recovery.mode=checkfreq", "checkpoint.every_steps=10"),
    "commit": ("recovery.mode=commit",),
    "undo": ("recovery.consistency=undo",),
}


@dataclass(frozen=True, kw_only=True)
class Race:
    """``task``: without steps. ``turn_steps``: that one runs until it is the next one's turn."""

    name: str
    task: Task
    variants: tuple[str, ...]
    turn_steps: int


# --- which ---


def emulated(pipelines: int, stages: int, schedule: str, op_ms: int = 20, each: int = 8) -> Task:
    device = EMULATED.replace("20ms", f"{op_ms}ms")
    return Task(
        pipelines=pipelines,
        stages=stages,
        microbatches=each,
        settings=(device, f"schedule.name={schedule}"),
    )


def real(pipelines: int, stages: int) -> Task:
    return Task(pipelines=pipelines, stages=stages, microbatches=4)


def with_saves(task: Task) -> Task:
    return replace(task, settings=(*task.settings, "checkpoint.every_steps=20"))


def races(quick: bool) -> list[Race]:
    pair, everything = (PLAIN, "log"), tuple(VARIANTS)
    if quick:
        task = with_saves(emulated(1, 4, "zero-bubble", op_ms=2, each=4))
        return [Race(name="emulated 1x4", task=task, variants=pair, turn_steps=6)]
    task = with_saves(emulated(1, 4, "zero-bubble"))
    return [
        Race(name="emulated 1x4", task=task, variants=pair, turn_steps=8),
        Race(name=REAL, task=with_saves(real(1, 4)), variants=everything, turn_steps=40),
        Race(name="tiny GPT 2x2", task=with_saves(real(2, 2)), variants=pair, turn_steps=40),
    ]


def cases(quick: bool) -> list[Case]:
    if quick:
        task, ways = emulated(1, 4, "1f1b", op_ms=5, each=4), ("restart", "helpers=0", "helpers=4")
        return [Case(name=HEADLINE, task=task, victim="0.2", ways=ways, lost_steps=5)]
    few = ("restart", "helpers=0", "helpers=4", "helpers=-1")
    return [
        Case(name=HEADLINE, task=emulated(1, 8, "1f1b"), victim="0.4", ways=few),
        Case(name=TABLE, task=emulated(1, 8, "zero-bubble"), victim="0.4", ways=tuple(WAYS)),
        Case(
            name=PEERS,
            task=emulated(2, 4, "zero-bubble"),
            victim="0.2",
            ways=("restart", "commit", "no log"),
        ),
        Case(name=REAL, task=real(1, 4), victim="0.2", ways=tuple(WAYS)),
    ]
