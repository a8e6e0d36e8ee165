"""An optimizer step undone: every bit comes back, also where the inverse alone is far off."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

from helpers.harness.where import DEVICE, trained
from holdfast.errors import ConfigError
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import FastGradients
from holdfast.runtime.reduce.reduction import conclude
from holdfast.runtime.update import inverse_rollback
from holdfast.runtime.update.inverse import check_undoable, inverse_of
from holdfast.runtime.update.inverse_rollback import InverseRollback
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.runtime.update.rollback import Update

Factory = Callable[..., optim.Optimizer]
SHAPES = ((40, 30), (50,), (), (0, 3), (2, 3, 2, 2))

OPTIMIZERS: dict[str, Factory] = {
    "SGD": partial(optim.SGD, lr=0.01),
    "SGD decay": partial(optim.SGD, lr=0.01, weight_decay=0.1),
    "SGD decay maximize": partial(optim.SGD, lr=0.01, weight_decay=0.1, maximize=True),
    "SGD momentum": partial(optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.1),
    "SGD dampening": partial(optim.SGD, lr=0.01, momentum=0.9, dampening=0.5, maximize=True),
    "SGD nesterov": partial(optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD nesterov maximize": partial(
        optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True
    ),
    "SGD foreach": partial(optim.SGD, lr=0.01, momentum=0.9, nesterov=True, foreach=True),
    "SGD fused": partial(optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.1, fused=True),
    "Adam": partial(optim.Adam, lr=1e-3),
    "Adam decay": partial(optim.Adam, lr=1e-3, weight_decay=0.1),
    "Adam maximize": partial(optim.Adam, lr=1e-3, weight_decay=0.1, maximize=True),
    "Adam decoupled": partial(optim.Adam, lr=1e-3, weight_decay=0.1, decoupled_weight_decay=True),
    "Adam fused": partial(optim.Adam, lr=1e-3, weight_decay=0.1, fused=True),
    "AdamW": partial(optim.AdamW, lr=1e-3, weight_decay=0.1),
    "AdamW maximize": partial(optim.AdamW, lr=1e-3, weight_decay=0.1, maximize=True),
    "AdamW small betas": partial(optim.AdamW, lr=1e-3, betas=(0.3, 0.4)),
    "AdamW foreach": partial(optim.AdamW, lr=1e-3, foreach=True),
    "AdamW fused": partial(optim.AdamW, lr=1e-3, fused=True),
    "AdamW tensor lr": lambda given: optim.AdamW(given, lr=torch.tensor(1e-3)),
}
each_optimizer = pytest.mark.parametrize("factory", OPTIMIZERS.values(), ids=OPTIMIZERS)
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # The LR schedule follows the step's number, so it may move before the first step.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
]


class World:
    """Some parameters, their optimizer, and what takes its steps back."""

    def __init__(
        self,
        factory: Factory,
        schedule: Callable[[optim.Optimizer], lr_scheduler.LRScheduler] | None = None,
        parameters: Sequence[Tensor] | None = None,
        *,
        keeps_old: bool = True,
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        made = [torch.randn(shape, generator=generator) for shape in SHAPES]
        self.parameters = trained(p.detach().clone() for p in parameters or made)
        keys = [f"{i}.weight" for i in range(len(self.parameters))]
        self.layout = FlatLayout.of(self.parameters, keys)
        self.optimizer = StageOptimizer(
            self.parameters, keys, factory, schedule, place=DEVICE.place
        )
        self.undo = InverseRollback(self.optimizer, keeps_old=keeps_old)

    def update(
        self, step: int, size: float = 0.1, *, scale: float | None = None, unused: int = -1
    ) -> Update:
        generator = torch.Generator().manual_seed(100 + step)
        return self.given(step, [torch.randn(p.shape, generator=generator) * size
                                 for p in self.parameters], scale, unused)  # fmt: skip

    def given(
        self, step: int, gradients: Sequence[Tensor], scale: float | None = None, unused: int = -1
    ) -> Update:
        flat = torch.zeros(self.layout.numel)
        for slot, gradient in enumerate(gradients):
            self.layout.view(flat, slot).copy_(gradient)
        touched = [slot != unused for slot in range(len(gradients))]
        reduced = conclude(FastGradients(self.layout), flat, touched=touched, nonfinite=False)
        return Update(step, reduced, scale)

    def train(self, steps: int, size: float = 0.1) -> None:
        for step in range(steps):
            update = self.update(step, size)
            self.optimizer.step(step, update.gradients())

    def bits(self) -> dict[str, bytes]:
        tensors = {str(i): p for i, p in enumerate(self.parameters)}
        return {key: raw(t) for key, t in (tensors | self.optimizer.state_tensors()).items()}


def raw(tensor: Tensor) -> bytes:
    return DEVICE.to_host(tensor).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@each_optimizer
@pytest.mark.parametrize("steps_before", [0, 1, 5])
@pytest.mark.parametrize("scale", [None, 0.37], ids=["whole", "clipped"])
def test_a_step_undone_leaves_no_bit_behind(factory, steps_before, scale):
    world = World(factory)
    world.train(steps_before)
    before = world.bits()
    update = world.update(steps_before, scale=scale)
    world.undo.apply(update, speculative=True)
    after = world.bits()
    assert after != before
    world.undo.take_back(steps_before)
    assert world.bits() == before
    world.undo.apply(update, speculative=True)
    assert world.bits() == after


@each_optimizer
def test_a_step_that_can_be_undone_has_the_bits_of_any_other(factory):
    world, plain = World(factory), World(factory)
    for step in range(4):
        world.undo.apply(world.update(step), speculative=step % 2 == 0)
        world.undo.committed(step)
    plain.train(4)
    assert world.bits() == plain.bits()


@each_optimizer
def test_the_parameters_before_two_steps_are_had_without_touching_the_present(factory):
    world = World(factory, lambda o: lr_scheduler.StepLR(o, step_size=1, gamma=0.3))
    world.train(2)
    versions = []
    for step in (2, 3):
        versions.append([raw(p) for p in world.parameters])
        world.undo.apply(world.update(step, scale=0.5), speculative=True)
    present = world.bits()
    for step, version in ((2, versions[0]), (3, versions[1]), (2, versions[0])):
        old = world.undo.old(step)
        assert old is not None
        assert [raw(tensor) for tensor in old] == version
    assert world.bits() == present
    world.undo.take_back(3)
    assert [raw(p) for p in world.parameters] == versions[1]
    assert world.undo.old(4) is None
    world.undo.take_back(2)
    assert [raw(p) for p in world.parameters] == versions[0]


@each_optimizer
def test_a_parameter_without_gradient_stays_out_of_it(factory):
    world = World(factory)
    world.train(1)
    versions = []
    for step, unused in ((1, 0), (2, 1)):
        versions.append(world.bits())
        world.undo.apply(world.update(step, unused=unused), speculative=True)
    old = world.undo.old(1)
    assert old is not None
    assert [raw(tensor) for tensor in old] == [versions[0][str(i)] for i in range(len(SHAPES))]
    for step in (2, 1):
        world.undo.take_back(step)
        assert world.bits() == versions.pop()


@pytest.mark.parametrize("name", ["SGD nesterov", "AdamW", "AdamW fused"])
def test_a_parameter_may_lie_in_memory_in_any_order(name):
    torch.manual_seed(4)
    image = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    world = World(OPTIMIZERS[name], parameters=[image, torch.randn(6, 4).t()])
    assert not any(p.is_contiguous() for p in world.parameters)
    world.train(2)
    before, strides = world.bits(), [p.stride() for p in world.parameters]
    world.undo.apply(world.update(2), speculative=True)
    old = world.undo.old(2)
    assert old is not None
    assert [raw(tensor) for tensor in old] == [before["0"], before["1"]]
    assert [tensor.stride() for tensor in old] == strides, "kernels follow the order in memory"
    world.undo.take_back(2)
    assert world.bits() == before


def test_a_step_that_is_left_out_is_a_step_too():
    world = World(OPTIMIZERS["AdamW"])
    before = world.bits()
    world.undo.apply(Update(0, None), speculative=True)
    old = world.undo.old(0)
    assert old is not None
    assert [raw(tensor) for tensor in old] == [before[str(i)] for i in range(len(SHAPES))]
    world.undo.take_back(0)
    assert world.bits() == before
    assert world.undo.old(0) is None


def test_a_stage_without_parameters_has_nothing_to_undo():
    stage = StageOptimizer([], [], OPTIMIZERS["AdamW"], None)
    undo = InverseRollback(stage, keeps_old=True)
    reduced = conclude(FastGradients(FlatLayout(())), torch.zeros(0), touched=(), nonfinite=False)
    undo.apply(Update(0, reduced), speculative=True)
    assert undo.old(0) == ()
    undo.take_back(0)


# --- the inverse alone ---


def flat_of(tensor: Tensor) -> np.ndarray:
    return DEVICE.to_host(tensor).reshape(-1).numpy()


def estimates(world: World, update: Update) -> Iterator[tuple[str, Tensor, np.ndarray]]:
    """Of the first parameter and its state: what was there, and what the inverse makes of it."""
    before = DEVICE.host_copy(world.parameters[0])
    state = {n: DEVICE.host_copy(v) for n, v in world.optimizer.state_of(0).items()}
    world.optimizer.step(update.step, update.gradients(), update.scale)
    now = world.optimizer.state_of(0)
    inverse = inverse_of(world.optimizer.group_of(0), now)
    flats = {n: flat_of(now[n]) for n in inverse.names if n in now}
    gradient = update.gradients()[0]
    assert gradient is not None
    flat, new = flat_of(gradient), flat_of(world.parameters[0])
    yield "parameter", before, inverse.parameter(new, flat, flats)
    for name, values in flats.items():
        exact = before.reshape(-1).numpy()
        yield name, state[name], inverse.state(name, values, flat, exact)


LEAST_EXACT = {"parameter": 0.95, "momentum_buffer": 0.5, "exp_avg": 0.5, "exp_avg_sq": 0.5}


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "small betas" not in name])
def test_the_inverse_alone_is_exact_for_most_elements_and_near_for_the_rest(name):
    """With small betas a step forgets more."""
    world = World(OPTIMIZERS[name])
    world.train(20)
    for part, before, estimate in estimates(world, world.update(20)):
        expected = before.reshape(-1).numpy()
        share = (estimate.view(np.int32) == expected.view(np.int32)).mean()
        assert share > LEAST_EXACT[part], f"{part}: {share:.3f}"
        assert np.allclose(estimate, expected, rtol=1e-4, atol=1e-6), part


# --- where the inverse is of no use ---


def all_of(world: World, value: float) -> list[Tensor]:
    return [torch.full(p.shape, value) for p in world.parameters]


@each_optimizer
@pytest.mark.parametrize(
    ("size_before", "size"),
    [(0.1, 10.0), (1e-4, 0.1), (1e-4, 1e3), (0.1, 1e-30), (1e-42, 1e-42), (1e-3, 1e18)],
    ids=["spike x100", "early x1000", "x10 million", "vanishing", "denormal", "near overflow"],
)
def test_an_ill_conditioned_step_is_undone_exactly(factory, size_before, size):
    world = World(factory)
    world.train(3, size_before)
    before = world.bits()
    world.undo.apply(world.update(3, size), speculative=True)
    world.undo.take_back(3)
    assert world.bits() == before


@each_optimizer
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 3e38, math.inf, -math.inf, math.nan])
def test_a_gradient_of_extremes_is_undone_exactly_and_estimated_without_nan(factory, value):
    world = World(factory)
    world.train(2)
    before = world.bits()
    update = world.given(2, all_of(world, value))
    world.undo.apply(update, speculative=True)
    world.undo.take_back(2)
    assert world.bits() == before
    for name, _, estimate in estimates(world, update):
        assert np.isfinite(estimate).all(), name


@pytest.mark.parametrize("name", ["SGD", "SGD nesterov", "AdamW", "AdamW fused"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 3e38, math.inf, math.nan])
def test_a_parameter_of_extremes_is_undone_exactly(name, value):
    world = World(OPTIMIZERS[name], parameters=[torch.full((70,), value)])
    for step in range(2):
        before = world.bits()
        world.undo.apply(world.update(step), speculative=True)
        world.undo.take_back(step)
        assert world.bits() == before
        world.optimizer.step(step, world.update(step).gradients())


@pytest.mark.parametrize("name", ["SGD decay", "AdamW"])
def test_a_schedule_that_comes_to_a_product_of_one_costs_a_copy_and_no_bit(name):
    def schedule(optimizer: optim.Optimizer) -> lr_scheduler.LRScheduler:
        base = optimizer.param_groups[0]["lr"]
        return lr_scheduler.LambdaLR(optimizer, lambda step: 10.0 / base if step == 2 else 1.0)

    world = World(OPTIMIZERS[name], schedule)
    world.train(2)
    before = world.bits()
    copied = world.undo.num_copied
    world.undo.apply(world.update(2), speculative=True)
    assert world.undo.num_copied > copied, "nothing was copied: this test proves nothing"
    world.undo.take_back(2)
    assert world.bits() == before


def test_a_learning_rate_of_zero_is_undone():
    world = World(OPTIMIZERS["AdamW"], lambda o: lr_scheduler.LambdaLR(o, float))
    before = world.bits()
    world.undo.apply(world.update(0), speculative=True)
    assert world.bits() != before
    world.undo.take_back(0)
    assert world.bits() == before


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-45, 3e38, 1.0, -1e-3])


@pytest.mark.parametrize(
    "name", ["SGD decay", "SGD momentum", "SGD nesterov", "Adam decay", "AdamW"]
)
@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 6),
    data=st.data(),
)
def test_whatever_the_numbers_are_the_bits_come_back(name, size, data):
    some = st.lists(NUMBERS, min_size=size, max_size=size).map(torch.tensor)
    world = World(OPTIMIZERS[name], parameters=[data.draw(some)])
    for step in range(2):
        world.optimizer.step(step, world.given(step, [data.draw(some)]).gradients())
    before = world.bits()
    world.undo.apply(world.given(2, [data.draw(some)]), speculative=True)
    world.undo.take_back(2)
    assert world.bits() == before


# --- what it holds ---


def big(name: str, *, num_parameters: int = 8) -> World:
    generator = torch.Generator().manual_seed(2)
    parameters = [torch.randn(100_000, generator=generator) for _ in range(num_parameters)]
    world = World(OPTIMIZERS[name], parameters=parameters)
    world.train(10)
    return world


@pytest.mark.parametrize("name", ["SGD momentum", "Adam", "AdamW fused"])
def test_less_than_a_byte_a_parameter_is_kept_beside_the_gradient(name):
    world = big(name)
    numel, update = 800_000, world.update(10)
    world.undo.apply(update, speculative=True)
    speculative = world.undo.kept_bytes(update.reduced)
    assert 0 < speculative < numel
    assert world.undo.kept_bytes(None) == speculative + 4 * world.layout.numel
    world.undo.committed(10)
    assert 0 < world.undo.kept_bytes(update.reduced) < 0.2 * numel, "the state is final"
    later = world.update(11)
    world.undo.apply(later, speculative=True)
    assert world.undo.kept_bytes(later.reduced) > 4 * world.layout.numel, "an older gradient"
    world.undo.committed(11)
    assert world.undo.kept_bytes(later.reduced) < 0.2 * numel
    world.undo.restart()
    assert world.undo.kept_bytes(None) == 0


def test_the_most_that_is_held_is_that_of_a_chunk_not_of_all_parameters(monkeypatch):
    peaks = []
    for chunk_bytes in (400_000, 100 << 20):
        monkeypatch.setattr(inverse_rollback, "CHUNK_BYTES", chunk_bytes)
        world = big("AdamW fused")
        world.undo.apply(world.update(10), speculative=True)
        peaks.append(world.undo.peak_bytes)
    one_copy = 3 * 4 * 800_000
    assert peaks[0] < one_copy / 3 < one_copy < peaks[1]


def test_without_trust_no_state_is_kept():
    trusting, waiting = big("AdamW"), big("AdamW")
    for world, speculative in ((trusting, True), (waiting, False)):
        world.undo.apply(world.update(10), speculative=speculative)
    assert waiting.undo.kept_bytes(None) < trusting.undo.kept_bytes(None)
    assert waiting.undo.old(10) is not None


def test_a_stage_that_nobody_asks_keeps_nothing_unless_on_trust():
    world = World(OPTIMIZERS["AdamW"], keeps_old=False)
    world.undo.apply(world.update(0), speculative=False)
    assert (world.undo.steps, world.undo.kept_bytes(None)) == ([], 0)


# --- what is refused ---


class Own(optim.SGD):
    pass


def hooked(given: Sequence[nn.Parameter]) -> optim.Optimizer:
    optimizer = optim.SGD(given, lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (partial(optim.Adam, amsgrad=True), r"Adam has amsgrad=True.*running maximum"),
        (partial(optim.AdamW, betas=(0.0, 0.9)), r"AdamW has betas=\[0\.0, 0\.9\]"),
        (partial(optim.AdamW, betas=(0.9, 0.0)), r"AdamW has betas=\[0\.9, 0\.0\]"),
        (partial(optim.SGD, lr=2.0, weight_decay=0.5), r"SGD has lr=2 and weight_decay=0\.5"),
        (partial(optim.AdamW, lr=2.0, weight_decay=0.5), r"AdamW has lr=2 and weight_decay=0\.5"),
        (partial(optim.SGD, differentiable=True), r"SGD is differentiable=True"),
        (optim.RMSprop, r"RMSprop is none of torch\.optim\.SGD, Adam and AdamW"),
        (optim.NAdam, r"NAdam is none of"),
        (partial(Own, lr=0.1), r"Own is none of"),
        (hooked, r"SGD has step hooks"),
    ],
)  # fmt: skip
def test_what_cannot_be_undone_is_refused_with_a_cure(factory, why):
    with pytest.raises(ConfigError, match=why) as refused:
        World(factory)
    assert str(refused.value).endswith("; set recovery.consistency=keep-old")
    assert "\n" not in str(refused.value)


def test_parameters_in_low_precision_are_refused():
    with pytest.raises(ConfigError, match=r"torch\.bfloat16: expected torch\.float32.*keep-old"):
        World(OPTIMIZERS["AdamW"], parameters=[torch.zeros(3, dtype=torch.bfloat16)])


def test_every_group_is_looked_at():
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    groups = [{"params": [first]}, {"params": [second], "amsgrad": True}]
    with pytest.raises(ConfigError, match="amsgrad"):
        check_undoable(optim.Adam(groups))


@each_optimizer
def test_what_can_be_undone_is_accepted(factory):
    check_undoable(factory([nn.Parameter(torch.zeros(2))]))


@pytest.mark.parametrize(
    "factory",
    [
        partial(optim.SGD, lr=2.0, weight_decay=0.5, momentum=0.9),
        partial(optim.Adam, lr=2.0, weight_decay=0.5),
    ],
    ids=["SGD momentum", "Adam"],
)
def test_a_product_of_one_is_no_hindrance_where_nothing_is_divided_by_it(factory):
    world = World(factory)
    world.train(2)
    before = world.bits()
    world.undo.apply(world.update(2), speculative=True)
    assert world.undo.num_copied == 0
    world.undo.take_back(2)
    assert world.bits() == before
