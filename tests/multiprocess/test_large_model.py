"""A model that is larger than what any of its workers ever holds."""

import shutil

import pytest

from helpers import jobs, runs

WIDTH, LAYERS = 3072, 24
MODEL_BYTES = 4 * LAYERS * WIDTH * WIDTH
TEXT = f"""
import torch
from torch import nn

from holdfast.job import Job


def job(args):
    width = int(args[0])
    return Job(
        layers=[nn.Linear(width, width, bias=False) for _ in range({LAYERS})],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=[(torch.ones(width), torch.zeros(width))] * 8,
        microbatch_size=1,
        cut=(4, 8, 12, 16, 20),
    )
"""


@pytest.mark.wide
def test_no_worker_ever_holds_as_much_as_the_model(tmp_path):
    """Building, training and saving included. Python and libraries are what a tiny one takes."""
    job = jobs.write(tmp_path, "large", TEXT)

    def peaks(width: int) -> dict[str, int]:
        run_dir = tmp_path / f"run-{width}"
        modes = runs.settings("gradients.mode=fast", "recovery.consistency=undo")
        words = [*runs.layout("1x6"), *modes, "--", str(width)]
        run = runs.finished(runs.processes(job, run_dir, *words, steps=2, microbatches=4))
        shutil.rmtree(run_dir / "checkpoints")
        return run.summary["peak_memory_bytes"]

    libraries = max(peaks(8).values())
    large = peaks(WIDTH)
    assert len(large) == 6
    assert max(large.values()) - libraries < MODEL_BYTES, (large, libraries)
