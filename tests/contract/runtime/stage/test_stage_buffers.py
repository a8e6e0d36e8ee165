"""Buffers change once a step, by the mean of what the micro-batches found, in any order."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from helpers.harness.module_cases import Calls, Sums, linear, linears, same
from helpers.harness.where import DEVICE, placed
from holdfast.errors import ConfigError
from holdfast.runtime.stage.stage import Stage

DATA = [torch.randn(16, 32, generator=torch.Generator().manual_seed(m)) * (m + 1) for m in range(4)]


def make_layers() -> list[nn.Module]:
    torch.manual_seed(0)
    layers = [linear(), nn.Sequential(nn.BatchNorm1d(32), nn.Tanh())]
    return [*layers, nn.utils.parametrizations.spectral_norm(linear())]


def make_stage(layers: list[nn.Module] | None = None, **options: bool) -> Stage:
    made = placed(layers or make_layers())
    return Stage(made, first_layer=1, sink=Sums(), device=DEVICE, **options)


def changes_of(stage: Stage, order: tuple[int, ...]) -> dict[int, dict[str, Tensor]]:
    found = {}
    for microbatch in order:
        (y,) = stage.forward(0, microbatch, (DATA[microbatch],))
        stage.backward(microbatch, (y,))
        found[microbatch] = stage.take_buffer_changes(microbatch)
    return found


def buffers_of(layers: list[nn.Module]) -> dict[str, Tensor]:
    named = [(f"{i}.{n}", b) for i, layer in enumerate(layers, 1) for n, b in layer.named_buffers()]
    return {name: DEVICE.host_copy(buffer) for name, buffer in named}


@pytest.mark.parametrize("checkpoint_activations", [False, True])
def test_a_forward_leaves_buffers_as_they_were_and_reports_its_change(
    checkpoint_activations: bool,
) -> None:
    layers = make_layers()
    stage = make_stage(layers, checkpoint_activations=checkpoint_activations)
    before = buffers_of(layers)
    forwards = changes_of(stage, (0, 1, 2, 3))
    assert all(same(before[key], value) for key, value in buffers_of(layers).items())
    backwards = changes_of(make_stage(), (3, 2, 1, 0))
    for microbatch, changes in forwards.items():
        assert changes.keys() == before.keys()
        assert all(same(changes[key], backwards[microbatch][key]) for key in changes)


def test_the_order_of_summing_changes_does_not_show() -> None:
    found = changes_of(make_stage(), (0, 1, 2, 3))
    for key in found[0]:
        sums = {
            tuple(sum(found[m][key] for m in order).flatten().tolist())
            for order in itertools.permutations(range(4))
        }
        assert len(sums) == 1


def test_the_mean_change_is_one_update_of_a_batch_norm() -> None:
    layers = make_layers()
    stage = make_stage(layers)
    found = changes_of(stage, (2, 0, 3, 1))
    mean = {key: sum(found[m][key] for m in range(4)) / 4 for key in found[0]}
    stage.apply_buffer_changes(mean)
    norm = nn.BatchNorm1d(32)
    means = []
    for data in DATA:
        norm.reset_running_stats()
        norm(DEVICE.to_host(layers[0](DEVICE.place(data))))
        means.append(norm.running_mean.clone())
    after = buffers_of(layers)
    assert after["2.0.num_batches_tracked"] == 1
    torch.testing.assert_close(after["2.0.running_mean"], sum(means) / 4)


def test_changes_can_be_taken_once_and_are_dropped_with_their_micro_batch() -> None:
    stage = make_stage()
    stage.forward(0, 0, (DATA[0],))
    assert stage.take_buffer_changes(0)
    assert not stage.take_buffer_changes(0)
    stage.forward(0, 1, (DATA[1],))
    stage.drop(1)
    assert not stage.take_buffer_changes(1)


class Counting(nn.Module):
    """Replaces its buffer instead of writing to it, and flips a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("started", torch.tensor(False))
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + len(x)
        self.started.fill_(True)
        return x * self.mask[0, 0]


def test_replaced_buffers_flags_and_constants_are_told_apart() -> None:
    layer = Counting()
    seen, mask = layer.seen, layer.mask
    stage = Stage([layer])
    for microbatch in range(3):
        stage.forward(0, microbatch, (torch.ones(4),))
        assert layer.seen is seen
        assert layer.mask is mask
        changes = stage.take_buffer_changes(microbatch)
        assert {key: change.item() for key, change in changes.items()} == {
            "0.seen": 4,
            "0.started": 1,
        }
    stage.apply_buffer_changes(changes)
    assert layer.seen.item() == 4
    assert layer.started.item() is True


def test_a_buffer_that_starts_to_change_later_is_refused() -> None:
    module = Calls(lambda m, x: m.a(x) + (m.late.add_(1) if len(x) > 4 else m.late), **linears(1))
    module.register_buffer("late", torch.zeros(()))
    stage = Stage([module])
    stage.forward(0, 0, (torch.ones(4, 32),))
    with pytest.raises(ConfigError, match="buffer late was constant"):
        stage.forward(0, 1, (torch.ones(5, 32),))


class WritesOnce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.written = False

    def forward(self, values: Tensor) -> Tensor:
        if not self.written:
            self.count += 1
            self.written = True
        return values


def test_a_buffer_that_is_written_only_sometimes_is_refused_by_name() -> None:
    stage = Stage([linear(), WritesOnce()], first_layer=1, sink=Sums())
    stage.forward(0, 0, (DATA[0],))
    with pytest.raises(ConfigError, match=r"count was written in the first forward and not"):
        stage.forward(0, 1, (DATA[1],))
