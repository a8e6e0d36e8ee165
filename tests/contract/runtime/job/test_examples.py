import math
import sys
from pathlib import Path

import pytest
import torch

from holdfast.data.batches import Batches
from holdfast.errors import ConfigError
from holdfast.job_call import load_job
from holdfast.models.gpt import gpt_layers
from holdfast.models.text import VOCABULARY, CharText

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture(autouse=True)
def _one_thread_and_a_path_of_its_own(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(sys, "path", list(sys.path))  # loading a job adds its folder


def parameters(layers):
    """Each once: a tied one belongs to two layers."""
    return list(dict.fromkeys(p for layer in layers for p in layer.parameters()))


def run(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def train(job, num_steps, num_microbatches=2):
    """A plain loop over the layers in one process: the mean loss of each step."""
    trained = parameters(job.layers)
    optimizer, batches = job.optimizer(trained), Batches(job, 0, num_microbatches)
    schedule = job.lr_schedule(optimizer) if job.lr_schedule else None
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        losses.append(0.0)
        for microbatch in range(num_microbatches):
            (x,), target = batches.load(step, microbatch)
            loss = job.loss(run(job.layers, x), target) / num_microbatches
            loss.backward()
            losses[-1] += loss.item()
        if job.clip_norm:
            torch.nn.utils.clip_grad_norm_(trained, job.clip_norm)
        optimizer.step()
        if schedule:
            schedule.step()
    return losses


@pytest.mark.parametrize(
    ("name", "num_steps", "share"), [("tiny_gpt", 16, 0.85), ("resnet", 16, 0.5)]
)
def test_an_example_learns_in_a_plain_loop(name, num_steps, share):
    job = load_job(EXAMPLES / f"{name}.py", seed=0)
    losses = train(job, num_steps)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < share * losses[0]


def test_an_example_built_twice_from_one_seed_learns_the_same_bits():
    def once():
        job = load_job(EXAMPLES / "resnet.py", seed=3)
        return train(job, 2), [p.detach() for p in parameters(job.layers)]

    (losses, ours), (losses_again, theirs) = once(), once()
    assert losses == losses_again
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_the_tiny_gpt_is_tiny_in_parameters_and_in_lines():
    job = load_job(EXAMPLES / "tiny_gpt.py", seed=0)
    assert 0.2e6 < sum(p.numel() for p in parameters(job.layers)) < 0.4e6
    text = (EXAMPLES / "tiny_gpt.py").read_text()
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) <= 25


def test_the_learning_rate_of_the_tiny_gpt_warms_up_and_decays_to_a_tenth():
    load_job(EXAMPLES / "tiny_gpt.py", seed=0)
    [module] = [m for name, m in sys.modules.items() if name.startswith("holdfast_job_tiny_gpt")]
    rates = [module.learning_rate(step) for step in range(3000)]
    assert max(rates) == 1.0
    assert rates[0] < 0.1
    assert rates[-1] == pytest.approx(0.1)


@pytest.fixture
def gpt2_job():
    pytest.importorskip("transformers")
    return load_job(EXAMPLES / "hf_gpt2.py", seed=0)


def test_gpt2_as_layers_does_not_look_ahead(gpt2_job):
    tokens = torch.zeros(1, 64, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 40:] = 5
    with torch.no_grad():
        layers = [layer.eval() for layer in gpt2_job.layers]
        before, after = run(layers, tokens), run(layers, changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40:], after[:, 40:])


def test_gpt2_shares_one_weight_between_first_and_last_layer_and_learns(gpt2_job):
    assert gpt2_job.layers[0].tokens.weight is gpt2_job.layers[-1].lm_head.weight
    losses = train(gpt2_job, 8)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


SMALL = {"vocabulary": 11, "context": 8, "width": 16, "heads": 2, "depth": 2}


def test_a_gpt_does_not_look_ahead():
    layers = gpt_layers(**SMALL)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    changed = tokens.clone()
    changed[0, 5:] = 3
    before, after = run(layers, tokens), run(layers, changed)
    assert before.shape == (1, 8, 11)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_a_tied_gpt_uses_the_embedding_itself_in_its_head():
    layers = gpt_layers(**SMALL, tied=True)
    assert layers[-1].scores.weight is layers[0].token.weight
    apart = gpt_layers(**SMALL)
    assert apart[-1].scores.weight is not apart[0].token.weight


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="width 16 cannot be split evenly over 3 heads"):
        gpt_layers(**(SMALL | {"heads": 3}))


def test_the_target_of_a_text_window_is_the_window_one_character_on():
    text = CharText(16, num_bytes=1000)
    (first, target), (following, _) = text[0], text[1]
    assert first.dtype == target.dtype == torch.int64
    assert torch.equal(first[1:], target[:-1])
    assert target[-1] == following[0]
    assert len(text) == 999 // 16


def test_every_character_of_the_text_is_in_the_vocabulary():
    numbers = torch.cat([window for window, _ in CharText(64)])
    assert int(numbers.max()) < VOCABULARY
    assert len(numbers) > 900_000


@pytest.mark.parametrize("context", [0, 1000])
def test_a_context_that_does_not_fit_the_text_is_refused(context):
    with pytest.raises(ConfigError, match=f"CharText context={context}"):
        CharText(context, num_bytes=1000)
