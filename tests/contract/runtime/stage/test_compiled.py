"""Compiled layers: what is compiled is a function of layer and shapes, not of split or history."""

import os
import shutil
from functools import partial

import pytest
import torch
from torch import nn
from torch._inductor import cpp_builder, exc

from helpers import loop_job
from holdfast.errors import ConfigError
from holdfast.runtime.stage import compiled
from holdfast.runtime.stage.stage import Stage
from holdfast.testing import assert_same_bits, train_in_threads

# torch's compiler looks at what is no leaf, and hides that; here warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


class Graphs:
    """A backend of torch.compile that counts."""

    def __init__(self) -> None:
        self.sizes = []

    def __call__(self, graph, inputs):
        self.sizes.append([list(one.shape) for one in inputs if isinstance(one, torch.Tensor)])
        assert all(isinstance(size, int) for shape in self.sizes[-1] for size in shape)
        return graph.forward


@pytest.fixture
def graphs(monkeypatch):
    torch._dynamo.reset()
    torch.compiler.set_stance("default")  # whatever an earlier run has left
    made = Graphs()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=made))
    yield made
    torch._dynamo.reset()


class Sink:
    native = False

    def __init__(self) -> None:
        self.gradients = {}

    def add(self, slot, gradient):
        self.gradients[slot] = gradient


def step(stage: Stage, inputs, *, split: bool) -> dict:
    stage.sink = Sink()
    [output] = stage.forward(0, 0, (inputs,), split=split)
    gradient = (torch.ones_like(output),)
    if split:
        stage.backward_input(0, gradient)
        assert stage.sink.gradients == {}
        stage.backward_weight(0)
    else:
        stage.backward(0, gradient)
    return stage.sink.gradients


def test_a_split_backward_runs_what_a_whole_one_runs(graphs):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())
    stage = Stage([layer], first_layer=1, compiled=True, checkpoint_activations=False)
    inputs = torch.randn(3, 4)
    whole, split = (step(stage, inputs, split=way) for way in (False, True))
    assert len(graphs.sizes) == 1, "the mode that splits backwards was compiled in"
    assert whole.keys() == split.keys() == {0, 1, 2, 3}
    assert all(torch.equal(whole[slot], split[slot]) for slot in whole)


def test_every_shape_has_a_graph_of_its_own_however_many_there_are(graphs):
    call = compiled.Compiled(nn.Linear(4, 4))
    for size in range(2, 14):  # torch would generalise after the first, and give up after eight
        call(torch.ones(size, 4))
    assert len(graphs.sizes) == 12


def test_the_loss_runs_as_if_nothing_in_it_were_compiled(graphs):
    inner = torch.compile(lambda output, target: (output - target).square().mean())
    stage = Stage([nn.Linear(4, 4)], compiled=True, loss=lambda *given: inner(*given))
    stage.forward(0, 0, (torch.ones(3, 4),), torch.zeros(3, 4))
    assert len(graphs.sizes) == 1  # of the layer
    stage.take_loss(0)


def test_a_machine_without_a_compiler_is_told_in_one_line(monkeypatch):
    def none() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(ConfigError, match=r"^stage\.compile=true: torch finds no C"):
        train_in_threads(loop_job.job, steps=1, config={"stage.compile": True})


@pytest.mark.wide
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler here")
@pytest.mark.skipif("HOLDFAST_TEST_DEVICE" in os.environ, reason="it has no code generator")
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_run_has_the_same_bits_in_every_layout():
    config = {"parallel.microbatches": 4, "stage.compile": True}
    calm = train_in_threads(loop_job.job, steps=3, config=config)
    run = train_in_threads(
        loop_job.job,
        pipelines=2,
        stages=2,
        steps=3,
        faults=["kill 1.1 @ 2.B1"],
        config={**config, "stage.checkpoint_activations": True},
    )
    assert run.summary.num_lost == 1
    assert_same_bits(calm, run)
    plain = train_in_threads(loop_job.job, steps=3, config={"parallel.microbatches": 4})
    assert plain.parameters_sha256 != calm.parameters_sha256
