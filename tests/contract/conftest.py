"""What several contract tests share."""

import random
from collections.abc import Iterator

import numpy
import pytest
import torch

from helpers.harness.stages_in_turns import Calm, Makers, makers_in, undisturbed
from helpers.seed import seed_number


def seed_all(purpose: str) -> None:
    random.seed(seed_number(purpose))
    numpy.random.seed(seed_number(purpose))
    torch.manual_seed(seed_number(purpose))


seed_all("while tests are collected")  # some draw their cases then


@pytest.fixture(scope="module", autouse=True)
def same_numbers_for_shared_fixtures(request: pytest.FixtureRequest) -> None:
    seed_all(request.node.name)


@pytest.fixture(autouse=True)
def same_numbers_each_time(request: pytest.FixtureRequest) -> None:
    """What a test draws without a generator of its own depends on no other test."""
    seed_all(request.node.name)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Bits depend on the number of compute threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> Makers:
    return makers_in(tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def calm(makers: Makers) -> Calm:
    """Of workers that keep copies."""
    return undisturbed(makers)
