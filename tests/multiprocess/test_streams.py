"""Runs fed by a stream: interrupted anywhere, resumed with other pipelines, killed: same bits."""

import random

import pytest

from helpers import jobs, runs
from helpers.seed import SEED
from helpers.wide import first_two, wide

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
STEPS, MICROBATCHES = 12, 4
SAMPLES_A_STEP = 2 * MICROBATCHES
NUMBERS = {"steps": STEPS, "microbatches": MICROBATCHES}
LAYOUTS = ("1x1", "2x2", "4x1", "1x3", "2x1")
STREAM = """
import os
import random
from pathlib import Path

import torch
from torch import nn

from holdfast.job import Job

READ = Path(__file__).with_name("read.txt")


class Lines:
    at = 0

    def __iter__(self):
        while self.at < 37:
            self.at += 1
            with READ.open("a") as file:
                file.write(f"{self.at - 1}\\n")
            yield torch.full((4,), self.at / 37) + random.random(), torch.zeros(4)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def job():
    return Job(
        layers=[nn.Linear(4, 4) for _ in range(4)],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        data=Lines(),
        microbatch_size=2,
    )
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return runs.finished(runs.threads(job_in(folder), folder / "run", **NUMBERS))


def job_in(folder):
    return jobs.write(folder, "stream", STREAM)


def num_read(folder):
    return len((folder / "read.txt").read_text().split())


def drawn():
    """Where a run is interrupted, and the layouts before and after."""
    draw = random.Random(SEED)
    for _ in range(50):
        before, after = draw.sample(LAYOUTS, 2)
        yield f"{draw.randrange(1, STEPS)} {before} {after}"


@pytest.mark.parametrize("how", first_two(1, 8, drawn()))
def test_an_interrupted_stream_goes_on_with_other_pipelines(tmp_path, undisturbed, how):
    step, before, after = how.split()
    job, run_dir = job_in(tmp_path), tmp_path / "run"
    words = runs.layout(before)
    runs.finished(runs.threads(job, run_dir, *words, steps=int(step), microbatches=MICROBATCHES))
    read_before = num_read(tmp_path)
    words = ["train", "--resume", str(run_dir), *runs.layout(after), "--steps", str(STEPS)]
    run = runs.finished(runs.holdfast(words, run_dir))
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses[int(step) :]
    pipelines, stages = map(int, after.split("x"))
    readers = pipelines * min(stages, 2)
    most = readers * SAMPLES_A_STEP * (STEPS - int(step) + 1)  # one step is read again at most
    most += 2 * pipelines * stages  # for those that time layers
    assert num_read(tmp_path) - read_before <= most


@pytest.mark.parametrize("loaders", [wide(0), wide(1)])
def test_a_killed_reader_of_a_stream_changes_nothing(tmp_path, undisturbed, loaders):
    fault = "kill 1.0 @ 5"
    words = [*runs.layout("2x2"), "--fault", fault, *runs.settings(f"data.workers={loaders}")]
    words += runs.settings("workers.heartbeat_timeout_s=30")
    run = runs.finished(runs.processes(job_in(tmp_path), tmp_path / "run", *words, **NUMBERS))
    assert run.summary["faults_fired"] == [fault]
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses
