"""Models that are no lists of layers, trained on several layouts and through a death."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import holdfast as hf
from helpers import runs, traced_models
from helpers.runs import finished
from holdfast.adaptors.examples import first_inputs

TRACED = Path(traced_models.__file__)
DECODERS = TRACED.with_name("decoders.py")
KILLS = {"2x2": "kill 1.0 @ 3.B0", "1x4": "kill 0.2 @ 4.B1"}  # a peer's, and a whole stage
STEPS = 10


def trained(job: Path, name: str, run_dir: Path, layout: str, *more: str) -> runs.Outcome:
    words = (*runs.layout(layout), *more, "--", name)
    settings = runs.settings("workers.kind=threads")
    numbers = {"steps": STEPS, "microbatches": 4}
    return finished(
        runs.holdfast(runs.arguments(job, run_dir, *settings, *words, **numbers), run_dir)
    )


def assert_one_result(job: Path, name: str, folder: Path) -> runs.Outcome:
    """Of one worker, and of four through a death."""
    one = trained(job, name, folder / "1x1", "1x1")
    for layout, kill in KILLS.items():
        through_a_death = trained(job, name, folder / layout, layout, "--fault", kill)
        assert through_a_death.summary["faults_fired"] == [kill]
        runs.assert_same_result(through_a_death, one)
    assert len(one.losses) == STEPS
    assert all(map(math.isfinite, one.losses))
    return one


@pytest.mark.wide
@pytest.mark.parametrize("name", ["towers", "resnet", "vit", "unet", "functional"])
def test_a_traced_model_has_the_same_bits_on_every_layout(name, tmp_path):
    run_dir = assert_one_result(TRACED, name, tmp_path).run_dir
    assert_loads_into_the_users_own_class(run_dir, name)


def assert_loads_into_the_users_own_class(run_dir: Path, name: str) -> None:
    made = traced_models.job([name])
    model, trained = made.model, hf.open_run(run_dir).model().eval()
    model.load_state_dict(load_file(hf.export(run_dir) / "model.safetensors"))
    inputs = first_inputs(made.data, made.microbatch_size, None)
    assert torch.equal(model.eval()(*inputs), trained(*inputs))


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gemma", "gemma2", "gemma3"]
)
def test_a_decoder_of_transformers_has_the_same_bits_on_every_layout_and_goes_out(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    run_dir = assert_one_result(DECODERS, name, tmp_path).run_dir
    folder = hf.export(run_dir, "hf")
    loaded, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(told.values()), told
    model, tokens = hf.open_run(run_dir).model(), torch.arange(3, 15)[None]
    assert torch.equal(loaded.eval()(tokens).logits, model.eval()(tokens).logits)


def test_the_trained_model_is_the_users_own_class(tmp_path):
    run = trained(TRACED, "towers", tmp_path / "run", "1x2")
    model = hf.open_run(tmp_path / "run").model()
    assert type(model).__name__ == "Towers"
    assert model.head.weight is model.words.weight
    [key] = [key for key in run.state() if key.endswith("text.0.weight")]
    assert torch.equal(model.text[0].weight, run.state()[key])


@pytest.mark.wide
def test_worker_processes_trace_for_themselves(tmp_path):
    words = (*runs.layout("1x2"), "--", "resnet")
    apart = finished(runs.processes(TRACED, tmp_path / "1x2", *words, steps=STEPS, microbatches=4))
    runs.assert_same_result(apart, trained(TRACED, "resnet", tmp_path / "1x1", "1x1"))
