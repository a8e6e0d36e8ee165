"""fp32 masters: the bits of a plain loop that keeps them, forwards, backwards and resumed."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.errors import CheckpointError
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import FastGradients
from holdfast.runtime.reduce.reduction import conclude
from holdfast.runtime.update.inverse_rollback import InverseRollback
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.runtime.update.rollback import SnapshotRollback, Update

FACTORY = partial(optim.AdamW, lr=1e-3)  # small beside the parameters: bf16 alone would lose it
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
KEYS = tuple(f"{layer}.weight" for layer in range(len(DTYPES)))
NUM_STEPS = 5

pytestmark = pytest.mark.usefixtures("one_thread")


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(6, 5, generator=generator).to(dtype)) for dtype in DTYPES]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(6, 5, generator=generator) for _ in DTYPES]


def made() -> tuple[list[nn.Parameter], StageOptimizer]:
    own = parameters()
    return own, StageOptimizer(own, KEYS, FACTORY, None, masters=True)


def stepped(num_steps: int = NUM_STEPS) -> tuple[list[nn.Parameter], StageOptimizer]:
    own, stage = made()
    for step in range(num_steps):
        stage.step(step, gradients(step))
    return own, stage


def bits(own: list[nn.Parameter], stage: StageOptimizer) -> dict[str, bytes]:
    tensors = dict(zip(KEYS, own, strict=True)) | stage.state_tensors()
    return {key: t.detach().view(-1).view(torch.uint8).numpy().tobytes()
            if t.dim() else str(t.item()).encode() for key, t in tensors.items()}  # fmt: skip


def test_parameters_are_the_rounded_ones_of_a_plain_loop_in_fp32():
    own, _ = stepped()
    plain = [nn.Parameter(p.detach().float()) for p in parameters()]
    optimizer = FACTORY(plain)
    for step in range(NUM_STEPS):
        for parameter, gradient in zip(plain, gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()
    for found, expected, dtype in zip(own, plain, DTYPES, strict=True):
        assert torch.equal(found, expected.to(dtype))
    alone = parameters()
    without = StageOptimizer(alone, KEYS, FACTORY, None)
    for step in range(NUM_STEPS):
        without.step(step, gradients(step))
    assert [torch.equal(a, b) for a, b in zip(own, alone, strict=True)] == [False, True, False]


def test_a_parameter_in_fp32_has_no_master():
    _, stage = stepped(1)
    named = [key for key in stage.state_tensors() if key.endswith("/holdfast.master")]
    assert named == ["0.weight/holdfast.master", "2.weight/holdfast.master"]


def loaded(own: list[nn.Parameter], tensors: dict[str, Tensor]):
    """A new holder, as a state gives it: parameters first."""
    taker, stage = made()
    with torch.no_grad():
        for parameter, given in zip(taker, own, strict=True):
            parameter.copy_(given)
    stage.load_state_tensors(tensors)
    return taker, stage


def test_whoever_gets_the_state_goes_on_with_the_same_bits():
    own, stage = stepped(2)
    taker = loaded(own, stage.state_tensors())
    assert bits(*taker) == bits(own, stage)
    for one in (stage, taker[1]):
        one.step(2, gradients(2))
    assert bits(*taker) == bits(own, stage)


def test_parameters_that_were_trained_without_masters_are_their_own():
    own, stage = stepped(2)
    tensors = {k: v for k, v in stage.state_tensors().items() if not k.endswith("/holdfast.master")}
    _, taker = loaded(own, tensors)
    assert torch.equal(taker.parameters[0], own[0].float())


def test_masters_are_left_out_by_whoever_wants_none():
    own, stage = stepped(2)
    alone = StageOptimizer(own, KEYS, FACTORY, None)
    alone.load_state_tensors(stage.state_tensors())
    assert not any(key.endswith("/holdfast.master") for key in alone.state_tensors())


def test_a_master_of_another_shape_is_refused():
    own, stage = stepped(1)
    tensors = stage.state_tensors() | {"0.weight/holdfast.master": torch.zeros(2)}
    with pytest.raises(CheckpointError, match=r"0\.weight/holdfast\.master of shape \(2,\)"):
        loaded(own, tensors)


@pytest.mark.parametrize("kind", [SnapshotRollback, InverseRollback])
def test_a_step_taken_back_leaves_no_bit_behind_and_old_ones_can_be_had(kind):
    own, stage = stepped(2)
    rollback = kind(stage, keeps_old=True)
    before, old = bits(own, stage), [parameter.detach().clone() for parameter in own]
    layout = FlatLayout.of(own, KEYS)
    flat = torch.zeros(layout.numel)
    for slot, gradient in enumerate(gradients(2)):
        layout.view(flat, slot).copy_(gradient)
    reduced = conclude(FastGradients(layout), flat, touched=[True] * len(own), nonfinite=False)
    rollback.apply(Update(2, reduced), speculative=True)
    assert bits(own, stage) != before
    kept = rollback.old(2)
    assert kept is not None
    for found, expected in zip(kept, old, strict=True):
        assert torch.equal(found.to(expected.dtype), expected)
    rollback.take_back(2)
    assert bits(own, stage) == before
