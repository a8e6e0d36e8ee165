"""A stage's optimizer against a plain torch loop: every bit, forwards, backwards and resumed."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

from helpers.harness.where import DEVICE, trained
from holdfast.errors import CheckpointError, ConfigError
from holdfast.runtime.update.optimizer import StageOptimizer

Factory = Callable[..., optim.Optimizer]
SHAPES = ((4, 3), (5,), (), (2, 1, 2))
KEYS = tuple(f"{layer}.weight" for layer in range(len(SHAPES)))
NUM_STEPS = 6

OPTIMIZERS: dict[str, Factory] = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD weight decay": partial(optim.SGD, lr=0.1, weight_decay=0.01),
    "SGD momentum": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1),
    "SGD nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "SGD nesterov foreach": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD fused": partial(optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adam": partial(optim.Adam, lr=0.1),
    "Adam amsgrad": partial(optim.Adam, lr=0.1, amsgrad=True),
    "Adam fused": partial(optim.Adam, lr=0.1, fused=True),
    "AdamW": partial(optim.AdamW, lr=0.1),
    "AdamW foreach": partial(optim.AdamW, lr=0.1, foreach=True),
    "AdamW fused": partial(optim.AdamW, lr=0.1, fused=True),
    "Adagrad": partial(optim.Adagrad, lr=0.1),
    "RMSprop": partial(optim.RMSprop, lr=0.1),
    "RMSprop centered": partial(optim.RMSprop, lr=0.1, momentum=0.9, centered=True),
    "Adamax": partial(optim.Adamax, lr=0.1),
    "NAdam": partial(optim.NAdam, lr=0.1),
    "RAdam": partial(optim.RAdam, lr=0.1),
    "Adadelta": partial(optim.Adadelta, lr=0.1),
    "ASGD": partial(optim.ASGD, lr=0.1, t0=2),
    "Adafactor": partial(optim.Adafactor, lr=0.1),
    "Rprop": partial(optim.Rprop, lr=0.1),
    "Rprop foreach": partial(optim.Rprop, lr=0.1, foreach=True),
}
SCHEDULES: dict[str, Callable[[optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0 / (1 + step)),
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.3),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=20),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.7)],
        milestones=[3],
    ),
}

each_optimizer = pytest.mark.parametrize("factory", OPTIMIZERS.values(), ids=OPTIMIZERS)
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


@pytest.fixture(autouse=True)
def _as_in_a_worker() -> Iterator[None]:
    """The LR schedule follows the step's number, so it may move before the first step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def bits(tensors: Sequence[Tensor]) -> list[tuple[torch.dtype, bytes]]:
    flat = [DEVICE.to_host(t).contiguous().reshape(-1) for t in tensors]
    return [(t.dtype, t.view(torch.uint8).numpy().tobytes()) for t in flat]


def state_bits(stage: StageOptimizer) -> dict[str, tuple[torch.dtype, bytes]]:
    tensors = stage.state_tensors()
    return dict(zip(tensors, bits(list(tensors.values())), strict=True))


def make(factory: Factory, schedule=None, dtype: torch.dtype = torch.float32):
    own = trained(parameters(dtype))
    return own, StageOptimizer(own, KEYS, factory, schedule, place=DEVICE.place)


def plain_loop(factory: Factory, schedule=None, dtype: torch.dtype = torch.float32) -> list:
    """What anyone would write with torch alone."""
    own = trained(parameters(dtype))
    optimizer = factory(own)
    follow = schedule(optimizer) if schedule else None
    for step in range(NUM_STEPS):
        for parameter, gradient in zip(own, gradients(step), strict=True):
            parameter.grad = DEVICE.place(gradient.to(dtype))
        optimizer.step()
        if follow is not None:
            follow.step()
    return bits(own)


@each_optimizer
def test_steps_give_the_bits_of_a_plain_loop(factory):
    own, stage = make(factory)
    before = bits(own)
    for step in range(NUM_STEPS):
        stage.step(step, gradients(step))
    assert bits(own) != before
    assert bits(own) == plain_loop(factory)


@each_schedule
@pytest.mark.parametrize("name", ["SGD momentum", "AdamW", "AdamW fused"])
def test_the_learning_rate_follows_the_schedule_as_in_a_plain_loop(name, schedule):
    own, stage = make(OPTIMIZERS[name], schedule)
    for step in range(NUM_STEPS):
        stage.step(step, gradients(step))
    assert bits(own) == plain_loop(OPTIMIZERS[name], schedule)
    assert bits(own) != plain_loop(OPTIMIZERS[name]), "the schedule changed nothing"


@pytest.mark.parametrize("name", ["SGD momentum", "AdamW", "AdamW fused", "Adagrad"])
def test_bf16_parameters_get_a_gradient_rounded_to_bf16(name):
    own, stage = make(OPTIMIZERS[name], dtype=torch.bfloat16)
    for step in range(NUM_STEPS):
        stage.step(step, gradients(step))
    assert bits(own) == plain_loop(OPTIMIZERS[name], dtype=torch.bfloat16)


@each_optimizer
def test_the_layout_of_a_parameter_in_memory_does_not_show(factory):
    """Gradients and loaded state come as contiguous tensors, whatever the parameter is."""

    def trained(memory_format: torch.memory_format) -> Tensor:
        torch.manual_seed(2)
        parameter = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=memory_format))
        saved: dict[str, Tensor] = {}
        for step in range(3):
            stage = StageOptimizer([parameter], ["0.weight"], factory, None)
            stage.load_state_tensors({key: value.contiguous() for key, value in saved.items()})
            stage.step(step, [torch.randn(2, 3, 4, 4)])
            saved = stage.state_tensors()
        return parameter.detach()

    found, expected = trained(torch.channels_last), trained(torch.contiguous_format)
    assert found.stride() != expected.stride()
    torch.testing.assert_close(found, expected)


@each_optimizer
@pytest.mark.parametrize("steps_before", [0, 2])
def test_restore_returns_every_bit_and_the_step_done_again_gives_the_same(factory, steps_before):
    own, stage = make(factory, SCHEDULES["CosineAnnealingLR"])
    for step in range(steps_before):
        stage.step(step, gradients(step))
    before = bits(own), state_bits(stage)
    snapshot = stage.snapshot(steps_before)
    stage.step(steps_before, gradients(steps_before))
    after = bits(own), state_bits(stage)
    assert after != before
    for _ in range(2):  # a snapshot can be used more than once
        stage.restore(snapshot)
        assert (bits(own), state_bits(stage)) == before
        stage.step(steps_before, gradients(steps_before))
        assert (bits(own), state_bits(stage)) == after


@each_optimizer
@pytest.mark.parametrize("steps_before", [0, 1, 3])
def test_state_loaded_into_a_fresh_optimizer_goes_on_bit_for_bit(factory, steps_before):
    own, stage = make(factory, SCHEDULES["StepLR"])
    for step in range(steps_before):
        stage.step(step, gradients(step))
    saved = stage.state_tensors()
    resumed, fresh = make(factory, SCHEDULES["StepLR"])
    with torch.no_grad():
        for new, old in zip(resumed, own, strict=True):
            new.copy_(old)
    fresh.load_state_tensors(saved)
    assert state_bits(fresh) == state_bits(stage)
    for step in range(steps_before, NUM_STEPS):
        fresh.step(step, gradients(step))
    assert bits(resumed) == plain_loop(factory, SCHEDULES["StepLR"])


def test_saved_state_is_a_copy_that_later_steps_do_not_touch():
    _, stage = make(OPTIMIZERS["AdamW"])
    stage.step(0, gradients(0))
    saved = stage.state_tensors()
    before = {key: value.clone() for key, value in saved.items()}
    stage.step(1, gradients(1))
    assert all(torch.equal(saved[key], before[key]) for key in before)
    assert set(saved) == {f"{k}/{n}" for k in KEYS for n in ("step", "exp_avg", "exp_avg_sq")}


def test_numbers_in_the_state_come_back_as_numbers():
    class Counting(optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0) + 1
                    state["share"] = 1.0 / state["count"]
                    state["warm"] = state["count"] > 1
            super().step(closure)

    made: list[Counting] = []

    def factory(given):
        made.append(Counting(given, lr=0.1))
        return made[-1]

    _, stage = make(factory)
    for step in range(3):
        stage.step(step, gradients(step))
    _, fresh = make(factory)
    fresh.load_state_tensors(stage.state_tensors())
    state = made[1].state[made[1].param_groups[0]["params"][0]]
    assert state == {"count": 3, "share": 1.0 / 3, "warm": True}
    assert [type(state[name]) for name in ("count", "share", "warm")] == [int, float, bool]


def test_single_number_tensors_in_the_state_come_back_as_tensors():
    class Tensors(optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    state["count"] = state.get("count", torch.tensor(0)) + 1
                    state["share"] = torch.tensor(0.1, dtype=torch.float64)
            super().step(closure)

    _, stage = make(partial(Tensors, lr=0.1))
    stage.step(0, gradients(0))
    _, fresh = make(partial(Tensors, lr=0.1))
    fresh.load_state_tensors(stage.state_tensors())
    for state in fresh.snapshot(1).states:
        assert state == {"count": torch.tensor(1), "share": torch.tensor(0.1, dtype=torch.float64)}
        assert [type(value) for value in state.values()] == [Tensor, Tensor]


@each_optimizer
def test_the_gradient_given_is_only_read(factory):
    """It is kept until the step is committed: a step may have to be done again."""
    _, stage = make(factory)
    for step in range(3):
        given = gradients(step)
        stage.step(step, given)
        assert bits(given) == bits(gradients(step))


def test_a_none_gradient_leaves_parameter_and_state_alone():
    own, stage = make(OPTIMIZERS["AdamW"])
    stage.step(0, gradients(0))
    before, state = bits(own), state_bits(stage)
    given: list[Tensor | None] = list(gradients(1))
    given[1] = None
    stage.step(1, given)
    untouched = [key for key in state if key.startswith("1.")]
    assert untouched
    assert bits(own)[1] == before[1]
    assert [state_bits(stage)[key] for key in untouched] == [state[key] for key in untouched]
    assert bits(own)[0] != before[0]


def test_no_gradient_is_left_on_the_parameters():
    own, stage = make(OPTIMIZERS["SGD"])
    stage.step(0, gradients(0))
    assert [parameter.grad for parameter in own] == [None] * len(SHAPES)


def test_a_stage_without_parameters_steps_saves_loads_and_goes_back():
    stage = StageOptimizer([], [], OPTIMIZERS["AdamW"], SCHEDULES["StepLR"])
    snapshot = stage.snapshot(0)
    stage.step(0, [])
    stage.restore(snapshot)
    stage.load_state_tensors(stage.state_tensors())
    assert stage.state_tensors() == {}


def test_a_step_that_was_left_out_still_counts_for_the_schedule():
    own, stage = make(OPTIMIZERS["SGD"], SCHEDULES["StepLR"])
    before = [parameter.detach().clone() for parameter in own]
    stage.step(4, gradients(4))  # StepLR: 0.1 * 0.3 ** 2
    lr = 0.1 * 0.3 * 0.3
    for parameter, old, gradient in zip(own, before, gradients(4), strict=True):
        assert torch.equal(parameter, old.add(DEVICE.place(gradient), alpha=-lr))


def test_lbfgs_is_refused_with_a_cure():
    with pytest.raises(ConfigError, match=r"LBFGS.*e\.g\. AdamW"):
        make(optim.LBFGS)


def test_a_schedule_that_needs_the_loss_is_refused_with_a_cure():
    with pytest.raises(ConfigError, match=r"ReduceLROnPlateau.*e\.g\. LambdaLR"):
        make(OPTIMIZERS["SGD"], lr_scheduler.ReduceLROnPlateau)


@pytest.mark.parametrize(
    "factory",
    [
        lambda given: optim.SGD(list(given)[1:], lr=0.1),
        lambda given: optim.SGD([*given, nn.Parameter(torch.zeros(2))], lr=0.1),
    ],
    ids=["drops one", "adds one"],
)
def test_a_factory_that_takes_other_parameters_is_refused(factory):
    with pytest.raises(ConfigError, match="exactly the parameters it is given"):
        make(factory)


def test_a_factory_that_makes_no_optimizer_is_refused():
    with pytest.raises(ConfigError, match="returned a list: expected a torch"):
        make(list)


def test_parameters_may_be_sorted_into_groups():
    def factory(given):
        given = list(given)
        return optim.AdamW([{"params": given[2:], "weight_decay": 0.0}, {"params": given[:2]}], 0.1)

    own, stage = make(factory)
    for step in range(NUM_STEPS):
        stage.step(step, gradients(step))
    assert bits(own) == plain_loop(factory)


def test_state_of_another_shape_is_refused_by_name():
    _, stage = make(OPTIMIZERS["AdamW"])
    stage.step(0, gradients(0))
    saved = stage.state_tensors()
    saved["0.weight/exp_avg"] = torch.zeros(7)
    _, fresh = make(OPTIMIZERS["AdamW"])
    with pytest.raises(CheckpointError, match=r"0\.weight/exp_avg.*\(7,\).*same job"):
        fresh.load_state_tensors(saved)


def test_state_that_a_checkpoint_cannot_hold_is_refused():
    class Listing(optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["history"] = [1, 2]

    _, stage = make(partial(Listing, lr=0.1))
    stage.step(0, gradients(0))
    with pytest.raises(ConfigError, match="keeps a list, which a checkpoint cannot hold"):
        stage.state_tensors()


# --- in chunks ---


@each_optimizer
@pytest.mark.parametrize("chunk_bytes", [1, 40, 1 << 20])
def test_a_step_in_chunks_gives_the_bits_of_one_call(factory, chunk_bytes):
    own, stage = make(factory, SCHEDULES["StepLR"])
    for step in range(NUM_STEPS):
        stage.step(step, gradients(step), 0.3, chunk_bytes=chunk_bytes)
    expected, whole = make(factory, SCHEDULES["StepLR"])
    for step in range(NUM_STEPS):
        whole.step(step, [gradient * 0.3 for gradient in gradients(step)])
    assert bits(own) == bits(expected)
    assert state_bits(stage) == state_bits(whole)


def test_around_each_chunk_only_its_parameters_change():
    own, stage = make(OPTIMIZERS["AdamW"])
    accumulators = [torch.ones_like(parameter) for parameter in own]
    for parameter, accumulator in zip(own, accumulators, strict=True):
        parameter.grad = accumulator
    changed: list[list[int]] = []

    @contextmanager
    def around(chunk):
        before = bits(own)
        yield
        after = bits(own)
        assert [i for i in range(len(own)) if before[i] != after[i]] == list(chunk)
        changed.append(list(chunk))

    given: list[Tensor | None] = list(gradients(0))
    given[2] = None
    stage.step(0, given, chunk_bytes=50, around=around)
    assert changed == [[0, 1], [3]] or changed == [[0], [1, 3]]
    assert all(p.grad is a for p, a in zip(own, accumulators, strict=True))
    assert all(bool((accumulator == 1).all()) for accumulator in accumulators)


def test_an_error_in_a_step_leaves_the_accumulators_in_place():
    own, stage = make(OPTIMIZERS["SGD"])
    accumulators = [torch.ones_like(parameter) for parameter in own]
    for parameter, accumulator in zip(own, accumulators, strict=True):
        parameter.grad = accumulator

    @contextmanager
    def around(chunk):
        yield
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        stage.step(0, gradients(0), chunk_bytes=1, around=around)
    assert all(p.grad is a for p, a in zip(own, accumulators, strict=True))
