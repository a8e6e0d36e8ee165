"""A worker builds the whole model and holds its own layers, with the bits they have anyway."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.config import RunConfig
from holdfast.data.batches import Batches
from holdfast.job import Job
from holdfast.models.gpt import gpt_layers
from holdfast.protocol.spec import worker_environment
from holdfast.runtime.job.job_code import JobCode
from holdfast.runtime.link.activity import Activity
from holdfast.runtime.stage.measure import measure_layers
from holdfast.runtime.stage.named_tensors import hash_of_each
from holdfast.runtime.stage.sparing import held, hold_only, sparing
from holdfast.runtime.step.builder import Builder

LIMIT_BYTES = 8 << 20
WIDTH = 640  # a square weight is larger than what is not worth sparing


class Rotary(nn.Module):
    """Not from torch's own initialisers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.linspace(0, 1, WIDTH).cos(), persistent=False)
        self.scale = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.02)
        self.drawn = nn.Parameter(torch.rand(WIDTH, WIDTH))


def changed(change):
    layer = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        change(layer.weight)
    return layer


def from_numpy(weight):
    weight.data.numpy()[:] = np.arange(WIDTH, dtype=np.float32)


def one_row(weight):
    weight[3] *= 0.5
    weight[5].fill_(2.0)


OWN_GENERATOR = torch.Generator()
KINDS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "embedding": lambda: nn.Embedding(WIDTH, WIDTH, padding_idx=3),
    "convolution": lambda: nn.Conv1d(WIDTH, WIDTH, 1),
    "own": Rotary,
    "truncated": lambda: changed(nn.init.trunc_normal_),
    "orthogonal": lambda: changed(nn.init.orthogonal_),
    "copied": lambda: changed(lambda weight: weight.copy_(torch.randn(WIDTH, WIDTH))),
    "added": lambda: changed(lambda weight: weight.add_(torch.ones(WIDTH))),
    "numpy": lambda: changed(from_numpy),
    "row": lambda: changed(one_row),
    "generator": lambda: changed(
        lambda weight: weight.normal_(generator=OWN_GENERATOR.manual_seed(5))
    ),
    "attention": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8), 2),
}


def built(make):
    """Initialised by two passes over all of it, as models are."""
    torch.manual_seed(4)
    layers = [*make(), *(nn.Linear(WIDTH, WIDTH) for _ in range(12))]
    for layer in layers[-6:]:
        nn.init.normal_(layer.weight, std=0.02)
    return layers, torch.rand(4)


def held_bytes(layers):
    storages = [p.untyped_storage() for layer in layers for p in layer.parameters()]
    return sum(storage.nbytes() for storage in storages)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_held_has_the_same_bits_when_it_is(kind):
    usual, drawn = built(lambda: [KINDS[kind]()])
    with sparing(LIMIT_BYTES):
        layers, drawn_too = built(lambda: [KINDS[kind]()])
    assert torch.equal(drawn, drawn_too)  # what the job draws afterwards
    before = held_bytes(layers)
    assert before < held_bytes(usual) - (4 << 20)
    assert hash_of_each(dict(enumerate(layers))) == hash_of_each(dict(enumerate(usual)))
    assert held_bytes(layers) == before
    hold_only(layers, range(len(layers)))
    state = torch.get_rng_state()
    for one, other in zip(usual, layers, strict=True):
        pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(state, torch.get_rng_state())


def test_ties_stay_ties_and_a_small_model_is_simply_built():
    with sparing(LIMIT_BYTES):
        tied = gpt_layers(vocabulary=4096, context=8, width=512, heads=4, depth=2, tied=True)
        small = nn.Linear(WIDTH, WIDTH)
    assert tied[0].token.weight is tied[-1].scores.weight
    assert held_bytes([small]) == small.weight.nbytes + small.bias.nbytes
    with held(tied[0]):
        assert tied[-1].scores.weight.abs().sum() > 0


PEAK = """
import re
from pathlib import Path
from torch import nn
from holdfast.runtime.stage.named_tensors import hash_of_each
from holdfast.runtime.stage.sparing import sparing

def peak_kb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

with sparing(8 << 20):  # what is imported for it
    hash_of_each({0: nn.Linear(1024, 2048)})
before = peak_kb()
with sparing(8 << 20):
    layers = [nn.Linear(1024, 2048) for _ in range(24)]  # 201 MB
hash_of_each(dict(enumerate(layers)))
print(peak_kb() - before)
"""


def test_the_peak_of_building_is_far_below_the_model():
    """In a process of its own: gaps in the memory of this one are what other tests left."""
    environment = os.environ | worker_environment(RunConfig())
    found = subprocess.run(
        [sys.executable, "-c", PEAK], env=environment, check=True, capture_output=True, timeout=100
    )
    assert int(found.stdout) < 60_000


def job_of(layers):
    return Job(
        layers=layers,
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=[(torch.ones(WIDTH), torch.zeros(WIDTH))] * 8,
        microbatch_size=2,
    )


def test_only_the_layers_of_a_stage_are_held_when_it_is_built_and_after_they_are_measured():
    with sparing(1 << 20):
        job = job_of([nn.Linear(WIDTH, WIDTH) for _ in range(6)])
    found = measure_layers(job, Batches(job, 0, 2))
    assert all([*found.forward_s, *found.backward_s])
    assert [one.trained for one in found.sizes] == [WIDTH * (WIDTH + 1)] * 6
    code = JobCode(lambda: None, lambda who: None, Activity())
    builder = Builder(job, RunConfig(), (2, 4), code)
    parts = builder.build([1], first_step=0, keeps_old=True)
    is_held = [held_bytes([layer]) > layer.bias.nbytes for layer in job.layers]
    assert is_held == [False, False, True, True, False, False]
    assert list(parts.layers) == [2, 3]
