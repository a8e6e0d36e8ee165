"""A stage that is evaluated: what comes out does not depend on the cut, and nothing stays of it."""

import random

import numpy
import pytest
import torch
from torch import nn

from helpers.harness.where import DEVICE, placed
from helpers.validated_job import NUM_VALIDATED, WIDTH, Normed, Waves, validated
from holdfast.data.validation_batches import ValidationBatches
from holdfast.errors import DataError
from holdfast.runtime.stage.stage import Stage

pytestmark = pytest.mark.usefixtures("one_thread")


class Noisy(nn.Module):
    """Draws, whatever mode it is in."""

    def forward(self, x):
        return x + torch.rand_like(x) + random.random() + float(numpy.random.rand())


@pytest.fixture
def layers():
    torch.manual_seed(3)
    return [nn.Linear(WIDTH, WIDTH), Noisy(), Normed().eval(), nn.Linear(WIDTH, WIDTH)]


def evaluated(layers, cut, microbatch=0):
    given = (torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH),)
    for first, last in zip((0, *cut), (*cut, len(layers)), strict=True):
        stage = Stage(
            placed(layers[first:last]), first_layer=first, seed=7, unpack=True, device=DEVICE
        )
        given = stage.evaluate(microbatch, given)
    return given[0]


def test_the_cut_does_not_show(layers):
    whole = evaluated(layers, ())
    assert torch.equal(whole, evaluated(layers, (1, 2)))
    assert torch.equal(whole, evaluated(layers, (3,)))
    assert not torch.equal(whole, evaluated(layers, (), microbatch=1))  # other random numbers
    assert not whole.requires_grad


def test_buffers_and_random_numbers_are_as_before(layers):
    buffers = [DEVICE.host_copy(buffer) for layer in layers for buffer in layer.buffers()]
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(11)
    expected = torch.rand(()), random.random(), numpy.random.rand()
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(11)
    evaluated(layers, ())
    assert (torch.rand(()), random.random(), numpy.random.rand()) == expected
    now = [DEVICE.host_copy(buffer) for layer in layers for buffer in layer.buffers()]
    assert all(map(torch.equal, buffers, now))
    assert layers[2].seen == 0


def test_a_training_forward_after_it_is_as_if_it_had_not_been():
    """Which buffers change is learnt in the first forward, of a training."""
    ends = []
    for evaluates in (False, True):
        torch.manual_seed(3)
        layers = [Normed(), nn.Linear(WIDTH, WIDTH)]
        stage = Stage(placed(layers), seed=7, unpack=True, device=DEVICE)
        given = (torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH),)
        if evaluates:
            layers[0].eval()
            stage.evaluate(0, given)
            layers[0].train()
        outputs = stage.forward(0, 0, given)
        ends.append([*outputs, *stage.take_buffer_changes(0).values()])
    assert len(ends[0]) > 2
    assert all(map(torch.equal, *ends))


# --- its data ---


def test_each_sample_comes_once_and_in_order():
    batches = ValidationBatches(validated(), seed=0)
    assert len(batches) == 7
    found = torch.cat([batches.load(number)[0][0] for number in range(len(batches))])
    data = Waves(NUM_VALIDATED, 100)
    assert torch.equal(found, torch.stack([data[i][0] for i in range(len(data))]))
    assert [len(batches.indices(number)) for number in range(7)] == [2] * 6 + [1]
    assert len(ValidationBatches(validated(), 0, 3)) == 3
    assert len(ValidationBatches(validated(), 0, 99)) == 7


def test_a_set_that_raises_is_tried_again_and_named(monkeypatch):
    tries, pauses = [], []
    load = Waves.__getitem__

    def fragile(data, index):
        tries.append(index)
        if len(tries) < 3:
            raise OSError("away")
        return load(data, index)

    monkeypatch.setattr(Waves, "__getitem__", fragile)
    ValidationBatches(validated(), 0, retries=3, pause_s=0.5).load(6, pauses.append)
    assert (tries, pauses) == ([12, 12, 12], [0.5, 1.0])
    tries.clear()
    expected = r"the validation set Waves raised OSError for sample 12 \(validation, micro-batch 6"
    with pytest.raises(DataError, match=expected):
        ValidationBatches(validated(), 0).load(6)
