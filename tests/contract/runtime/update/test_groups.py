"""Groups of parameters: by name, empty on a stage, with schedules of their own; as a plain loop."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import LambdaLR

from helpers import loop_job
from holdfast.runtime.job.naming import first_keys, make_optimizer, takes_names
from holdfast.runtime.job.traits import job_traits
from holdfast.runtime.update.inverse_rollback import InverseRollback
from holdfast.runtime.update.optimizer import StageOptimizer
from holdfast.runtime.update.rollback import SnapshotRollback

NUM_STEPS = 4
SHAPES = {"0.weight": (3, 2), "0.bias": (3,), "1.norm.weight": (2,)}
KINDS = {
    "SGD": partial(optim.SGD, lr=0.1, momentum=0.9),
    "Adam": partial(optim.Adam, lr=0.1),
    "AdamW fused": partial(optim.AdamW, lr=0.1, fused=True),
    "AdamW foreach": partial(optim.AdamW, lr=0.1, foreach=True),
    "Adafactor": partial(optim.Adafactor, lr=0.1),
    "NAdam": partial(optim.NAdam, lr=0.1),
    "Rprop": partial(optim.Rprop, lr=0.1),
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _as_in_a_worker() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield


def parameters(keys=SHAPES) -> dict[str, nn.Parameter]:
    made = {}
    for number, (key, shape) in enumerate(SHAPES.items()):
        generator = torch.Generator().manual_seed(number)
        made[key] = nn.Parameter(torch.randn(shape, generator=generator))
    return {key: made[key] for key in keys}


def gradients(step: int, keys=SHAPES) -> list[Tensor]:
    made = {}
    for number, (key, shape) in enumerate(SHAPES.items()):
        generator = torch.Generator().manual_seed(100 * step + number)
        made[key] = torch.randn(shape, generator=generator)
    return [made[key] for key in keys]


def by_name(kind, named_parameters):
    weights = [p for name, p in named_parameters if name == "0.weight"]
    others = [p for name, p in named_parameters if name != "0.weight"]
    extra = {"weight_decay": 0.3} if "Rprop" not in str(kind) else {}
    return kind([{"params": weights, **extra}, {"params": others, "lr": 0.01}])


def schedule(optimizer):
    return LambdaLR(optimizer, [lambda t: 0.5**t, lambda t: 1.0 + t])


def staged(kind, keys) -> dict[str, nn.Parameter]:
    own = parameters(keys)
    stage = StageOptimizer(
        list(own.values()),
        list(own),
        lambda given: by_name(kind, list(zip(own, given, strict=True))),
        schedule,
    )
    for step in range(NUM_STEPS):
        stage.step(step, gradients(step, keys))
    return own


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_stages_with_and_without_a_group_have_the_bits_of_a_plain_loop(kind):
    plain = parameters()
    optimizer = by_name(kind, list(plain.items()))
    follow = schedule(optimizer)
    for step in range(NUM_STEPS):
        for parameter, gradient in zip(plain.values(), gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()
        follow.step()
    for keys in (["0.weight"], ["0.bias", "1.norm.weight"], list(SHAPES)):
        for key, parameter in staged(kind, keys).items():
            assert torch.equal(parameter, plain[key]), (keys, key)


@pytest.mark.parametrize("rollback", [SnapshotRollback, InverseRollback])
def test_a_stage_with_an_empty_group_can_be_taken_back(rollback):
    own = parameters(["0.bias"])
    stage = StageOptimizer(
        list(own.values()), list(own), lambda p: by_name(KINDS["Adam"], [("0.bias", *p)]), schedule
    )
    assert [len(group["params"]) for group in stage.plain.param_groups] == [0, 1]
    rollback(stage, keeps_old=True)  # refuses none of it


def test_names_are_asked_for_by_the_name_of_the_first_parameter():
    assert takes_names(loop_job.grouped)
    assert takes_names(lambda named_parameters, lr=1: None)
    assert not takes_names(lambda parameters: None)
    assert not takes_names(optim.AdamW)
    assert not takes_names(min)


def test_twins_have_the_name_of_the_first_and_models_their_own_names():
    twins = [((0, "weight"), (4, "head.weight"))]
    assert first_keys(["3.bias", "4.head.weight"], twins) == ("3.bias", "0.weight")
    job = replace(loop_job.job(), optimizer=lambda named_parameters: seen.append(named_parameters))
    object.__setattr__(job, "own_names", {"0.weight": "embedding.weight"})
    seen, parameter = [], nn.Parameter(torch.ones(1))
    make_optimizer(job, ("0.weight", "2.bias"), [parameter, parameter])
    assert [name for name, _ in seen[0]] == ["embedding.weight", "2.bias"]


def test_which_parameter_is_in_which_group_is_told():
    def traits(optimizer) -> dict[str, str]:
        job = replace(loop_job.job(), optimizer=optimizer)
        return job_traits(job, __file__, "")

    def swapped(named_parameters):
        kinds = {".bias": "norm", "norm": ".bias"}
        named = [(kinds.get(name[-5:], name), p) for name, p in named_parameters]
        return loop_job.grouped(named[::-1])

    told = traits(loop_job.grouped)
    assert told["Job.optimizer, lr of group 2"] == "0.05"
    assert told["Job.optimizer, parameters of group 2"].startswith("1, ")
    key = "Job.optimizer, parameters of group 0"
    assert told[key] != traits(swapped)[key]
    assert not any("param_names" in name for name in traits(optim_of_pairs))


def optim_of_pairs(named_parameters):
    return optim.AdamW(named_parameters, lr=0.1)
