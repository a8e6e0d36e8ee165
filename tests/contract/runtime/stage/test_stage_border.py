"""Where a model is cut into stages does not show in any result."""

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.harness.module_cases import (
    VOCABULARY,
    Block,
    Calls,
    Embed,
    Sums,
    linear,
    linears,
    same,
)
from helpers.harness.where import DEVICE, placed
from holdfast.errors import ConfigError, ScheduleError
from holdfast.runtime.stage.seeding import seed_for
from holdfast.runtime.stage.stage import Stage, carries_gradient

MICROBATCHES = range(3)


pytestmark = pytest.mark.usefixtures("one_thread")


def gpt() -> list[nn.Module]:
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, VOCABULARY, bias=False))
    return [Embed(), Block(dropout=0.1), Block(dropout=0.2), head]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def cut(
    layers: Sequence[nn.Module],
    boundaries: Sequence[int],
    loss: Callable[..., Tensor],
    **options: object,
) -> list[Stage]:
    edges = [0, *boundaries, len(layers)]
    return [
        Stage(
            placed(layers[start:stop]),
            device=DEVICE,
            first_layer=start,
            seed=3,
            loss=loss if stop == len(layers) else None,
            loss_scale=lambda step: 1 / len(MICROBATCHES),
            sink=Sums(),
            **options,
        )
        for start, stop in pairwise(edges)
    ]


def run(
    stages: Sequence[Stage], microbatch: int, data: tuple[Tensor, ...], target: Tensor, split: bool
) -> float:
    for stage in stages:
        data = stage.forward(7, microbatch, data, target, split=split)
    gradients: tuple[Tensor | None, ...] = ()
    for stage in reversed(stages):
        backward = stage.backward_input if split else stage.backward
        gradients = backward(microbatch, gradients)
    for stage in stages if split else ():
        stage.backward_weight(microbatch)
    return stages[-1].take_loss(microbatch).value


def tokens(microbatch: int) -> Tensor:
    generator = torch.Generator().manual_seed(microbatch)
    return torch.randint(VOCABULARY, (2, 8), generator=generator)


def weight_gradients(stages: Sequence[Stage]) -> dict[str, Tensor]:
    return {
        stage.slots[slot].key: total for stage in stages for slot, total in stage.sink.sums.items()
    }


def train(boundaries: Sequence[int], split: bool) -> tuple[list[float], dict[str, Tensor]]:
    stages = cut(gpt(), boundaries, cross_entropy)
    losses = [run(stages, m, (tokens(m),), tokens(m + 50), split) for m in MICROBATCHES]
    return losses, weight_gradients(stages)


@pytest.mark.parametrize("boundaries", [(2,), (1, 2, 3), (3,)])
@pytest.mark.parametrize("split", [False, True])
def test_the_cut_shows_neither_in_losses_nor_in_gradients(
    boundaries: tuple[int, ...], split: bool
) -> None:
    one_stage, several = train((), False), train(boundaries, split)
    assert one_stage[0] == several[0]
    assert one_stage[1].keys() == several[1].keys()
    assert len(one_stage[1]) == sum(1 for layer in gpt() for _ in layer.parameters())
    assert all(same(one_stage[1][key], several[1][key]) for key in one_stage[1])


def test_gradients_are_those_of_the_scaled_loss_but_the_reported_loss_is_not_scaled() -> None:
    stage = Stage([linear(1)], loss=lambda y, _: y.sum(), loss_scale=lambda step: 0.25, sink=Sums())
    x = torch.randn(4, 32)
    assert stage.forward(0, 0, (x,)) == ()
    stage.backward(0)
    expected = stage.slots[0].parameter @ x.t()
    assert stage.take_loss(0).value == pytest.approx(
        (expected + stage.slots[1].parameter).sum().item(), rel=1e-5
    )
    assert same(stage.sink.sums[1], torch.tensor([1.0]))


def test_random_numbers_follow_step_micro_batch_and_layer() -> None:
    arguments = [(1, 2, 3, 4), (2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5), (1, 3, 2, 4)]
    seeds = {seed_for(*a) for a in arguments}
    assert len(seeds) == len(arguments)
    assert all(0 <= seed < 2**63 for seed in seeds)
    dropout = Stage([nn.Dropout(0.5)], first_layer=4, seed=1)
    x = torch.ones(200)
    (first,) = dropout.forward(2, 0, (x,))
    torch.rand(17)  # whatever else draws in between
    dropout.drop(0)
    assert same(first, dropout.forward(2, 0, (x,))[0])
    assert not same(first, dropout.forward(2, 1, (x,))[0])


def branches() -> list[nn.Module]:
    torch.manual_seed(0)
    fork = Calls(lambda m, x: (m.a(x), x.sin(), torch.arange(32, device=x.device)), **linears(1))
    skip = Calls(lambda m, v: (m.a(v[0]), v[1] * 2, v[2]), **linears(1))
    join = Calls(lambda m, v: m.a(v[0]) + v[1] + v[2], **linears(1))
    return [linear(), fork, skip, join]


@pytest.mark.parametrize("split", [False, True])
def test_tuples_and_integers_cross_a_boundary_as_they_pass_between_layers(split: bool) -> None:
    results = []
    for boundaries in ((), (2,), (1, 2, 3)):
        stages = cut(branches(), boundaries, lambda y, target: (y - target).square().mean())
        loss = run(stages, 0, (torch.ones(4, 32),), torch.zeros(4, 32), split)
        results.append((loss, weight_gradients(stages)))
    for loss, gradients in results[1:]:
        assert loss == results[0][0]
        assert gradients.keys() == results[0][1].keys()
        assert all(same(gradients[key], results[0][1][key]) for key in gradients)


def test_each_floating_input_gets_a_gradient_back_and_an_empty_one_if_none_reached_it() -> None:
    module = Calls(lambda m, x, unused, index: (m.a(x)[index], torch.ones(3)), **linears(1))
    stage = Stage([module], first_layer=1, unpack=True, sink=Sums())
    inputs = (torch.randn(4, 32), torch.randn(5), torch.tensor([1, 0]))
    outputs = stage.forward(0, 0, inputs)
    assert [carries_gradient(t) for t in inputs] == [True, True, False]
    gradients = stage.backward(0, (torch.ones_like(outputs[0]), torch.ones(3)))
    assert gradients[0].shape == (4, 32)
    assert gradients[1].shape == (0,)
    assert gradients[2] is None


def test_an_output_nobody_used_is_not_differentiated() -> None:
    # Zeros in its place would come out as 0 * inf.
    module = Calls(lambda m, x: (m.a(x), m.a(x).mul(0).abs().sqrt()), **linears(1))
    stage = Stage([module], first_layer=1, sink=Sums())
    y, unused = stage.forward(0, 0, (torch.randn(4, 32),))
    (gradient,) = stage.backward(0, (y, unused.new_empty(0)))
    assert gradient.isfinite().all()


def test_the_first_stage_gives_no_gradient_back() -> None:
    stage = Stage([linear()], sink=Sums())
    (y,) = stage.forward(0, 0, (torch.randn(4, 32),), split=True)
    assert stage.backward_input(0, (y,)) == (None,)
    stage.backward_weight(0)
    assert stage.sink.num_added == {0: 1, 1: 1}


def test_a_layer_that_writes_to_its_input_does_not_touch_the_senders_tensor() -> None:
    stage = Stage([nn.ReLU(inplace=True), linear()], first_layer=1, sink=Sums())
    for microbatch in MICROBATCHES:
        x = -torch.ones(4, 32)
        stage.forward(0, microbatch, (x,))
        assert same(x, -torch.ones(4, 32))


def test_a_layer_that_writes_to_its_input_cannot_be_checkpointed() -> None:
    stage = Stage([linear(), nn.ReLU(inplace=True)], checkpoint_activations=True)
    with pytest.raises(ConfigError, match="layer 1 writes to its input"):
        stage.forward(0, 0, (torch.randn(4, 32),))


def test_stages_that_are_threads_of_one_process_do_not_disturb_each_other() -> None:
    alone = [work_off(stage) for stage in dropout_stages()]
    together: dict[int, dict[str, Tensor]] = {}
    stages = dropout_stages()
    threads = [
        threading.Thread(target=lambda n=n: together.update({n: work_off(stages[n])}))
        for n in range(len(stages))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, expected in enumerate(alone):
        assert expected.keys() == together[number].keys()
        assert all(same(expected[key], together[number][key]) for key in expected)


def dropout_stages() -> list[Stage]:
    torch.manual_seed(0)
    blocks = [Block(dropout=0.3), Block(dropout=0.3)]
    return [Stage([b], first_layer=n, seed=9, sink=Sums()) for n, b in enumerate(blocks)]


def work_off(stage: Stage) -> dict[str, Tensor]:
    data = [torch.full((2, 8, 32), 0.1 * microbatch) for microbatch in range(12)]
    for microbatch, x in enumerate(data):
        (y,) = stage.forward(0, microbatch, (x,), split=bool(microbatch % 2))
        stage.backward_input(microbatch, (y,))
    for microbatch in range(len(data)):
        stage.backward_weight(microbatch)
    return weight_gradients([stage])


def test_operations_out_of_order_are_refused() -> None:
    stage = Stage([linear()], sink=Sums())
    with pytest.raises(ScheduleError, match="before its forward"):
        stage.backward(0)
    (y,) = stage.forward(0, 0, (torch.randn(4, 32),))
    with pytest.raises(ScheduleError, match="in flight already"):
        stage.forward(0, 0, (torch.randn(4, 32),))
    with pytest.raises(ScheduleError, match="before its first part"):
        stage.backward_weight(0)
    stage.backward(0, (y,))
    with pytest.raises(ScheduleError, match="before its forward"):
        stage.backward(0, (y,))


def test_a_dropped_micro_batch_can_run_again_and_counts_once() -> None:
    stage = Stage([linear()], sink=Sums())
    x = torch.randn(4, 32)
    stage.forward(0, 0, (x,), split=True)
    stage.drop(0)
    (y,) = stage.forward(0, 0, (x,), split=True)
    stage.backward_input(0, (y,))
    stage.drop_all()
    assert stage.in_flight == 0
    assert not stage.sink.sums
    stage.forward(0, 0, (x,))
    stage.backward(0, (y,))
    assert stage.sink.num_added == {0: 1, 1: 1}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"a": 1}, "layer 2 returned dict"),
        ((torch.ones(1), 3), "a tuple of Tensor, int"),
        ((torch.ones(1),), "tuple of 1; return the tensor itself"),
    ],
)
def test_what_cannot_cross_a_boundary_is_refused_between_layers_too(
    result: object, message: str
) -> None:
    stage = Stage([Calls(lambda m, x: result), nn.Identity()], first_layer=2)
    with pytest.raises(ConfigError, match=message):
        stage.forward(0, 0, (torch.ones(1),))


def test_a_loss_must_be_one_number_without_weights_of_its_own() -> None:
    with pytest.raises(ConfigError, match="trainable parameters"):
        Stage([linear()], loss=linear())
    stage = Stage([linear()], loss=lambda y, _: y)
    with pytest.raises(ConfigError, match=r"shape \(4, 32\)"):
        stage.forward(0, 0, (torch.randn(4, 32),))
