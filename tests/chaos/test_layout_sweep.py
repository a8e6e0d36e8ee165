"""Random layouts, schedules, cuts and memory limits: the result never shows them.

HOLDFAST_SWEEP sets how many samples are tried, HOLDFAST_SEED which ones.
"""

import os
import random
import sys
from dataclasses import dataclass

import pytest

from helpers import jobs, runs
from helpers.seed import SEED
from helpers.wide import first

NUM_SAMPLES = int(os.environ.get("HOLDFAST_SWEEP", "6"))
NUM_LAYERS, STEPS = 7, 6
EMULATED = "device.emulate=F=1ms,B=1ms,W=1ms"


@dataclass(frozen=True)
class Sample:
    job: str  # "mixed" or "emulated"
    microbatches: int
    layout: str
    settings: tuple[str, ...]


def draw(seed: str) -> Sample:
    chance = random.Random(seed)
    microbatches = chance.choice([4, 6, 12])
    pipelines = chance.choice([d for d in (1, 2, 3, 4) if microbatches % d == 0])
    stages = chance.randint(1, 4 if pipelines > 2 else NUM_LAYERS)
    settings = [
        f"schedule.name={chance.choice(['zero-bubble', '1f1b', 'gpipe'])}",
        f"schedule.memory={chance.randint(0, 2 * stages)}",
        f"optimizer.mode={chance.choice(['staggered', 'global'])}",
        f"stage.checkpoint_activations={chance.choice(['true', 'false'])}",
    ]
    if stages > 1 and chance.random() < 0.7:
        cut = sorted(chance.sample(range(1, NUM_LAYERS), stages - 1))
        settings.append(f"parallel.cut={cut}")
    job = chance.choice(["mixed", "emulated"])
    return Sample(job, microbatches, f"{pipelines}x{stages}", tuple(settings))


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """(job, micro-batches, layout, settings) -> the finished run; one worker's are kept."""
    folder = tmp_path_factory.mktemp("sweep")
    job_file = jobs.mixed(folder)
    kept = {}

    def run(job, microbatches, layout="1x1", settings=()):
        key = (job, microbatches, layout, settings)
        if key not in kept:
            device = [EMULATED] if job == "emulated" else []
            kept[key] = runs.finished(
                runs.threads(
                    job_file,
                    folder / f"run-{len(kept)}",
                    *runs.layout(layout),
                    *runs.settings(*device, *settings),
                    steps=STEPS,
                    microbatches=microbatches,
                )
            )
        return kept[key]

    return run


@pytest.mark.parametrize("number", first(1, range(NUM_SAMPLES)))
def test_a_random_layout_gives_the_result_of_one_worker(train, monkeypatch, number):
    monkeypatch.setattr(sys, "path", list(sys.path))  # loading a job adds its folder
    sample = draw(f"{SEED}-{number}")
    print(f"HOLDFAST_SEED={SEED} HOLDFAST_SWEEP={number + 1}: {sample}")  # noqa: T201
    swept = train(sample.job, sample.microbatches, sample.layout, sample.settings)
    runs.assert_same_result(swept, train(sample.job, sample.microbatches))
