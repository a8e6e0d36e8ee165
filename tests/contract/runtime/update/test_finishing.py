"""Clipping by value, noise and the average of the weights: as a plain loop has them, taken back
and resumed."""

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.config import TrainConfig
from holdfast.errors import CheckpointError, ConfigError
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import FastGradients
from holdfast.runtime.reduce.reduction import conclude
from holdfast.runtime.update.finishing import Finishing
from holdfast.runtime.update.inverse_rollback import InverseRollback
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.runtime.update.rollback import SnapshotRollback, Update

KEYS = ("0.weight", "1.weight", "3.weight")
TRAIN = TrainConfig(clip_value=0.4, noise=0.1, noise_decay=0.55, seed=7)
SCALE = 0.5

pytestmark = pytest.mark.usefixtures("one_thread")


def made(train: TrainConfig = TRAIN, ema: float = 0.0, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(1)
    own = [nn.Parameter(torch.randn(6, 5, generator=generator).to(dtype)) for _ in KEYS]
    stage = StageOptimizer(
        own,
        KEYS,
        lambda p: optim.AdamW(p, lr=0.1),
        None,
        masters=True,
        finishing=Finishing(KEYS, train),
        ema=ema,
    )
    return own, stage


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(6, 5, generator=generator) for _ in KEYS]


def bits(stage: StageOptimizer) -> dict[str, bytes]:
    return {
        key: tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        for key, tensor in {
            **dict(zip(KEYS, stage.parameters, strict=True)),
            **stage.state_tensors(),
        }.items()
    }


# --- clipping and noise ---


def test_first_scaled_then_clipped_then_noise():
    _, stage = made()
    given = torch.full((6, 5), 3.0)
    found = stage.gradient(2, 1, given, SCALE) - 0.4  # 1.5 is cut off at 0.4
    std = 0.1 / 3**0.55
    assert given.eq(3.0).all()  # only read
    assert 0.5 * std < found.std() < 1.7 * std
    assert found.abs().max() < 5 * std
    clipped = made(TrainConfig(clip_value=0.4))[1].gradient(2, 1, torch.tensor([3.0, -0.5]), SCALE)
    assert clipped.tolist() == [pytest.approx(0.4), -0.25]


def test_noise_is_of_seed_step_and_parameter_and_of_nothing_else():
    zeros = torch.zeros(40)
    train = TrainConfig(noise=1.0, seed=7)

    def drawn(step: int = 3, key: str = "1.weight", train: TrainConfig = train) -> Tensor:
        torch.manual_seed(step)  # which it neither uses nor disturbs
        before = torch.get_rng_state()
        noise = Finishing(("0.bias", key), train).finished(step, 1, zeros)
        assert torch.equal(torch.get_rng_state(), before)
        return noise

    assert torch.equal(drawn(), drawn())
    others = [drawn(step=4), drawn(key="2.weight"), drawn(train=TrainConfig(noise=1.0, seed=8))]
    for other in others:
        assert abs(torch.corrcoef(torch.stack([drawn(), other]))[0, 1]) < 0.6
    assert torch.equal(Finishing(("1.weight",), train).finished(3, 0, zeros), drawn())


@pytest.mark.parametrize("rollback", [SnapshotRollback, InverseRollback])
def test_a_step_with_noise_is_taken_back_exactly(rollback):
    own, stage = made()
    layout = FlatLayout.of(own, KEYS)
    way = rollback(stage, keeps_old=True)
    for step in range(3):
        flat = torch.zeros(layout.numel)
        for slot, gradient in enumerate(gradients(step)):
            layout.view(flat, slot).copy_(gradient)
        reduced = conclude(FastGradients(layout), flat, touched=[True] * 3, nonfinite=False)
        before, weights = bits(stage), [p.detach().clone() for p in own]
        way.apply(Update(step, reduced), speculative=True)
        assert bits(stage) != before
        way.take_back(step)
        assert bits(stage) == before
        way.apply(Update(step, reduced, SCALE), speculative=False)
        for old, weight in zip(way.old(step), weights, strict=True):
            assert torch.equal(old, weight)
        way.committed(step)


def test_without_both_the_gradient_is_handed_on_as_it_is():
    _, stage = made(TrainConfig())
    [gradient, *_] = gradients(0)
    assert stage.gradient(0, 0, gradient, None) is gradient


@pytest.mark.parametrize(
    ("setting", "value"),
    [("clip_value", -1.0), ("noise", float("inf")), ("noise_decay", -0.1), ("ema", 1.0)],
)
def test_what_cannot_be_is_refused(setting, value):
    with pytest.raises(ConfigError, match=f"train.{setting}={value}"):
        TrainConfig(**{setting: value})


# --- the average ---

DECAY = 0.8


def averages(stage: StageOptimizer) -> dict[str, Tensor]:
    return {k: t for k, t in stage.state_tensors().items() if k.endswith("/holdfast.ema")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_follows_the_weights_or_their_masters(dtype):
    _, stage = made(TrainConfig(), DECAY, dtype)
    expected = [p.detach().clone() for p in stage.parameters]
    for step in range(4):
        stage.step(step, gradients(step))
        stage.average.follow()
        expected = [
            old * DECAY + (1 - DECAY) * p.detach()
            for old, p in zip(expected, stage.parameters, strict=True)
        ]
    for found, wanted in zip(averages(stage).values(), expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted)


def test_it_is_state_and_begins_with_the_weights_where_there_was_none():
    own, stage = made(TrainConfig(), DECAY)
    stage.step(0, gradients(0))
    stage.average.follow()
    other, loaded = made(TrainConfig(), DECAY)
    with torch.no_grad():
        for mine, theirs in zip(other, own, strict=True):
            mine.copy_(theirs)
    loaded.load_state_tensors(stage.state_tensors())
    assert bits(loaded) == bits(stage)
    without = {k: t for k, t in stage.state_tensors().items() if not k.endswith("/holdfast.ema")}
    loaded.load_state_tensors(without)
    for average, weight in zip(averages(loaded).values(), own, strict=True):
        assert torch.equal(average, weight)
    made(TrainConfig())[1].load_state_tensors(stage.state_tensors())  # no use for it: left out
    wrong = {**without, "1.weight/holdfast.ema": torch.zeros(2)}
    with pytest.raises(CheckpointError, match=r"1.weight/holdfast.ema of shape \(2,\)"):
        loaded.load_state_tensors(wrong)


def test_it_stands_in_for_the_weights_for_a_while():
    own, stage = made(TrainConfig(), DECAY, torch.bfloat16)
    for step in range(2):
        stage.step(step, gradients(step))
        stage.average.follow()
    before = [p.detach().clone() for p in own]
    with stage.average.in_place_of(own):
        for weight, average in zip(own, averages(stage).values(), strict=True):
            assert torch.equal(weight, average.bfloat16())
            assert not torch.equal(weight, before[0])
    assert all(torch.equal(a, b) for a, b in zip(own, before, strict=True))
