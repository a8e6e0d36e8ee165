"""A model of ``transformers``: in from its own folder, trained, and out for from_pretrained."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import holdfast as hf
from helpers import jobs, runs
from helpers.runs import finished

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

LLAMA = """
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from holdfast import Job

CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16,
    tie_word_embeddings=True,
)


def job():
    tokens = [(torch.arange(9) * (number + 1)) % 32 for number in range(64)]
    return Job(
        model=LlamaForCausalLM(CONFIG),
        loss=lambda logits, target: cross_entropy(logits.flatten(0, 1), target.flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=RATE),
        data=[(each[:-1], each[1:]) for each in tokens],
        microbatch_size=2,
    )
"""


def bits(state: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {k: t.contiguous().reshape(-1).view(torch.uint8).tolist() for k, t in state.items()}


def trained(folder: Path, rate: str, *words: str) -> runs.Outcome:
    job = jobs.write(folder, "llama", LLAMA.replace("RATE", rate))
    run_dir = folder / f"run {rate} {len(words)}"
    return finished(runs.threads(job, run_dir, *words, steps=2, microbatches=4))


@pytest.mark.wide
def test_a_llama_goes_in_and_out_by_its_own_names(tmp_path):
    transformers = pytest.importorskip("transformers")
    first = trained(tmp_path, "1e-2", "--stages", "2")
    folder = hf.export(first.run_dir, "hf")
    loaded, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(told.values()), told
    model = hf.open_run(first.run_dir).model()
    assert type(loaded) is type(model)
    assert bits(loaded.state_dict()) == bits(model.state_dict())
    tokens = torch.arange(8)[None]
    assert torch.equal(loaded.eval()(tokens).logits, model.eval()(tokens).logits)

    loaded.save_pretrained(tmp_path / "again")  # without the head, which is tied
    assert "lm_head.weight" not in load_file(tmp_path / "again" / "model.safetensors")
    still = trained(tmp_path, "0.0", "--weights", str(tmp_path / "again"), *runs.layout("1x2"))
    assert bits(hf.open_run(still.run_dir).model().state_dict()) == bits(model.state_dict())
    names = load_file(hf.export(still.run_dir, "safetensors") / "model.safetensors")
    assert names.keys() == model.state_dict().keys()
