"""The order of an epoch's samples, and what a job may say about it."""

import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import SequentialSampler, WeightedRandomSampler

from holdfast.data.batches import Batches
from holdfast.data.order import SampleOrder
from holdfast.errors import ConfigError, DataError
from holdfast.job import Job


@settings(max_examples=60, deadline=None)
@given(num_samples=st.integers(1, 1500), key=st.integers(0, 2**64 - 1))
def test_every_sample_has_one_place(num_samples, key):
    order = SampleOrder(num_samples, key)
    assert sorted(order[place] for place in range(num_samples)) == list(range(num_samples))


@pytest.mark.parametrize("num_samples", [5, 300])
def test_all_orders_are_about_as_likely(num_samples):
    """A sample's place, and the distance of two neighbours, over many keys: chi-square."""
    keys = 20 * num_samples
    pairs = [(order[0], order[1]) for order in (SampleOrder(num_samples, k) for k in range(keys))]
    apart = [(second - first) % num_samples - 1 for first, second in pairs]
    for found, kinds in (([first for first, _ in pairs], num_samples), (apart, num_samples - 1)):
        counts = torch.bincount(torch.tensor(found), minlength=kinds).double()
        mean = keys / kinds
        chi_square = float(((counts - mean) ** 2 / mean).sum()) / (kinds - 1)
        assert chi_square < 1 + 5 * (2 / (kinds - 1)) ** 0.5, chi_square


def test_an_order_of_400_million_samples_takes_no_memory():
    tracemalloc.start()
    order = SampleOrder(400_000_000, 3)
    found = [order[place] for place in range(0, 400_000_000, 4_000_001)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(found)) == len(found) == 100
    assert max(found) > 300_000_000
    assert peak < 100_000


class Squares:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(index**2), torch.tensor(index)


def batches(sampler, seed=0):
    job = Job(
        layers=[nn.Identity()],
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD,
        data=Squares(),
        sampler=sampler,
        microbatch_size=5,
    )
    return Batches(job, seed, 2)


def test_a_function_says_the_order_of_each_epoch():
    found = batches(lambda epoch: range(9, -1, -1) if epoch else range(10))
    assert [found.indices(step, m) for step in range(2) for m in range(2)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [9, 8, 7, 6, 5],
        [4, 3, 2, 1, 0],
    ]


def test_a_sampler_of_torch_draws_the_same_wherever_it_is_asked():
    weights = [1.0] * 5 + [0.0] * 5

    def drawn(seed, used):
        sampler = WeightedRandomSampler(weights, 10)
        if used:
            list(sampler)
        found = batches(sampler, seed)
        return [found.indices(step, m) for step in (3, 0) for m in range(2)]

    assert drawn(1, used=False) == drawn(1, used=True)
    assert drawn(1, used=False) != drawn(2, used=False)
    assert {index for part in drawn(1, used=False) for index in part} <= set(range(5))
    assert batches(SequentialSampler(Squares())).indices(0, 1) == [5, 6, 7, 8, 9]


class WithEpoch:
    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch] * 10)


def test_a_sampler_is_told_the_epoch():
    assert batches(WithEpoch()).indices(2, 0) == [2] * 5


def test_a_sampler_that_is_wrong_is_refused():
    with pytest.raises(ConfigError, match=r"^Job.sampler is a int: expected a function"):
        batches(3)
    with pytest.raises(ConfigError, match=r"^Job.sampler gives no sample for epoch 0"):
        batches(lambda epoch: []).indices(0, 0)
    with pytest.raises(ConfigError, match=r"gives 9 samples for epoch 1 and 10 for epoch 0"):
        batches(lambda epoch: range(10 - epoch)).indices(1, 0)
    with pytest.raises(DataError, match=r"^Job.sampler raised ZeroDivisionError for epoch 0"):
        batches(lambda epoch: [1 // epoch]).indices(0, 0)
    with pytest.raises(DataError, match=r"^Job.sampler raised TypeError for epoch 0"):
        batches(lambda epoch: ["a"]).indices(0, 0)
