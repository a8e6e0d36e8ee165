"""Modules that are traced: their layers compute what they compute. What cannot be is told."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import pipe_split

from helpers.as_plain import assert_close, layered_results, results, run
from helpers.traced_models import MODELS, UNet, job
from holdfast.adaptors.examples import first_inputs
from holdfast.adaptors.kept_traces import KeptTraces
from holdfast.errors import ConfigError
from holdfast.job import Job, own_name
from holdfast.runtime.stage.ties import untie


def job_of(model: object, width: int = 4, **fields: object) -> Job:
    usual = {
        "model": model,
        "loss": F.mse_loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "data": [(torch.ones(width), torch.ones(width))] * 8,
        "microbatch_size": 2,
    }
    return Job(**usual | fields)


@pytest.mark.parametrize("name", MODELS)
def test_results_gradients_and_buffers_are_those_of_the_model(name):
    torch.manual_seed(0)
    made = job([name])
    plain = deepcopy(made.model)
    inputs = first_inputs(made.data, made.microbatch_size, None)
    torch.manual_seed(1)  # dropout draws in the same order
    output, state = results(plain(*inputs), plain)
    ours, our_state = layered_results(made, inputs)
    assert torch.equal(ours, output)
    assert len(made.layers) >= 4
    written = {name for name in state if "running" in name or "tracked" in name}
    assert bool(written) == (name == "resnet")
    assert_close(state, our_state)


def test_the_layers_hold_the_tensors_of_the_model_and_know_their_names():
    made = job(["towers"])
    own = dict(made.model.named_parameters(remove_duplicate=False))
    held = {
        own_name(made, f"{number}.{name}"): tensor
        for number, layer in enumerate(made.layers)
        for name, tensor in layer.named_parameters()
    }
    assert held.keys() == dict(made.model.named_parameters()).keys()
    assert all(own[name] is tensor for name, tensor in held.items())
    assert len(untie(list(made.layers))[1]) == 1  # words and head, in the first and last layer


def test_dropout_draws_anew_in_every_forward():
    made = job(["towers"])
    inputs = first_inputs(made.data, made.microbatch_size, None)
    assert not torch.equal(run(made.layers, inputs)[0], run(made.layers, inputs)[0])


def test_what_skips_layers_is_handed_through_them():
    made = job(["unet"])
    (inputs,) = first_inputs(made.data, made.microbatch_size, None)
    values, crossing = (inputs,), []
    for layer in made.layers:
        result = layer(*values)
        values = result if isinstance(result, tuple) else (result,)
        crossing.append(len(values))
    assert crossing == [2, 3, 2, 1, 1, 1]


def test_it_is_cut_before_the_submodules_that_are_named():
    data = [(torch.ones(3, 8, 8), torch.ones(10))]
    made = job_of(UNet(), data=data, split_points=["down.2", "out"])
    names = [{name.split(".")[1] for name, _ in one.named_parameters()} for one in made.layers]
    assert names == [{"down"}, {"down", "up"}, {"out"}]
    assert "down.2" not in {
        n.rpartition(".")[0] for n, _ in made.layers[0].piece.named_parameters()
    }


class Again(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x):
        x = self.part(x)
        pipe_split()
        return self.part(x)


def test_a_module_that_is_called_twice_is_one_parameter_in_two_layers():
    made = job_of(Again(nn.Linear(4, 4)))
    ties = untie(list(made.layers))[1]
    assert [len(tie.members) for tie in ties] == [2, 2]


def test_a_buffer_that_two_layers_would_write_to_is_refused():
    with pytest.raises(ConfigError, match=r"writes to its buffer part\.\w+ in more"):
        job_of(Again(nn.BatchNorm1d(4)))


class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # the line
            return x * 2
        return -x


class Number(nn.Module):
    def forward(self, x):
        largest = x.max().item()  # the line
        x = x * 2
        pipe_split()
        return x * largest


class Dictionary(nn.Module):
    def forward(self, x):
        return {"logits": x * 2}


def line_of(model: type) -> int:
    text = Path(__file__).read_text().splitlines()
    start = text.index(f"class {model.__name__}(nn.Module):")
    return next(at for at in range(start, len(text)) if "# the line" in text[at]) + 1


def test_a_module_that_cannot_be_traced_is_told_with_its_line(capfd):
    with pytest.raises(ConfigError) as told:
        job_of(Branches())
    assert capfd.readouterr() == ("", ""), "torch's own pages"
    line = f"Branches) cannot be traced at {__file__}:{line_of(Branches)} (if x.sum() > 0:"
    assert line in str(told.value)
    assert "\n" not in str(told.value)
    assert told.value.exit_code == 2


def test_a_number_that_would_cross_a_cut_is_told_with_its_line():
    with pytest.raises(ConfigError, match="only tensors cross a cut") as told:
        job_of(Number())
    assert re.search(rf'{Path(__file__).name}", line {line_of(Number)}\b', str(told.value))


@pytest.mark.parametrize(
    ("model", "fields", "told"),
    [
        (Dictionary(), {}, "Job.model (Dictionary) returns a dict: expected a tensor"),
        ([nn.Linear(4, 4)], {}, "Job.model is a list: expected a torch module"),
        (nn.LazyLinear(4), {}, "Job.model is a LazyLinear whose weight has no shape yet"),
        (UNet(), {"layers": [nn.ReLU()]}, "Job.layers and Job.model are both given"),
        (UNet(), {"split_points": "down.1"}, "Job.split_points='down.1': expected a list"),
        (UNet(), {"split_points": ["low"]}, "'low' is no submodule of Job.model (UNet)"),
        (UNet(), {"example_inputs": "x"}, "a part of Job.example_inputs is a str"),
        (None, {}, "Job.layers is empty: expected at least one torch module, or any"),
        (None, {"split_points": ["a"]}, "Job.split_points is given without Job.model"),
        (nn.Sequential(nn.ReLU()), {"split_points": ["0"]}, "a Sequential is cut into its layers"),
    ],
)
def test_a_bad_model_is_one_line(model, fields, told):
    with pytest.raises(ConfigError) as why:
        job_of(model, **fields)
    assert told in str(why.value)
    assert why.value.exit_code == 2


def test_a_split_point_that_computes_nothing_is_refused():
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    model.forward = lambda x: model["used"](x)
    with pytest.raises(ConfigError, match="'unused' computes nothing in the forward"):
        job_of(model, split_points=["unused"])


def test_inputs_of_another_size_are_refused():
    made = job_of(Again(nn.Linear(4, 4)))
    with pytest.raises(ConfigError) as told:
        made.layers[0](torch.ones(3, 4))
    expected = "was traced with float32 [2, 4], and a micro-batch has float32 [3, 4]"
    assert expected in str(told.value)


def test_example_inputs_take_the_place_of_the_data():
    made = job_of(Again(nn.Linear(4, 4)), example_inputs=torch.ones(7, 4))
    assert made.layers[0](torch.ones(7, 4)).shape == (7, 4)


class Endless:
    def __iter__(self):
        while True:
            yield torch.ones(4), torch.ones(4)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_stream_is_not_moved_on_to_trace():
    with pytest.raises(ConfigError, match=r"stream \(Endless\): expected Job.example"):
        job_of(Again(nn.Linear(4, 4)), data=Endless())
    made = job_of(Again(nn.Linear(4, 4)), data=Endless(), example_inputs=torch.ones(2, 4))
    assert len(made.layers) == 2


def test_a_sequential_is_its_own_list_of_layers():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    made = job_of(model)
    assert made.layers is model
    assert own_name(made, "0.weight") == "0.weight"


def test_threads_of_a_run_trace_once_and_share_no_parameter(monkeypatch):
    counted = []
    export = torch.export.export

    def counting(*arguments):
        counted.append(1)
        return export(*arguments)

    monkeypatch.setattr(torch.export, "export", counting)
    with KeptTraces().used_here():
        one, other = job(["functional"]), job(["functional"])
    assert len(counted) == 1
    for made in (one, other):
        own = {id(parameter) for parameter in made.model.parameters()}
        assert {id(p) for layer in made.layers for p in layer.parameters()} == own
