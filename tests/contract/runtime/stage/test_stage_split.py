"""Backward in two parts, in one, and plain autograd leave the same bits, for any module."""

import copy
import gc
import weakref
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from helpers.harness.module_cases import (
    CASES,
    Block,
    Calls,
    Case,
    Embed,
    Sums,
    linear,
    linears,
    same,
)
from helpers.harness.where import DEVICE, ON_TEST_DEVICE, cannot, placed
from holdfast.runtime.stage.precision import FP32, Precision
from holdfast.runtime.stage.seeding import seed_layer
from holdfast.runtime.stage.split import DeferWeights, run_backward
from holdfast.runtime.stage.stage import BoundaryGradients, Stage

MICROBATCHES = range(3)
SEED = 5


pytestmark = pytest.mark.usefixtures("one_thread")


def gradients_for(outputs: tuple[Tensor, ...], microbatch: int) -> BoundaryGradients:
    generator = torch.Generator().manual_seed(7 + microbatch)
    return tuple(
        torch.randn(o.shape, generator=generator).to(o) if o.is_floating_point() else None
        for o in outputs
    )


def make_module(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make()


def make_stage(module: nn.Module, **options: object) -> Stage:
    # Not layer 0, whose input needs no gradient.
    own = {"device": DEVICE, "sink": Sums(), "unpack": True}
    return Stage(placed([module]), first_layer=1, seed=SEED, **own, **options)


def run_plain(
    case: Case, precision: Precision = FP32
) -> tuple[list[BoundaryGradients], dict[int, Tensor]]:
    [module] = placed([make_module(case)])
    parameters = [p for p in module.parameters() if p.requires_grad]
    buffers = copy.deepcopy(dict(module.named_buffers()))
    found: list[BoundaryGradients] = []
    sink = Sums()
    for microbatch in MICROBATCHES:
        for name, buffer in module.named_buffers():
            buffer.data = buffers[name].clone()
        given = map(DEVICE.place, case.inputs(microbatch))
        leaves = [t.requires_grad_(t.is_floating_point()) for t in given]
        seed_layer(SEED, 0, microbatch, 1, device=DEVICE)
        with precision.autocast():
            result = module(*(leaf.clone() for leaf in leaves))
        outputs = (result,) if isinstance(result, Tensor) else tuple(result)
        pairs = zip(outputs, gradients_for(outputs, microbatch), strict=True)
        roots = [(o, g) for o, g in pairs if o.requires_grad]
        torch.autograd.backward([o for o, _ in roots], [g for _, g in roots])
        found.append(tuple(leaf.grad if leaf.grad is None else leaf.grad.cpu() for leaf in leaves))
        for slot, parameter in enumerate(parameters):
            if parameter.grad is not None:
                sink.add(slot, parameter.grad.to_dense())
                parameter.grad = None
    return found, sink.sums


def run_stage(
    case: Case, *, split: bool, whole: bool, **options: object
) -> tuple[list[BoundaryGradients], Sums]:
    stage = make_stage(make_module(case), **options)
    found: list[BoundaryGradients] = []
    for microbatch in MICROBATCHES:
        outputs = stage.forward(0, microbatch, case.inputs(microbatch), split=split)
        backward = stage.backward if whole else stage.backward_input
        found.append(backward(microbatch, gradients_for(outputs, microbatch)))
    for microbatch in () if whole else MICROBATCHES:
        stage.backward_weight(microbatch)
    assert stage.in_flight == 0
    assert isinstance(stage.sink, Sums)
    return found, stage.sink


def check_equal(
    plain: tuple[list[BoundaryGradients], dict[int, Tensor]],
    found: tuple[list[BoundaryGradients], Sums],
) -> None:
    for expected, got in zip(plain[0], found[0], strict=True):
        for one, other in zip(expected, got, strict=True):
            absent = one is None and other is not None and other.numel() == 0
            assert absent or same(one, other)
    assert plain[1].keys() == found[1].sums.keys()
    assert all(same(plain[1][slot], found[1].sums[slot]) for slot in plain[1])
    assert all(number <= len(MICROBATCHES) for number in found[1].num_added.values())


# What the test device cannot do: its kernels and its autocast are few, and torch's checkpoints
# do not find its random numbers.
NOT_THERE = {
    "positions added inside",  # on the host
    "own checkpoints",
    "reentrant checkpoints",
    "lstm",
    "gru",
    "mixture of experts",
    "bf16 block",
    "bf16 weight used three times",
    "sparse embedding",
}
HERE = [case for case in CASES if not (ON_TEST_DEVICE and case.name in NOT_THERE)]


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.name)
def test_split_and_whole_backward_have_the_bits_of_autograd(case: Case) -> None:
    plain = run_plain(case)
    check_equal(plain, run_stage(case, split=False, whole=True))
    check_equal(plain, run_stage(case, split=True, whole=False))
    check_equal(plain, run_stage(case, split=True, whole=True))  # planned to split, then not
    check_equal(plain, run_stage(case, split=False, whole=False))  # the other way round


@cannot(reason="it has no code generator")
# torch's compiler looks at .grad of inner tensors, and is warned of it by torch.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_compiled_module_has_the_bits_of_autograd_too() -> None:
    case = Case("compiled gpt block", lambda: torch.compile(Block(), backend="aot_eager"))
    plain = run_plain(case)
    check_equal(plain, run_stage(case, split=False, whole=True))
    check_equal(plain, run_stage(case, split=True, whole=False))


CHECKPOINTABLE = [case for case in HERE if case.name != "input written in place"]


@pytest.mark.parametrize("case", CHECKPOINTABLE, ids=lambda case: case.name)
def test_checkpointing_changes_no_bit(case: Case) -> None:
    plain = run_plain(case)
    for split, whole in ((False, True), (True, False)):
        found = run_stage(case, split=split, whole=whole, checkpoint_activations=True)
        check_equal(plain, found)


# torch's own kernels, or the module itself, refuse mixed types.
NOT_UNDER_AUTOCAST = {"lstm", "mixture of experts", "own autograd function"}
LOW_PRECISION = [case for case in CHECKPOINTABLE if case.name not in NOT_UNDER_AUTOCAST]


@cannot(reason="its autocast knows few operators, and casts a weight anew each time")
@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("case", LOW_PRECISION, ids=lambda case: case.name)
def test_in_low_precision_no_bit_depends_on_splitting_or_checkpointing(
    case: Case, name: Literal["bf16", "fp16"]
) -> None:
    precision = Precision.of(name, DEVICE.kind)
    plain = run_plain(case, precision)
    for split, again in ((False, False), (True, False), (False, True), (True, True)):
        found = run_stage(
            case,
            split=split,
            whole=not split,
            checkpoint_activations=again,
            autocast=precision.autocast,
        )
        check_equal(plain, found)


def halfway(module: nn.Module, x: Tensor) -> Stage:
    """A stage after a split backward's first part."""
    stage = make_stage(module)
    outputs = stage.forward(0, 0, (x,), split=True)
    stage.backward_input(0, gradients_for(outputs, 0))
    return stage


def first_part(module: nn.Module, x: Tensor) -> tuple[set[str], set[str]]:
    """Whose weights it leaves for later, and whose it computes."""
    names = [name for name, _ in module.named_parameters()]
    mode = DeferWeights({id(p): slot for slot, p in enumerate(module.parameters())})
    with mode:
        y = module(x.clone().requires_grad_(x.is_floating_point()))
    mode.deferred.deferring = True
    run_backward(mode, (y,), gradients_for((y,), 0))
    computed = {name for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return {names[slot] for piece in mode.deferred.pieces for slot in piece.slots}, computed


def test_every_weight_of_a_gpt_stage_waits_for_the_second_part() -> None:
    for module, x in (
        (Block(dropout=0.1), torch.randn(2, 8, 32)),
        (nn.Sequential(Embed(), Block(fused=False)), torch.zeros(2, 8, dtype=torch.int64)),
    ):
        deferred, computed = first_part(module, x)
        assert deferred == {name for name, _ in module.named_parameters()}
        assert not computed
        stage = halfway(module, x)
        assert not stage.sink.sums
        stage.backward_weight(0)
        assert set(stage.sink.num_added.values()) == {1}


def test_what_is_not_recognised_is_computed_in_the_first_part() -> None:
    module = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    deferred, computed = first_part(module, torch.randn(2, 8, 32))
    assert "linear1.weight" in deferred
    assert "self_attn.in_proj_weight" in computed
    assert not deferred & computed


@cannot(reason="parameters are swapped on their way to it, and lose their hooks")
def test_a_parameter_with_a_hook_stays_with_autograd() -> None:
    module = nn.Sequential(linear(), linear())
    module[0].weight.register_hook(lambda gradient: gradient * 2)
    twin = copy.deepcopy(module)
    twin[0].weight.register_hook(lambda gradient: gradient * 2)
    x = torch.randn(4, 32)
    deferred, _ = first_part(module, x)
    assert deferred == {"1.weight", "1.bias"}
    stage = halfway(module, x)
    stage.backward_weight(0)
    twin(x).backward(gradients_for((x,), 0)[0])
    assert same(stage.sink.sums[0], twin[0].weight.grad)


def test_reading_a_weights_shape_does_not_keep_it_from_waiting() -> None:
    module = Calls(
        lambda m, x: m.a(x) * m.a.weight.shape[0] + m.a.weight.detach().sum(), **linears(1)
    )
    deferred, _ = first_part(module, torch.randn(4, 32))
    assert deferred == {"a.weight", "a.bias"}


class InPlace(Sums):
    """A sink whose accumulators are the parameters' own gradients."""

    native = True

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.flat = [torch.zeros_like(slot.parameter) for slot in stage.slots]
        for slot, sums in zip(stage.slots, self.flat, strict=True):
            slot.parameter.grad = sums

    def add(self, slot: int, gradient: Tensor) -> None:
        super().add(slot, gradient)
        self.flat[slot].add_(gradient)


def test_a_native_sink_gets_whole_gradients_from_autograd_and_split_ones_by_hand() -> None:
    results = []
    for split in (False, True):
        torch.manual_seed(0)
        stage = make_stage(Block())
        stage.sink = InPlace(stage)
        for microbatch in MICROBATCHES:
            x = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(microbatch))
            (y,) = stage.forward(0, microbatch, (x,), split=split)
            if split:
                stage.backward_input(microbatch, (y,))
                stage.backward_weight(microbatch)
            else:
                stage.backward(microbatch, (y,))
        assert bool(stage.sink.num_added) == split
        assert all(s.parameter.grad is f for s, f in zip(stage.slots, stage.sink.flat, strict=True))
        results.append(stage.sink.flat)
    assert all(same(whole, split) for whole, split in zip(*results, strict=True))


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise ValueError("on purpose")


@pytest.mark.parametrize("split", [False, True])
def test_a_backward_that_fails_leaves_the_parameters_gradients_alone(split: bool) -> None:
    module = Calls(lambda m, x: m.b(Failing.apply(m.a(x))), **linears(2))
    kept = torch.ones(32, 32)
    module.a.weight.grad = kept
    stage = make_stage(module)
    (y,) = stage.forward(0, 0, (torch.randn(4, 32),), split=split)
    backward = stage.backward_input if split else stage.backward
    with pytest.raises(ValueError, match="on purpose"):
        backward(0, (y,))
    assert module.a.weight.grad is kept
    assert module.b.weight.grad is None
    assert stage.in_flight == 0
    assert not stage.sink.sums


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("checkpoint_activations", [False, True])
def test_a_finished_micro_batch_leaves_nothing_behind(
    split: bool, checkpoint_activations: bool
) -> None:
    seen: list[weakref.ref[Tensor]] = []

    def watch(m: nn.Module, x: Tensor) -> Tensor:
        hidden = m.a(x)
        seen.append(weakref.ref(hidden))
        return m.b(hidden.tanh())

    stage = make_stage(Calls(watch, **linears(2)), checkpoint_activations=checkpoint_activations)
    gc.disable()  # memory must go at once, not when the collector comes by
    try:
        for microbatch in range(20):
            (y,) = stage.forward(0, microbatch, (torch.randn(4, 32),), split=split)
            if split:
                stage.backward_input(microbatch, (y,))
                stage.backward_weight(microbatch)
            else:
                stage.backward(microbatch, (y,))
            del y
        assert len(seen) >= 20
        assert [ref for ref in seen if ref() is not None] == []
    finally:
        gc.enable()
    assert stage.in_flight == 0


def test_the_first_part_frees_the_graph_and_keeps_only_what_the_weights_need() -> None:
    kept: dict[str, weakref.ref[Tensor]] = {}

    def watch(m: nn.Module, x: Tensor) -> Tensor:
        before, after = m.a(x), m.a(x).exp()
        kept.update(graph=weakref.ref(before.grad_fn), exp=weakref.ref(after))
        return m.b(before) * after

    stage = make_stage(Calls(watch, **linears(2)))
    (y,) = stage.forward(0, 0, (torch.randn(4, 32),), split=True)
    assert kept["graph"]() is not None
    stage.backward_input(0, (y,))
    assert kept["graph"]() is None
    assert kept["exp"]() is None
    stage.backward_weight(0)
