"""Steps applied speculatively and taken back: exact, and never a reason to wait for ever."""

import pytest

from helpers import runs

# The second stage ends its step with weight gradients that take long, so that the first one has
# started the next step, with the wrong weights, and waits for a gradient of it when the verdict
# comes: every gradient is clipped.
JOB = """
import torch
from torch import nn
from holdfast.job import Job

ROWS = torch.arange(4096)[:, None].expand(4096, 4) / 4096

class Data:
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return ROWS[index], ROWS[index].sum()[None]

def job():
    return Job(
        layers=[
            nn.Linear(4, 768),
            *(nn.Identity() for _ in range(6)),  # as many layers in each stage: planned as equal
            *(nn.Linear(768, 768) for _ in range(6)),
            nn.Linear(768, 1),
        ],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        data=Data(),
        microbatch_size=64,
        clip_norm=1e-3,
        cut=(7,),
    )
"""


@pytest.mark.wide
@pytest.mark.multiprocess
def test_a_stage_that_waits_for_a_gradient_of_an_abandoned_attempt_is_woken(tmp_path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    shape = {"steps": 12, "microbatches": 8}  # on a busy machine not every one is taken back
    alone = runs.finished(runs.threads(job, tmp_path / "alone", **shape))
    flags = ("--stages", "2")
    both = runs.finished(runs.processes(job, tmp_path / "both", *flags, **shape))
    assert both.summary["num_taken_back"] > 0, "nothing was taken back: this test proves nothing"
    assert both.sha256 == alone.sha256
