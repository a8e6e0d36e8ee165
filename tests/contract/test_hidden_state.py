"""State kept where no checkpoint and no joiner finds it is named; the way that works is shown."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers import jobs, runs
from holdfast.job import Job
from holdfast.observability.events import FaultFired, WorkerJoined
from holdfast.runtime.hidden_state import HiddenState

PAGE = Path(__file__).parents[2] / "docs" / "assumptions.md"


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.calls = 0
        self.mean = torch.zeros(2)
        self.cache = None
        self.register_buffer("known", torch.zeros(2))

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.ones(2)  # the same from the first forward on
        self.calls += 1
        self.mean.lerp_(x.detach().mean(0), 0.5)
        self.known += 1
        return self.linear(x) * self.cache


def said(layer, optimizer, step=lambda: None, *, make=None, num_steps=6):
    job = Job(
        layers=[layer],
        loss=nn.functional.mse_loss,
        optimizer=make or (lambda parameters: optimizer),
        data=[(torch.zeros(2), torch.zeros(2))],
    )
    hidden, lines = HiddenState(job, {3: layer}, optimizer), []
    for _ in range(num_steps):
        layer(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        step()
        lines += hidden.look()
    return lines


def test_attributes_of_a_layer_that_change_are_named_once_and_caches_and_buffers_are_not():
    layer = Counting()
    lines = said(layer, torch.optim.Adam(layer.parameters()))
    assert [line.partition(" changes")[0] for line in lines] == [
        "layer 3 (Counting): calls",
        "layer 3 (Counting): mean",
    ]
    assert all("keep it in a buffer or in optimizer.state" in line for line in lines)


class WithEma(torch.optim.SGD):
    def __init__(self, parameters, where):
        super().__init__(parameters, lr=0.1)
        self.where = where
        for group in self.param_groups:
            self.ema = {id(p): p.detach().clone() for p in group["params"]}

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            if self.where == "attribute":
                self.ema[id(p)].lerp_(p, 0.1)
            else:
                self.state[p].setdefault("ema", p.clone()).lerp_(p, 0.1)


def test_an_ema_beside_the_state_is_named_and_one_inside_is_not():
    layer = nn.Linear(2, 2)
    [line] = said(layer, WithEma(layer.parameters(), "attribute"))
    assert line.startswith("the optimizer (WithEma): ema changes while training")
    assert said(layer, WithEma(layer.parameters(), "state")) == []


@pytest.mark.parametrize("kind", ["dict", "module"])
def test_an_average_that_a_hook_closes_over_is_named(kind):
    layer = nn.Linear(2, 2)
    average = nn.Linear(2, 2)
    values = dict(average.named_parameters()) if kind == "dict" else average

    def update(optimizer, args, kwargs):
        assert values is not None
        with torch.no_grad():
            average.weight.lerp_(layer.weight, 0.1)

    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    optimizer.register_step_post_hook(update)
    lines = said(layer, optimizer)
    assert lines
    assert all(line.startswith("the optimizer (SGD): a hook's ") for line in lines)


def test_what_the_jobs_own_functions_close_over_is_found_too():
    layer = nn.Linear(2, 2)
    optimizer, seen = torch.optim.SGD(layer.parameters(), lr=0.1), {"mean": torch.zeros(1)}

    def make(parameters):
        assert seen
        return optimizer

    def step():
        seen["mean"] = seen["mean"] + 1

    [line] = said(layer, optimizer, step, make=make)
    assert line.startswith("Job.optimizer: seen changes while training")


def example():
    """The optimizer that the page shows."""
    [block] = re.findall(r"```python\n(class AdamWWithEma.*?)```", PAGE.read_text(), re.DOTALL)
    return block


def test_the_ema_that_the_page_shows_is_the_same_after_a_death_and_a_join(tmp_path):
    text = jobs.MIXED.replace("CLIP_NORM", "1.3").replace(
        "\n\ndef job", f"\n\n{example()}\n\ndef job"
    )
    text = text.replace(
        "torch.optim.AdamW(parameters, lr=3e-3)", "AdamWWithEma(parameters, lr=3e-3)"
    )
    path = jobs.write(tmp_path, "ema", text)
    calm = runs.finished(runs.threads(path, tmp_path / "calm", steps=12))
    faults = ["--fault", "kill 1.0 @ 2.B1", "--fault", "join @ 3", "--fault", "kill 0.0 @ 10.B0"]
    done = runs.finished(
        runs.threads(path, tmp_path / "run", *runs.layout("2x2"), *faults, steps=12)
    )
    assert len([e for e in done.events if isinstance(e, FaultFired)]) == 3
    assert [e.worker for e in done.events if isinstance(e, WorkerJoined)] == ["1.0"]
    assert any("ema" in key for key in done.state()), "no EMA in the checkpoint"
    assert "warning:" not in done.stdout
    runs.assert_same_result(done, calm)
