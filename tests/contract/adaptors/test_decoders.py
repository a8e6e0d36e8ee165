"""Decoders of transformers as layers compute what the models themselves compute."""

import subprocess
import sys
from copy import deepcopy

import pytest
import torch

from helpers.as_plain import assert_close, layered_results, results, run
from holdfast.errors import ConfigError
from holdfast.job import own_name

pytest.importorskip("transformers")
from helpers.decoders import CASES, CONTEXT, VOCABULARY, decoder, job  # needs transformers


def tokens() -> torch.Tensor:
    drawn = torch.Generator().manual_seed(0)
    return torch.randint(3, VOCABULARY, (3, CONTEXT), generator=drawn)


def padding() -> torch.Tensor:
    mask = torch.ones(3, CONTEXT, dtype=torch.long)
    mask[0, -5:] = 0  # on the right
    mask[1, :3] = 0  # on the left
    return mask


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_are_those_of_the_model(name, padded):
    torch.manual_seed(0)
    made = job([name])
    plain = deepcopy(made.model)
    inputs = (tokens(), padding()) if padded else (tokens(),)
    torch.manual_seed(1)  # dropout draws in the same order
    logits, gradients = results(
        plain(*inputs[:1], attention_mask=inputs[1:][0] if padded else None).logits, plain
    )
    ours, our_gradients = layered_results(made, inputs)
    assert torch.equal(ours, logits)
    assert_close(gradients, our_gradients)
    assert gradients.keys() >= dict(plain.named_parameters()).keys()


def test_padding_and_a_window_are_seen():
    """Else the comparison above would prove less than it says."""
    torch.manual_seed(0)
    layers = [layer.eval() for layer in job(["mistral"]).layers]
    full = [layer.eval() for layer in job(["mistral-full"]).layers]
    for ours, other in zip(layers, full, strict=True):
        other.load_state_dict(ours.state_dict())
    with torch.no_grad():
        plain, masked = run(layers, (tokens(),))[0], run(layers, (tokens(), padding()))[0]
        unlimited = run(full, (tokens(),))[0]
    assert not torch.allclose(plain[1], masked[1])
    assert torch.allclose(plain[:, :4], unlimited[:, :4], atol=1e-6)
    assert not torch.allclose(plain[:, 8:], unlimited[:, 8:], atol=1e-6)


def test_tensors_have_the_names_of_the_model():
    made = job(["llama"])
    assert len(made.layers) == 5
    block = "block.self_attn.q_proj.weight"
    assert own_name(made, f"3.{block}") == "model.layers.2.self_attn.q_proj.weight"
    assert own_name(made, "0.tokens.weight") == "model.embed_tokens.weight"
    assert own_name(made, "4.lm_head.weight") == "lm_head.weight"
    layers = enumerate(made.layers)
    names = {
        own_name(made, f"{at}.{name}") for at, one in layers for name, _ in one.named_parameters()
    }
    assert names == set(dict(made.model.named_parameters()))


def test_a_model_with_a_forward_of_its_own_is_not_taken_for_the_librarys():
    import transformers

    class Louder(transformers.LlamaForCausalLM):
        def forward(self, input_ids):
            return 2 * super().forward(input_ids, use_cache=False).logits

    torch.manual_seed(0)
    louder = Louder(decoder("llama").config)
    made = type(job(["llama"]))(
        model=louder,
        loss=torch.nn.functional.mse_loss,
        optimizer=torch.optim.SGD,
        data=[(tokens()[0], tokens()[0])],
        microbatch_size=3,
    )
    torch.manual_seed(1)
    ours = run(made.layers, (tokens(),))[0]
    torch.manual_seed(1)
    assert torch.equal(ours, louder(tokens()))


def test_an_old_library_is_refused(monkeypatch):
    import transformers

    monkeypatch.setattr(transformers, "__version__", "4.57.1")
    with pytest.raises(ConfigError, match=r"transformers 4\.57\.1: expected 5\.0 or newer"):
        job(["llama"])


def test_names_of_layers_are_refused_for_a_model_that_is_cut_anyway():
    made = job(["llama"])
    with pytest.raises(ConfigError, match="LlamaForCausalLM is cut into its layers without them"):
        type(made)(
            model=made.model,
            loss=made.loss,
            optimizer=made.optimizer,
            data=made.data,
            split_points=["model.layers.1"],
        )


def test_holdfast_does_not_import_transformers():
    code = "import sys, holdfast.job, holdfast.adaptors.as_layers; "
    code += "sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=110).returncode == 0
