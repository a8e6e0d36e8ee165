"""A step that is over is run once more for others: with its own weights, and nobody notices.

Micro-batches of the next step are in flight meanwhile, on the same layers.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.cluster import WorkerId
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients
from holdfast.runtime.reduce.reduction import conclude
from holdfast.runtime.reduce.step_sums import StepSums
from holdfast.runtime.reduce.verdict import Verdict, VerdictExchange
from holdfast.runtime.stage.named_tensors import state_tensors
from holdfast.runtime.stage.stage import Stage
from holdfast.runtime.update.commit import CommitPhase, StageCommit, StepResult
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.transport.base import Channel, Tag
from holdfast.transport.local.transport import LocalHub, LocalTransport

ME, PEER = WorkerId(0, 1), WorkerId(0, 0)
LIMIT_S = 20.0
MICROBATCHES, WIDTH = 3, 8
GOOD, BAD = Verdict(1.0, None, False), Verdict(9.0, 0.5, False)

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "AdamW": partial(optim.AdamW, lr=0.1),
    "Adam decay": partial(optim.Adam, lr=0.1, weight_decay=0.1),
    "AdamW fused": partial(optim.AdamW, lr=0.1, fused=True),
    "SGD momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "SGD foreach": partial(optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "SGD nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
}

pytestmark = pytest.mark.usefixtures("one_thread")


class OneStage:
    """Stage 1 of two, alone; steps are reduced over itself."""

    consistency = "keep-old"
    dtype = torch.float32

    def __init__(self, optimizer: str) -> None:
        torch.manual_seed(3)
        norm = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3))
        self.layers = {2: norm, 3: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))}
        for layer in self.layers.values():
            layer.to(self.dtype)
        self.stage, self.again = self._stage(), self._stage()
        parameters = [slot.parameter for slot in self.stage.slots]
        keys = [slot.key for slot in self.stage.slots]
        self.gradients = ExactGradients(FlatLayout.of(parameters, keys), MICROBATCHES)
        self.stage.sink = self.gradients
        self.optimizer = StageOptimizer(parameters, keys, OPTIMIZERS[optimizer], None, masters=True)
        shapes = {
            f"{number}.{name}": buffer.shape
            for number, layer in self.layers.items()
            for name, buffer in layer.named_buffers()
        }
        self.sums = StepSums(MICROBATCHES, shapes, is_last=False)
        self.transport = LocalTransport(ME, LocalHub())
        self.commit = StageCommit(
            self.optimizer,
            self.stage,
            self.layers,
            (True,) * len(parameters),
            consistency=self.consistency,
        )

    def _stage(self) -> Stage:
        return Stage(list(self.layers.values()), first_layer=2, seed=7)

    def commit_step(self, verdict: Verdict, step: int) -> None:
        holders, known = [[PEER], [ME]], {step: verdict}
        heard = VerdictExchange(ME, 1, holders, self.transport, None, known, timeout_s=LIMIT_S)
        self.commit.commit_step(heard)

    def forward(self, step: int, microbatch: int) -> Tensor:
        (output,) = self.stage.forward(step, microbatch, (data(step, microbatch),), split=True)
        self.sums.add(self.stage.take_buffer_changes(microbatch))
        return output

    def backward(self, step: int, microbatch: int) -> Tensor | None:
        (gradient,) = self.stage.backward_input(microbatch, (data(step, microbatch + 50),))
        self.stage.backward_weight(microbatch)
        return gradient

    def reduce(self, step: int) -> None:
        flat = torch.zeros(self.gradients.layout.numel)
        for slot in range(len(self.stage.slots)):
            layout = self.gradients.layout
            exponent = self.gradients.exponents[slot]
            total = layout.padded(self.gradients.flat, slot)
            spill = self.gradients.spilled(slot)
            self.gradients.round_into(layout.padded(flat, slot), total, exponent, spill)
        reduced = conclude(self.gradients, flat, touched=self.gradients.touched, nonfinite=False)
        tag = Tag(Channel.RESULT, step)
        totals = self.sums.totals([ME], ME, self.transport, tag, LIMIT_S)
        self.commit.accept(StepResult(step, 0, reduced, totals))
        self.gradients.clear()
        self.sums.clear()

    def run_step(self, step: int) -> dict[int, tuple[bytes, bytes]]:
        """All micro-batches: what each sent forwards and backwards."""
        sent = {}
        for microbatch in range(MICROBATCHES):
            output = self.forward(step, microbatch)
            sent[microbatch] = (bits(output), bits(self.backward(step, microbatch)))
        self.reduce(step)
        return sent

    def rerun(self, step: int, microbatch: int) -> tuple[bytes, bytes]:
        with self.commit.old_weights(step):
            (output,) = self.again.forward(step, microbatch, (data(step, microbatch),), split=True)
        self.again.take_buffer_changes(microbatch)
        with self.commit.old_weights(step):
            given = (data(step, microbatch + 50),)
            (gradient,) = self.again.backward_input(microbatch, given)
        self.again.drop(microbatch)
        return bits(output), bits(gradient)

    def state(self) -> dict[str, bytes]:
        tensors = state_tensors(self.layers) | self.optimizer.state_tensors()
        return {key: bits(tensor) for key, tensor in tensors.items()}


@pytest.fixture(autouse=True, params=["keep-old", "undo"])
def consistency(request, monkeypatch) -> str:
    """Every promise holds however a step is taken back."""
    monkeypatch.setattr(OneStage, "consistency", request.param)
    return request.param


def data(step: int, microbatch: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + microbatch)
    return torch.randn(5, WIDTH, generator=generator).to(OneStage.dtype)


def bits(tensor: Tensor | None) -> bytes:
    assert tensor is not None
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def apply(stage: OneStage, step: int, how: str) -> None:
    """Three ways to come from reduced to the next step."""
    if how == "on trust":
        stage.commit.apply_speculatively()
        return
    if how != "settled":
        stage.commit.apply_speculatively()
    stage.commit_step(BAD if how == "taken back" else GOOD, step)


HOW = ["on trust", "settled", "trusted and settled", "taken back"]


def come_to_step_2(optimizer: str, how: str) -> tuple[OneStage, dict[int, tuple[bytes, bytes]]]:
    """Step 0 makes momenta and running means that are not those of the start."""
    stage = OneStage(optimizer)
    stage.run_step(0)
    apply(stage, 0, "settled")
    sent = stage.run_step(1)
    apply(stage, 1, how)
    return stage, sent


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_run_again_gives_the_bits_it_gave_while_the_next_one_is_in_flight(optimizer, how):
    stage, sent = come_to_step_2(optimizer, how)
    stage.forward(2, 0)
    stage.forward(2, 2)
    assert {m: stage.rerun(1, m) for m in (2, 0, 1)} == sent
    assert {m: stage.rerun(1, m) for m in (0, 1)} == {m: sent[m] for m in (0, 1)}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_present_state_and_the_micro_batches_in_flight_do_not_notice(optimizer, how):
    calm, _ = come_to_step_2(optimizer, how)
    stage, _ = come_to_step_2(optimizer, how)
    sent = {}
    outputs = [bits(stage.forward(2, m)) for m in range(MICROBATCHES)]
    before = stage.state()
    stage.rerun(1, 1)
    assert stage.state() == before
    sent[0] = (outputs[0], bits(stage.backward(2, 0)))
    (gradient,) = stage.stage.backward_input(1, (data(2, 51),))  # halfway through its backward
    stage.rerun(1, 0)
    stage.stage.backward_weight(1)
    stage.rerun(1, 2)
    sent |= {1: (outputs[1], bits(gradient)), 2: (outputs[2], bits(stage.backward(2, 2)))}
    if how == "on trust":  # nothing is reduced before the step before is committed
        for one in (stage, calm):
            one.commit_step(GOOD, 1)
    stage.reduce(2)
    assert sent == calm.run_step(2)
    for one in (stage, calm):
        apply(one, 2, "settled")
    assert stage.state() == calm.state()


@pytest.mark.parametrize("how", HOW)
def test_parameters_in_bf16_are_those_that_their_masters_were_rounded_to(monkeypatch, how):
    monkeypatch.setattr(OneStage, "dtype", torch.bfloat16)
    stage, sent = come_to_step_2("AdamW", how)
    assert {m: stage.rerun(1, m) for m in range(MICROBATCHES)} == sent


def test_old_weights_do_differ_from_the_present_ones():
    stage, sent = come_to_step_2("AdamW", "settled")
    other = stage._stage()
    (output,) = other.forward(1, 0, (data(1, 0),), split=True)
    assert bits(output) != sent[0][0], "the step changed nothing: these tests prove nothing"


def test_before_a_step_is_applied_its_old_weights_are_the_present_ones():
    stage = OneStage("AdamW")
    stage.run_step(0)
    apply(stage, 0, "settled")
    sent = stage.run_step(1)
    assert stage.commit.phase is CommitPhase.REDUCED
    assert {m: stage.rerun(1, m) for m in range(MICROBATCHES)} == sent


@pytest.mark.parametrize("how", ["settled", "trusted and settled", "taken back"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_can_be_run_again_until_the_following_one_is_settled(optimizer, how):
    stage, sent = come_to_step_2(optimizer, how)
    sent_2 = stage.run_step(2)
    assert stage.rerun(1, 0) == sent[0]
    stage.commit.apply_speculatively()
    assert stage.commit.oldest == 1
    assert stage.rerun(1, 1) == sent[1]
    assert stage.rerun(2, 1) == sent_2[1]
    assert stage.rerun(1, 2) == sent[2]
    stage.commit_step(GOOD, 2)
    assert stage.commit.oldest == 2
    assert stage.rerun(2, 0) == sent_2[0]


def test_running_again_does_not_change_how_the_step_on_trust_is_taken_back():
    stage, sent = come_to_step_2("AdamW", "settled")
    calm, _ = come_to_step_2("AdamW", "settled")
    for one in (stage, calm):
        one.run_step(2)
        one.commit.apply_speculatively()
    assert stage.rerun(1, 1) == sent[1]
    for one in (stage, calm):
        one.commit_step(BAD, 2)
    assert stage.state() == calm.state()


def test_an_error_while_running_again_puts_the_present_weights_back():
    stage, _ = come_to_step_2("AdamW", "settled")
    before = stage.state()
    present = [slot.parameter.data_ptr() for slot in stage.stage.slots]
    with pytest.raises(RuntimeError, match="half-way"), stage.commit.old_weights(1):
        raise RuntimeError("half-way")
    assert stage.state() == before
    assert [slot.parameter.data_ptr() for slot in stage.stage.slots] == present
