"""Copies in memory: going back to one gives the bits that were there, as often as it is needed."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from holdfast.baselines.memory_commit import MemoryCommits
from holdfast.baselines.worker_registry import KEEPING, keeping_of
from holdfast.config import RunConfig, config_from
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients
from holdfast.runtime.stage.stage import Stage
from holdfast.runtime.state.stage_state import StageState
from holdfast.runtime.update.optimizer import StageOptimizer


def decaying(optimizer):
    return LambdaLR(optimizer, lambda step: 1 / (1 + step))


class Trained:
    """One layer with a buffer that takes Adam steps."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.layers = {0: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))}
        self.stage = Stage(
            list(self.layers.values()),
            first_layer=0,
            seed=0,
            unpack=False,
            loss=None,
            loss_scale=1.0,
        )
        self.parameters = [slot.parameter for slot in self.stage.slots]
        keys = [slot.key for slot in self.stage.slots]
        self.optimizer = StageOptimizer(
            self.parameters, keys, lambda p: torch.optim.AdamW(p, lr=0.1), decaying
        )
        gradients = ExactGradients(FlatLayout.of(self.parameters, keys), 4)
        self.state = StageState(self.layers, self.stage.slots, self.optimizer, gradients)
        self.version = 0

    def step(self) -> None:
        generator = torch.Generator().manual_seed(self.version)
        shapes = [parameter.shape for parameter in self.parameters]
        drawn = [torch.randn(shape, generator=generator) for shape in shapes]
        self.optimizer.step(self.version, drawn)
        self.layers[0][1].running_mean += 0.1 * self.version
        self.state.choose_exponents([float(g.abs().max()) for g in drawn])
        self.version += 1


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def commits_of(trained: Trained, every: int, num_steps: int):
    commits = MemoryCommits(trained.state, every, 0)
    states = {0: trained.state.tensors()}
    for _ in range(num_steps):
        trained.step()
        commits.committed(trained.version)
        states[trained.version] = trained.state.tensors()
    return commits, states


def test_the_newest_two_are_kept() -> None:
    commits, _ = commits_of(Trained(), 1, 5)
    assert commits.versions == [4, 5]


def test_only_every_so_many_steps_are_copied() -> None:
    commits, _ = commits_of(Trained(), 3, 8)
    assert commits.versions == [3, 6]


def test_the_state_before_the_first_step_is_kept_too() -> None:
    commits, _ = commits_of(Trained(), 3, 2)
    assert commits.versions == [0]


def test_restored_parameters_buffers_optimizer_and_exponents_have_the_same_bits() -> None:
    trained = Trained()
    commits, states = commits_of(trained, 1, 5)
    commits.restore(4)
    assert same(trained.state.tensors(), states[4])
    assert commits.versions == [4]


def test_a_copy_can_be_restored_again_after_training_went_on_from_it() -> None:
    trained = Trained()
    commits, states = commits_of(trained, 1, 5)
    for _ in range(2):
        commits.restore(4)
        trained.version = 4
        trained.step()
        assert same(trained.state.tensors(), states[5])
    commits.restore(4)
    assert same(trained.state.tensors(), states[4])


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_steps_that_are_done_again_have_the_learning_rate_that_they_had() -> None:
    trained = Trained()
    commits, states = commits_of(trained, 3, 5)
    commits.restore(3)
    trained.version = 3
    for version in (4, 5):
        trained.step()
        assert same(trained.state.tensors(), states[version])


def test_a_state_from_outside_makes_older_copies_void() -> None:
    trained = Trained()
    commits, _ = commits_of(trained, 2, 5)
    commits.restart(17)
    assert commits.versions == [17]


def test_only_the_mode_that_needs_copies_keeps_some() -> None:
    state = Trained().state
    kept = {mode: keeping_of(with_mode(mode)).copies(state, 3).versions for mode in KEEPING}
    assert {mode for mode, versions in kept.items() if versions} == {"commit"}
    assert kept["commit"] == [3]


def with_mode(mode: str) -> RunConfig:
    log = {"log": "boundary"} if mode == "swift" else {}
    return config_from({"recovery": {"mode": mode, **log}})


def test_the_bytes_of_all_copies_are_counted() -> None:
    trained = Trained()
    commits, states = commits_of(trained, 1, 3)
    sizes = [sum(tensor.nbytes for tensor in states[v].values()) for v in range(4)]
    assert commits.copied_bytes == sum(sizes)
