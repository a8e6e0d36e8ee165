"""A parameter that several layers share trains as one, in one stage or in several."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from helpers.harness.module_cases import VOCABULARY, Block, Calls, Sums, linear, linears, same
from helpers.harness.where import DEVICE, placed
from holdfast.errors import ConfigError
from holdfast.runtime.stage.stage import Stage
from holdfast.runtime.stage.ties import Tie, untie


def tied_head() -> list[nn.Module]:
    torch.manual_seed(0)
    embedding = nn.Embedding(VOCABULARY, 32)
    head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, VOCABULARY, bias=False))
    head[1].weight = embedding.weight
    return [embedding, Block(), head]


def test_the_later_layer_gets_a_twin_and_keeps_its_other_tensors() -> None:
    layers = tied_head()
    untied, ties = untie(layers)
    assert ties == (Tie(((0, "weight"), (2, "1.weight"))),)
    assert untied[0] is layers[0]
    assert untied[1] is layers[1]
    assert untied[2][0].weight is layers[2][0].weight
    assert untied[2][1].weight is not layers[0].weight
    assert same(untied[2][1].weight, layers[0].weight)
    assert isinstance(untied[2][1].weight, nn.Parameter)
    assert layers[2][1].weight is layers[0].weight, "the given layers were changed"


def test_three_layers_several_ties_and_shared_modules() -> None:
    shared, other = linear(), linear()
    norm = nn.BatchNorm1d(32)
    layers = [
        nn.Sequential(shared, other, norm),
        nn.Sequential(linear(), shared),
        nn.Sequential(other, shared, norm),
    ]
    untied, ties = untie(layers)
    assert {tie.members for tie in ties} == {
        ((0, "0.weight"), (1, "1.weight"), (2, "1.weight")),
        ((0, "0.bias"), (1, "1.bias"), (2, "1.bias")),
        ((0, "1.weight"), (2, "0.weight")),
        ((0, "1.bias"), (2, "0.bias")),
        ((0, "2.weight"), (2, "2.weight")),
        ((0, "2.bias"), (2, "2.bias")),
    }
    tensors = [t for layer in untied for t in (*layer.parameters(), *layer.buffers())]
    assert len({t.data_ptr() for t in tensors}) == len(tensors)


def test_the_same_layer_object_several_times_becomes_several_layers() -> None:
    block = Block()
    untied, ties = untie([block, block, block])
    assert len({id(layer) for layer in untied}) == 3
    assert len(ties) == len(list(block.parameters()))
    assert all([layer for layer, _ in tie.members] == [0, 1, 2] for tie in ties)


def test_sharing_inside_one_layer_or_of_frozen_parameters_is_no_tie() -> None:
    inside = Calls(lambda m, x: m.b(m.a(x)), **linears(2))
    inside.b.weight = inside.a.weight
    frozen = linear().requires_grad_(False)
    layers = [inside, nn.Sequential(frozen), nn.Sequential(frozen)]
    untied, ties = untie(layers)
    assert ties == ()
    assert untied == layers
    assert [slot.key for slot in Stage(layers).slots] == ["0.a.weight", "0.a.bias", "0.b.bias"]


def test_a_stage_refuses_layers_that_are_still_tied() -> None:
    with pytest.raises(ConfigError, match=r"2\.1\.weight is the same parameter as 0\.weight"):
        Stage(tied_head())


def contributions(boundaries: tuple[int, ...], split: bool) -> dict[str, Tensor]:
    untied, _ = untie(tied_head())
    edges = [0, *boundaries, len(untied)]
    stages = [
        Stage(placed(untied[a:b]), first_layer=a, sink=Sums(), device=DEVICE)
        for a, b in pairwise(edges)
    ]
    data: tuple[Tensor, ...] = (torch.arange(16).reshape(2, 8),)
    for stage in stages:
        data = stage.forward(0, 0, data, split=split)
    gradients: tuple[Tensor | None, ...] = data
    for stage in reversed(stages):
        gradients = stage.backward_input(0, gradients)
        stage.backward_weight(0)
    return {s.slots[slot].key: total for s in stages for slot, total in s.sink.sums.items()}


def test_twins_sum_to_the_gradient_of_the_shared_parameter_wherever_the_cut_is() -> None:
    layers = tied_head()
    y = nn.Sequential(*layers)(torch.arange(16).reshape(2, 8))
    y.backward(y.detach())
    one_stage = contributions((), split=False)
    assert same(one_stage["0.weight"] + one_stage["2.1.weight"], layers[0].weight.grad)
    for boundaries in ((1,), (2,), (1, 2)):
        found = contributions(boundaries, split=True)
        assert found.keys() == one_stage.keys()
        assert all(same(found[key], one_stage[key]) for key in found)
