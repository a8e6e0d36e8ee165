"""Models that are no lists of layers, trained on several layouts and through a death."""

import math
from pathlib import Path

import pytest
import torch

from helpers import runs, traced_models
from helpers.runs import finished
from helpers.wide import first
from holdfast.api.record import open_run

TRACED = Path(traced_models.__file__)
DECODERS = TRACED.with_name("decoders.py")
KILL = "kill 1.0 @ 3.B0"
STEPS = 10


def trained(job: Path, name: str, run_dir: Path, layout: str, *more: str) -> runs.Outcome:
    words = (*runs.layout(layout), *more, "--", name)
    settings = runs.settings("workers.kind=threads")
    numbers = {"steps": STEPS, "microbatches": 4}
    return finished(
        runs.holdfast(runs.arguments(job, run_dir, *settings, *words, **numbers), run_dir)
    )


def assert_one_result(job: Path, name: str, folder: Path) -> None:
    """Of one worker, of four through a death, and of four stages."""
    one = trained(job, name, folder / "1x1", "1x1")
    through_a_death = trained(job, name, folder / "2x2", "2x2", "--fault", KILL)
    assert through_a_death.summary["faults_fired"] == [KILL]
    runs.assert_same_result(through_a_death, one)
    runs.assert_same_result(trained(job, name, folder / "1x4", "1x4"), one)
    assert len(one.losses) == STEPS
    assert all(map(math.isfinite, one.losses))


@pytest.mark.parametrize("name", first(1, ["towers", "resnet", "vit", "unet", "functional"]))
def test_a_traced_model_has_the_same_bits_on_every_layout(name, tmp_path):
    assert_one_result(TRACED, name, tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gpt2", "gemma3"])
def test_a_decoder_of_transformers_has_the_same_bits_on_every_layout(name, tmp_path):
    pytest.importorskip("transformers")
    assert_one_result(DECODERS, name, tmp_path)


def test_the_trained_model_is_the_users_own_class(tmp_path):
    run = trained(TRACED, "towers", tmp_path / "run", "1x2")
    model = open_run(tmp_path / "run").model()
    assert type(model).__name__ == "Towers"
    assert model.head.weight is model.words.weight
    [key] = [key for key in run.state() if key.endswith("text.0.weight")]
    assert torch.equal(model.text[0].weight, run.state()[key])


@pytest.mark.wide
def test_worker_processes_trace_for_themselves(tmp_path):
    words = (*runs.layout("1x2"), "--", "resnet")
    apart = finished(runs.processes(TRACED, tmp_path / "1x2", *words, steps=STEPS, microbatches=4))
    runs.assert_same_result(apart, trained(TRACED, "resnet", tmp_path / "1x1", "1x1"))
