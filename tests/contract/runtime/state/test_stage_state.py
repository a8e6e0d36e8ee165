"""A stage's state, taken from one worker and given to another: both go on with the same bits."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.errors import CheckpointError
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients, FastGradients
from holdfast.runtime.reduce.loss_scale import LossScale, ScaleState
from holdfast.runtime.stage.slots import ParameterSlot
from holdfast.runtime.state.stage_state import OPTIMIZER, StageState
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.storage.checkpoint import write_part
from holdfast.storage.manifest import Part, load_manifest, partial_directory, seal

pytestmark = pytest.mark.usefixtures("one_thread")


class OneStage:
    def __init__(self, *, seed: int = 0, optimizer=None, fast: bool = False) -> None:
        torch.manual_seed(seed)
        self.layers = {3: nn.Linear(4, 3), 4: nn.BatchNorm1d(3)}
        self.layers[3].register_buffer("table", torch.arange(3.0), persistent=False)
        self.slots = [
            ParameterSlot(number, name, parameter)
            for number, layer in self.layers.items()
            for name, parameter in layer.named_parameters()
        ]
        parameters = [slot.parameter for slot in self.slots]
        keys = [slot.key for slot in self.slots]
        self.gradients = self._gradients(FlatLayout.of(parameters, keys), fast)
        make = optimizer or partial(optim.AdamW, lr=0.1)
        self.optimizer = StageOptimizer(parameters, keys, make, None)
        self.state = StageState(self.layers, self.slots, self.optimizer, self.gradients)

    @staticmethod
    def _gradients(layout: FlatLayout, fast: bool) -> ExactGradients | FastGradients:
        return FastGradients(layout) if fast else ExactGradients(layout, 4)

    def step(self, step: int) -> None:
        """Some gradient, some change of buffers, other exponents."""
        self.state.begin_step()
        generator = torch.Generator().manual_seed(step)
        shapes = [slot.parameter.shape for slot in self.slots]
        given = [torch.randn(shape, generator=generator) for shape in shapes]
        self.optimizer.step(step, given)
        self.layers[4].running_mean += step + 1
        self.state.choose_exponents([10.0 ** (step + i) for i in range(len(given))])

    def bits(self) -> dict[str, bytes]:
        return {key: as_bytes(tensor) for key, tensor in self.state.tensors().items()}


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def trained(num_steps: int = 2, **options) -> OneStage:
    stage = OneStage(**options)
    for step in range(num_steps):
        stage.step(step)
    return stage


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
@pytest.mark.parametrize(
    "optimizer", [partial(optim.AdamW, lr=0.1), partial(optim.SGD, lr=0.1, momentum=0.9)]
)
def test_whoever_loads_a_state_goes_on_with_the_same_bits(optimizer, fast):
    sender = trained(optimizer=optimizer, fast=fast)
    taker = OneStage(seed=9, optimizer=optimizer, fast=fast)
    assert taker.bits() != sender.bits()
    taker.state.load(sender.state.tensors(), "a test")
    assert taker.bits() == sender.bits()
    for stage in (sender, taker):
        stage.step(2)
    assert taker.bits() == sender.bits()


def test_a_state_takes_the_place_of_one_that_was_trained_already():
    sender, taker = trained(), trained(5, seed=4)
    taker.state.load(sender.state.tensors(), "a test")
    assert taker.bits() == sender.bits()


def test_the_state_is_a_copy_that_training_does_not_change():
    stage = trained()
    tensors = stage.state.tensors()
    before = {key: as_bytes(tensor) for key, tensor in tensors.items()}
    stage.step(2)
    assert {key: as_bytes(tensor) for key, tensor in tensors.items()} == before
    assert stage.bits() != before


def test_exponents_hold_for_the_next_step_and_not_before_it_begins():
    stage = OneStage()
    stage.state.begin_step()
    first = stage.gradients.exponents
    stage.gradients.add(0, torch.ones(3, 4))
    stage.state.choose_exponents([1e6] * len(stage.slots))
    assert stage.gradients.exponents == first, "sums of a running step keep their scale"
    stage.state.begin_step()
    chosen = stage.gradients.exponents
    assert chosen != first
    stage.state.begin_step()  # another attempt at the same step
    assert stage.gradients.exponents == chosen


def test_a_step_begins_without_sums():
    stage = OneStage()
    stage.gradients.add(0, torch.ones(3, 4))
    stage.state.begin_step()
    assert not any(stage.gradients.touched)
    assert not stage.gradients.flat.any()


def test_exponents_travel_with_the_state():
    sender, taker = trained(), OneStage(seed=9)
    taker.state.load(sender.state.tensors(), "a test")
    for stage in (sender, taker):
        stage.state.begin_step()
    assert taker.gradients.exponents == sender.gradients.exponents
    assert taker.gradients.exponents != OneStage().gradients.exponents


def test_a_state_that_lacks_an_exponent_is_refused_by_its_origin():
    tensors = trained().state.tensors()
    del tensors["4.bias/exponent"]
    with pytest.raises(CheckpointError, match=r"the state of worker 1\.0 lacks 4\.bias/exponent"):
        OneStage().state.load(tensors, "the state of worker 1.0")


def test_a_state_of_fast_sums_can_be_loaded_by_exact_ones_and_back():
    exact, fast = OneStage(seed=9), trained(fast=True)
    exact.state.load(fast.state.tensors(), "a test")
    assert {k: v for k, v in exact.bits().items() if "exponent" not in k} == fast.bits()
    other = OneStage(seed=8, fast=True)
    other.state.load(exact.state.tensors(), "a test")
    assert other.bits() == fast.bits()


@pytest.mark.parametrize("missing", ["3.weight", "4.running_mean"])
def test_a_state_that_lacks_a_tensor_is_refused(missing):
    tensors = trained().state.tensors()
    del tensors[missing]
    with pytest.raises(CheckpointError, match=f"lacks {missing}"):
        OneStage().state.load(tensors, "a test")


def sealed(stage: OneStage, folder, kind: str):
    directory = partial_directory(folder, 2) / "stage-0"
    files = write_part(directory, stage.state.tensors())
    part = Part("stage-0", tuple(stage.layers), files, {OPTIMIZER: kind})
    return load_manifest(seal(folder, 2, [part], seed=0, microbatches=4))


def test_a_checkpoint_gives_the_same_state_as_a_peer(tmp_path):
    sender, taker = trained(), OneStage(seed=9)
    taker.state.load_checkpoint(sealed(sender, tmp_path, "AdamW"))
    assert taker.bits() == sender.bits()


def test_another_optimizers_checkpoint_is_refused(tmp_path):
    checkpoint = sealed(trained(), tmp_path, "SGD")
    with pytest.raises(CheckpointError, match="was written with SGD, the job has AdamW"):
        OneStage().state.load_checkpoint(checkpoint)


# --- buffers that are no part of a model's state_dict() ---

TABLE = "3.table/not persistent"


def test_a_buffer_that_is_not_persistent_comes_from_building_the_layer():
    assert not [key for key in trained().state.tensors() if "table" in key]
    assert not [key for key in trained().state.live_tensors() if "table" in key]


def test_it_is_state_once_training_has_changed_it():
    sender, taker = trained(), trained(5, seed=4)
    sender.layers[3].table += 1
    assert TABLE in sender.state.tensors()
    assert TABLE in sender.state.live_tensors()
    taker.state.load(sender.state.tensors(), "a test")
    assert taker.bits() == sender.bits()
    assert taker.layers[3].table.tolist() == [1, 2, 3]


def test_a_state_without_it_takes_it_back_to_how_it_was_built():
    stage, before = trained(), OneStage()
    stage.layers[3].table += 1
    stage.state.load(before.state.tensors(), "a test")
    assert stage.bits() == before.bits()
    assert stage.layers[3].table.tolist() == [0, 1, 2]


def test_a_checkpoint_of_an_older_version_has_it_and_can_be_loaded():
    stage = OneStage()
    stage.state.load(trained().state.tensors() | {TABLE: torch.arange(3.0)}, "a test")
    assert stage.bits() == trained().bits()


def test_the_loss_scale_travels_with_the_state_of_every_layer():
    def stage(bits: int) -> tuple[StageState, LossScale]:
        one, scale = OneStage(), LossScale(ScaleState(bits, 7), growth_steps=2000)
        return StageState(one.layers, one.slots, one.optimizer, one.gradients, scale), scale

    (sender, _), (taker, scale) = stage(5), stage(9)
    tensors = sender.tensors()
    taker.load({k: v for k, v in tensors.items() if k != "4./loss_scale"}, "a test")
    assert scale.state == (5, 7)
    plain = OneStage().state
    plain.load(tensors, "a test")  # of a run without: it is of no use there
    assert "3./loss_scale" in tensors.keys() - plain.tensors().keys()
