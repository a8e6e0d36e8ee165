"""A gradient with NaN or Inf in it: the step is left out, or the run ends, in both modes."""

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main

JOB = """
import torch
from torch import nn
from holdfast.job import Job

class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        value = torch.full((4,), float(index) / 64)
        return (value * float("{poison}") if index == 13 else value), value.sum()[None]

def job():
    return Job(
        layers=[nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        data=Data(),
        microbatch_size=4,
        cut=(2,),
    )
"""


def run(tmp_path: Path, name: str, poison: str, *extra: str) -> tuple[int, dict]:
    job = tmp_path / f"{poison}.py"
    job.write_text(JOB.replace("{poison}", poison))
    run_dir = tmp_path / name
    arguments = ["train", str(job), "--microbatches", "4", "--steps", "6"]
    arguments += ["--run-dir", str(run_dir), "--set", "workers.kind=threads", *extra]
    code = main(arguments)
    return code, json.loads((run_dir / "summary.json").read_text())


@pytest.mark.parametrize("poison", ["nan", "inf"])
def test_the_poisoned_step_is_left_out_and_the_result_is_the_same_everywhere(
    tmp_path, poison, capfd
) -> None:
    _, reference = run(tmp_path, "reference", poison)
    layout = ("--stages", "2", "--pipelines", "2")
    _, staggered = run(tmp_path, "staggered", poison, *layout)
    _, waiting = run(tmp_path, "global", poison, *layout, "--set", "optimizer.mode=global")
    assert reference["skipped_steps"], "no step was skipped: this test proves nothing"
    for summary in (staggered, waiting):
        assert summary["skipped_steps"] == reference["skipped_steps"]
        assert summary["parameters_sha256"] == reference["parameters_sha256"]
    capfd.readouterr()


def test_the_run_can_be_told_to_stop_instead(tmp_path, capfd) -> None:
    code, summary = run(tmp_path, "stop", "nan", "--set", "gradients.nonfinite=stop")
    assert code == 1
    [bad, *_] = summary["skipped_steps"]
    assert f"NaN or Inf in step {bad + 1}, first in the loss" in summary["outcome"]
    assert "(gradients.nonfinite=stop)" in summary["outcome"]
    assert "lower the learning rate" in capfd.readouterr().err
    saved = sorted((tmp_path / "stop" / "checkpoints").glob("step-*"))
    assert int(saved[-1].name.removeprefix("step-")) > bad, "the end was not saved"
