"""State kept where no checkpoint and no joiner finds it is named; the way that works is shown."""

import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers import jobs, runs
from holdfast.job import Job
from holdfast.observability.events import FaultFired, WorkerJoined
from holdfast.runtime.job.hidden_state import HiddenState
from holdfast.runtime.job.job_walk import JobWalk

PAGE = Path(__file__).parents[4] / "docs" / "how-it-works" / "assumptions.md"


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


def said(layer, optimizer, step=lambda: None, *, make=None, num_steps=6, **fields):
    usual = {"loss": nn.functional.mse_loss, "data": [(torch.zeros(2), torch.zeros(2))]}
    job = Job(layers=[layer], optimizer=make or (lambda parameters: optimizer), **usual | fields)
    hidden, lines = HiddenState(job, {3: layer}, optimizer), []
    for _ in range(num_steps):
        layer(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        step()
        lines += hidden.look()
    return lines


def test_it_does_not_hold_the_layers_of_other_stages():
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    other = weakref.ref(layers[0])
    job = Job(
        layers=layers,
        optimizer=torch.optim.Adam,
        loss=nn.functional.mse_loss,
        data=[(torch.zeros(2), torch.zeros(2))],
    )
    hidden = HiddenState(job, {1: layers[1]}, None)
    del job, layers
    assert other() is None
    assert hidden.look() == []


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


class RunningLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.inner.register_buffer("scale", torch.ones(()))

    def forward(self, output, target):
        self.inner.scale *= 0.5
        return output.mean()


class Called:
    """A loss, a collate function or the maker of a schedule."""

    def __init__(self):
        self.seen = {"calls": 0}

    def __call__(self, *_):
        self.seen["calls"] += 1


class Reading(list):
    num_read = 0

    def __getitem__(self, index):
        self.num_read += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("field", "value", "use", "named"),
    [
        ("loss", RunningLoss(), lambda v: v(torch.ones(2), None), "inner.scale"),
        ("loss", Called(), lambda v: v(), "seen"),
        ("collate", Called(), lambda v: v(), "seen"),
        ("lr_schedule", Called(), lambda v: v(), "seen"),
        ("data", Reading([(0, 0)]), lambda v: v[0], "num_read"),
    ],
)
def test_every_field_of_the_job_is_looked_at(field, value, use, named):
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    use(value)
    [line] = said(layer, optimizer, lambda: use(value), **{field: value})
    assert line.startswith(f"Job.{field}: {named} changes while training")


class Counts(torch.optim.SGD):
    """As schedule-free optimizers and Prodigy do."""

    def __init__(self, parameters, where):
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.where, self.num_steps, self.averages = where, 0, {"d": 1.0}

    def step(self, closure=None):
        super().step(closure)
        match self.where:
            case "group":
                self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
            case "lr":
                self.param_groups[0]["lr"] *= 0.9
            case "attribute":
                self.num_steps += 1
            case _:
                self.averages["d"] *= 2


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("group", "param_groups: k"),
        ("lr", "param_groups: lr"),
        ("attribute", "num_steps"),
        ("inside", "averages"),
    ],
)
def test_numbers_that_an_optimizer_counts_in_its_groups_or_attributes_are_named(where, named):
    layer = nn.Linear(2, 2)
    [line] = said(layer, Counts(layer.parameters(), where))
    assert line.startswith(f"the optimizer (Counts): {named} changes while training")


def test_what_a_schedule_sets_is_not_named():
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    def make(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20)

    schedule = make(optimizer)
    assert said(layer, optimizer, schedule.step, lr_schedule=make) == []
    assert optimizer.param_groups[0]["momentum"] != 0.9


def test_a_data_set_of_any_size_is_looked_at_in_part():
    layer = nn.Linear(2, 2)
    data = Reading([0.0] * 1_000_000)
    data.index, data.num_read = list(range(1_000_000)), 1
    assert said(layer, torch.optim.SGD(layer.parameters(), lr=0.1), data=data) == []
    assert 0 < len(walked(data).values) < 5_000


def walked(value):
    walk = JobWalk()
    walk.field("", value)
    return walk


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
