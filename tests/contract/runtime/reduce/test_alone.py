"""Nobody else holds the stage: sums become a reduced gradient where they are, to the same bits."""

import pytest
import torch
from torch import nn

from holdfast.cluster import WorkerId
from holdfast.runtime.reduce.buckets import Bucket
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients, FastGradients
from holdfast.runtime.reduce.loss_scale import LossScale, ScaleState
from holdfast.runtime.reduce.reduction import reduce_gradients
from holdfast.transport.local.transport import LocalHub, LocalTransport

ME = WorkerId(0, 0)
SHAPES = ((70_001,), (3, 5), (), (131_072,))

pytestmark = pytest.mark.usefixtures("one_thread")


def parameters():
    return [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


def filled(gradients):
    draw = torch.Generator().manual_seed(2)
    for size in (1e-3, 1.0, 1e25):  # the last is too large for the sums
        for slot, shape in enumerate(SHAPES[:3]):
            gradients.add(slot, torch.randn(shape, generator=draw) * size)
    return gradients


def expected(gradients):
    """Each slot as a whole, into memory of its own."""
    layout, out = gradients.layout, torch.zeros(gradients.layout.numel)
    for slot in range(len(SHAPES)):
        total, exponent = layout.padded(gradients.flat, slot), gradients.exponents[slot]
        gradients.round_into(layout.padded(out, slot), total, exponent, gradients.spilled(slot))
    return out


@pytest.mark.parametrize("kind", [ExactGradients, FastGradients])
def test_the_bits_are_those_of_a_reduction_into_other_memory(kind):
    layout, scale = FlatLayout.of(parameters()), LossScale(ScaleState(5))
    gradients = filled(kind(layout, 4, scale) if kind is ExactGradients else kind(layout, scale))
    wanted, memory = expected(gradients), gradients.flat.untyped_storage().data_ptr()
    bucket = Bucket(0, (ME,), tuple((slot,) for slot in range(len(SHAPES))))
    transport = LocalTransport(ME, LocalHub())
    reduced = reduce_gradients(
        gradients, (bucket,), me=ME, transport=transport, step=0, timeout_s=1
    )
    assert torch.equal(reduced.flat, wanted)
    assert reduced.touched == (True, True, True, False)
    assert reduced.flat.untyped_storage().data_ptr() == memory
    gradients.clear()
    assert torch.equal(reduced.flat, wanted)  # it is nobody else's
    assert not any(gradients.touched)
    assert not filled(gradients).flat.equal(torch.zeros_like(gradients.flat))
    assert torch.equal(reduced.flat, wanted)
    if kind is ExactGradients:
        gradients.clear()
        assert torch.equal(expected(filled(gradients)), wanted)


def test_autograd_adds_to_the_new_sums():
    own = parameters()
    gradients = FastGradients(FlatLayout.of(own))
    gradients.attach(own)
    own[1].sum().backward()
    taken = gradients.take_reduced()
    assert all(parameter.grad is None for parameter in own)
    gradients.clear()
    gradients.begin()
    (own[1].sum() * 3).backward()
    assert gradients.layout.view(gradients.flat, 1).eq(3).all()
    assert gradients.layout.view(taken, 1).eq(1).all()
    assert gradients.touched == (False, True, False, False)
