"""Fixed-point sums by torch operations: a million random numbers, beside the processor's kernel."""

import numpy as np
import pytest
import torch

from helpers.harness.where import DEVICE
from holdfast.runtime.reduce import device_sums, fixed_point

NUM = 125_000  # of each of the eight cases
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.17549e-38, 3.4e38, -3.4e38]


def numbers(seed: int) -> np.ndarray:
    """Random bits: all magnitudes alike, one in 128 not finite, one in 128 subnormal."""
    bits = np.random.default_rng(seed).integers(0, 2**32, NUM, dtype=np.uint32)
    return np.concatenate([np.array(SPECIAL, np.float32), bits.view(np.float32)])


@pytest.mark.parametrize("limit_bits", [62, 40])
@pytest.mark.parametrize("exponent", [-128, 0, 44, 149])
def test_sums_and_what_is_left_out_are_those_of_the_kernel(exponent, limit_bits):
    values = numbers(1000 + exponent + limit_bits)
    ours = DEVICE.place(torch.zeros(len(values), dtype=torch.int64))
    its = np.zeros(len(values), np.int64)
    for some in (values, values, values[::-1].copy(), values):
        num = device_sums.add_scaled(
            ours, DEVICE.place(torch.from_numpy(some)), exponent, limit_bits
        )
        assert int(num) == fixed_point.add_scaled(its, some, 2.0**exponent, 2.0**limit_bits) > 0
    assert np.array_equal(DEVICE.to_host(ours).numpy(), its)


def test_numbers_half_way_between_two_go_to_the_even_one():
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])
    sums = torch.zeros(5, dtype=torch.int64)
    device_sums.add_scaled(sums, values, 0, 62)
    assert sums.tolist() == [0, 2, 2, 0, -2]


def test_what_was_left_out_is_told_once_and_a_micro_batch_later():
    sums = device_sums.DeviceSums([torch.zeros(2, dtype=torch.int64)], 40)
    large, small = torch.tensor([2.0**50, 1.0]), torch.ones(2)
    assert sums.add(0, large, 0) == []
    [found] = sums.add(0, small, 0)
    assert (found.slot, found.exponent) == (0, 0)
    assert torch.equal(found.values, large)
    assert sums.left_out() == []
