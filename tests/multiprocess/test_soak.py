"""Kills and joins without end: the run neither hangs nor grows, and its result is exact.

HOLDFAST_SOAK=600 soaks for so many seconds, with a kill every 5 to 15 s; HOLDFAST_SEED repeats
the choice of whom and when.
"""

import os
import random
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers import jobs, runs
from helpers.live import LIMIT_S, LiveRun, assert_nothing_left, paced, wait_until
from helpers.seed import SEED
from holdfast.observability.events import StepFinished, WorkerJoined, WorkerLost, WorkerMoved

SOAK_S = float(os.environ.get("HOLDFAST_SOAK", "25"))
IS_LONG = SOAK_S > 60
PAUSE_S = (5, 15) if IS_LONG else (1, 3)  # the rest of a round is the join itself
STEPS = int(3 * SOAK_S) + 80  # more than the soak takes, at a slow pace
MICROBATCHES = 6
SURVIVOR = "0.0"  # is never killed
NUM_ROUNDS_TO_WARM_UP = 4
LEAST_ROUNDS = 6  # else nothing is proven
MARGIN = 2  # threads and descriptors that may be in use at any moment; a round may leak none
MEMORY_MARGIN = 1.2
NUMBERS = {"steps": STEPS, "microbatches": MICROBATCHES}


class Usage(NamedTuple):
    """Of one process, now."""

    memory_mb: float
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        [memory_kb] = [line.split()[1] for line in status if line.startswith("VmRSS:")]
        folders = [list(Path(f"/proc/{pid}/{name}").iterdir()) for name in ("task", "fd")]
        return cls(int(memory_kb) / 1024, *map(len, folders))

    def most(self, other: "Usage") -> "Usage":
        return Usage(*map(max, self, other))

    def has_not_grown_since(self, before: "Usage") -> bool:
        return (
            self.memory_mb <= MEMORY_MARGIN * before.memory_mb
            and self.threads <= before.threads + MARGIN
            and self.descriptors <= before.descriptors + MARGIN
        )

    def __str__(self) -> str:
        return (
            f"{self.memory_mb:.0f} MB, {self.threads} threads, {self.descriptors} file descriptors"
        )


@pytest.fixture
def live(tmp_path):
    """2 x 2 workers; whoever is missing is started again at once."""
    words = ["train", str(paced(tmp_path)), *runs.layout("2x2"), "--steps", str(STEPS)]
    words += ["--microbatches", str(MICROBATCHES)]
    words += [word for step in range(1, STEPS) for word in ("--fault", f"join @ {step}")]
    words += runs.settings("checkpoint.every_steps=20", "workers.heartbeat_timeout_s=30")
    run = LiveRun(tmp_path, *words)
    try:
        run.wait_for_steps(1)
        yield run
    finally:
        run.close()


def stages(live):
    """Who holds which stage, as far as the events say."""
    holds = {name: int(name.split(".")[1]) for name in ("0.0", "0.1", "1.0", "1.1")}
    for event in live.events:
        if isinstance(event, WorkerJoined):
            holds[event.worker] = event.stage
        elif isinstance(event, WorkerMoved):
            holds[event.worker] = event.to_stage
    return holds


def kill_and_wait_for_the_join(live, dice):
    """Somebody whose stage is held by another as well."""
    holds = stages(live)
    held = list(holds.values())
    worker = dice.choice([w for w in holds if w != SURVIVOR and held.count(holds[w]) > 1])
    num_joins = len([e for e in live.all_of(WorkerJoined) if e.worker == worker])
    live.kill(worker)
    live.wait_for(WorkerJoined, num_joins + 1, worker=worker)
    live.wait_for_more_steps(1)


def soak(live, dice):
    """Until the time is up; returns the most that its processes used in the first rounds.

    A link is made when something is first sent over it: not all are there after each round.
    """
    watched = {
        "launcher": live.launcher.pid,
        "agent": live.agent,
        "survivor": live.workers[SURVIVOR],
    }
    end_s, rounds, before = time.monotonic() + SOAK_S, 0, {}
    while time.monotonic() < end_s or rounds < LEAST_ROUNDS:
        assert len(live.all_of(StepFinished)) < STEPS - 5, "the run is too short for this machine"
        kill_and_wait_for_the_join(live, dice)
        rounds += 1
        if rounds <= NUM_ROUNDS_TO_WARM_UP:
            now = {name: Usage.of(pid) for name, pid in watched.items()}
            before = {name: now[name].most(before.get(name, now[name])) for name in now}
        time.sleep(dice.uniform(*PAUSE_S))
    return watched, before


def assert_has_not_grown(name, pid, before):
    """What is only in use for a moment does not count."""
    what = f"the {name} to use no more than {before}; it uses {Usage.of(pid)}"
    wait_until(lambda: Usage.of(pid).has_not_grown_since(before), what, LIMIT_S / 3)
    return f"{name}: {before} at first, {Usage.of(pid)} in the end"


@pytest.mark.wide
@pytest.mark.multiprocess
@pytest.mark.timeout(2 * SOAK_S + 300)
def test_a_run_full_of_kills_and_joins_neither_hangs_nor_grows(live, tmp_path, tally):
    watched, before = soak(live, random.Random(SEED))
    figures = [assert_has_not_grown(name, pid, before[name]) for name, pid in watched.items()]
    live.release()
    run = runs.finished(live.outcome(LIMIT_S + SOAK_S))
    undisturbed = runs.finished(runs.threads(jobs.mixed(tmp_path), tmp_path / "peace", **NUMBERS))
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses
    assert_nothing_left(run)
    counts = [len(live.all_of(kind)) for kind in (WorkerLost, WorkerJoined, WorkerMoved)]
    told = f"soak of {SOAK_S:g} s, HOLDFAST_SEED={SEED}: {counts[0]} losses, {counts[1]} joins, "
    tally.lines += [f"{told}{counts[2]} moves, {STEPS} steps", *figures]
