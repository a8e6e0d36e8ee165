"""Where the stages are cut must not decide which kernel a layer ends up in, or what it is given."""

import pytest

from helpers import runs

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from holdfast.job import Job

class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return SAMPLE(generator), torch.rand(1, generator=generator)

def image(generator):
    return torch.randn(4, 8, 8, generator=generator)

def rows(generator):
    return torch.randn(6, 8, generator=generator)

def job():
    return Job(
        layers=LAYERS(),
        loss=lambda output, target: F.mse_loss((output[0] if isinstance(output, tuple) else output)
                                               .flatten(1).mean(1, keepdim=True), target),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        data=Data(),
        microbatch_size=4,
    )
"""
JOBS = {
    "a float tensor that takes no gradient crosses the boundary": """
class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, values, mask):
        q, k, v = self.project(values)[:, None].chunk(3, -1)
        return values + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0], mask

SAMPLE = lambda generator: (rows(generator), torch.randn(1, 6, 6, generator=generator))
LAYERS = lambda: [Attend() for _ in range(4)]
""",
    "an output in another memory layout": """
class ChannelsLast(nn.Module):
    def forward(self, values):
        return values.to(memory_format=torch.channels_last)

SAMPLE = image
LAYERS = lambda: [ChannelsLast(), nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 2, 1)]
""",
    "a transposed output": """
class Turn(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, values):
        return self.linear(values).transpose(1, 2)

SAMPLE = rows
LAYERS = lambda: [Turn(8), Turn(6), Turn(8), Turn(6)]
""",
    "two outputs on the same memory, one written to": """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values, *_):
        hidden = self.linear(values)
        return hidden, hidden

class Write(nn.Module):
    def forward(self, one, other):
        return one.mul(1).add_(other), one

SAMPLE = rows
LAYERS = lambda: [Both(), Write(), Both(), Write()]
""",
    "a layer that differentiates by itself": """
class Force(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, values):
        inner = values if values.requires_grad else values.detach().requires_grad_()
        energy = self.linear(self.norm(inner)).tanh().sum()
        (force,) = torch.autograd.grad(energy, inner, create_graph=True)
        return values + force

SAMPLE = rows
LAYERS = lambda: [Force() for _ in range(4)]
""",
    "an output of size zero": """
class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values, *_):
        return self.linear(values).tanh(), values.new_zeros(0, 5)

SAMPLE = rows
LAYERS = lambda: [Empty() for _ in range(4)]
""",
}


@pytest.mark.parametrize("name", JOBS)
def test_no_cut_shows_in_the_result(tmp_path, name) -> None:
    job = tmp_path / "job.py"
    job.write_text(HEAD + JOBS[name])
    shape = {"steps": 3, "microbatches": 4}
    alone = runs.finished(runs.threads(job, tmp_path / "1x1", **shape))
    for layout, schedule in (("1x2", "zero-bubble"), ("2x4", "zero-bubble"), ("1x4", "1f1b")):
        words = [*runs.layout(layout), *runs.settings(f"schedule.name={schedule}")]
        cut = runs.finished(runs.threads(job, tmp_path / f"{layout}{schedule}", *words, **shape))
        assert cut.sha256 == alone.sha256, layout
        assert cut.losses == alone.losses


def test_parameters_on_one_memory_that_are_not_one_are_refused(tmp_path) -> None:
    job = tmp_path / "job.py"
    layers = "SAMPLE = rows\n\ndef LAYERS():\n    a, b = nn.Linear(8, 8), nn.Linear(8, 8)\n"
    job.write_text(HEAD + layers + "    b.weight.data = a.weight.data\n    return [a, b]\n")
    outcome = runs.threads(job, tmp_path / "run", steps=1, microbatches=1)
    assert outcome.exit_code == 2
    assert "0.weight and 1.weight share memory" in outcome.stderr


def test_a_buffer_that_is_not_in_the_state_dict_survives_a_resume(tmp_path) -> None:
    job = tmp_path / "job.py"
    layers = """
class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(8), persistent=False)

    def forward(self, values):
        self.count += 1
        return self.linear(values) * (1 + self.count)

SAMPLE = rows
LAYERS = lambda: [Count(), Count()]
"""
    job.write_text(HEAD + layers)
    whole = runs.finished(runs.threads(job, tmp_path / "whole", steps=4, microbatches=2))
    runs.finished(runs.threads(job, tmp_path / "half", steps=2, microbatches=2))
    words = ["--resume", str(tmp_path / "half"), "--stages", "2"]
    resumed = runs.finished(runs.threads(job, tmp_path / "rest", *words, steps=4, microbatches=2))
    assert resumed.sha256 == whole.sha256
