"""A stage and its sums on a device: the bits of the processor."""

import copy

import pytest
import torch
from torch.nn import functional

from helpers.wide import first
from holdfast.device.choosing import open_device
from holdfast.device.processor import PROCESSOR
from holdfast.models.gpt import gpt_layers
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients
from holdfast.runtime.stage.seeding import seed_layer, undisturbed
from holdfast.runtime.stage.stage import Stage

FAR = open_device("far", -1, 0)


def loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def result(layers, device, *, split, again):
    layers = [device.place_layer(copy.deepcopy(layer)) for layer in layers]
    half, more = len(layers) // 2, {"seed": 3, "checkpoint_activations": again, "device": device}
    stages = [
        Stage(layers[:half], **more),
        Stage(layers[half:], first_layer=half, loss=loss, **more),
    ]
    for stage in stages:
        layout = FlatLayout.of([slot.parameter for slot in stage.slots])
        stage.sink = ExactGradients(layout, 2, device=device)
    data, losses = torch.Generator().manual_seed(1), []
    for number in range(2):
        tokens = torch.randint(0, 64, (2, 9), generator=data)
        sent = stages[0].forward(0, number, (tokens[:, :-1],), split=split)
        stages[1].forward(0, number, sent, tokens[:, 1:], split=split)
        losses.append(stages[1].take_loss(number))
        backward = "backward_input" if split else "backward"
        back = getattr(stages[1], backward)(number)
        assert all(tensor.is_cpu for tensor in (*sent, *back))
        getattr(stages[0], backward)(number, back)
        if split:
            for stage in stages:
                stage.backward_weight(number)
    return losses, [device.to_host(stage.sink.flat) for stage in stages]


@pytest.mark.parametrize(
    ("split", "again"), first(1, [(True, False), (True, True), (False, True), (False, False)])
)
def test_forward_and_backward_of_a_gpt_are_those_of_the_processor(split, again):
    layers = gpt_layers(vocabulary=64, context=8, width=16, heads=2, depth=2, dropout=0.1)
    near = result(layers, PROCESSOR, split=split, again=again)
    far = result(layers, FAR, split=split, again=again)
    assert near[0] == far[0]
    assert all(map(torch.equal, near[1], far[1]))


HARD = [0.0, -0.0, 1.0, -3.7, 1e-45, 1e-38, 3e38, -3e38, 2.0**30, -(2.0**40)]


@pytest.mark.parametrize("last", [[], [float("nan")], [float("inf"), 1.0], [float("-inf")]])
def test_sums_spilled_rows_and_what_is_not_finite_are_those_of_the_processor(last):
    parts = [torch.tensor(HARD * 3 + last) * scale for scale in (1.0, -0.5, 1.0)]
    layout = FlatLayout.of([torch.zeros_like(parts[0]), torch.zeros(4)])
    near, far = ExactGradients(layout, 3), ExactGradients(layout, 3, device=FAR)
    for part in parts:
        for slot, gradient in ((0, part), (1, part[:4])):
            near.add(slot, gradient)
            far.add(slot, FAR.place(gradient))
    assert torch.equal(FAR.to_host(far.flat), near.flat)
    assert far.nonfinite == near.nonfinite == bool(last)
    assert near.spilled(0).numel()
    assert torch.equal(far.spilled(0), near.spilled(0))
    far.clear()
    assert not far.nonfinite
    assert not far.spilled(0).numel()


def test_what_a_step_left_behind_shows_in_no_later_one():
    layout = FlatLayout.of([torch.zeros(2)])
    far = ExactGradients(layout, 3, device=FAR)
    far.add(0, FAR.place(torch.tensor([float("nan"), 1e30])))
    far.clear()
    far.add(0, FAR.place(torch.ones(2)))
    assert not far.nonfinite
    assert not far.spilled(0).numel()


def test_the_device_draws_by_the_key_of_the_layer_and_evaluation_leaves_no_trace():
    def drawn():
        return FAR.to_host(torch.rand(3, device=FAR.torch_device))

    seed_layer(1, 2, 3, 4, device=FAR)
    expected = drawn(), drawn()
    seed_layer(1, 2, 3, 4, device=FAR)
    one = drawn()
    with undisturbed(FAR):
        assert not torch.equal(drawn(), one)
    assert torch.equal(one, expected[0])
    assert torch.equal(drawn(), expected[1])
