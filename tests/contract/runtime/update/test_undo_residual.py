"""Estimate and residual give back every bit, and the residual is as small as it can be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from holdfast.runtime.update.residual import BLOCK, WHOLE, Floats, Residual, correct, residual_of

SPECIAL = [0x00000000, -0x80000000, 0x7F800000, -0x00800000, 0x7FC00000, -1, 1, 0x007FFFFF]
ANY_BITS = st.integers(-(2**31), 2**31 - 1) | st.sampled_from(SPECIAL)


def restored(before: Floats, estimate: Floats) -> tuple[Floats, Residual]:
    residual = residual_of(before, estimate)
    values = estimate.copy()
    correct(values, residual)
    return values, residual


def floats(bits: np.ndarray) -> Floats:
    return bits.astype(np.int32).view(np.float32)


def assert_same_bits(found: Floats, expected: Floats) -> None:
    assert found.tobytes() == expected.tobytes()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 40).flatmap(lambda n: hnp.arrays(np.int32, (2, n), elements=ANY_BITS)))
def test_any_bits_come_back_from_any_estimate(both):
    before, estimate = floats(both[0]), floats(both[1])
    assert_same_bits(restored(before, estimate)[0], before)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.int32, n, elements=ANY_BITS),
            hnp.arrays(
                np.int64,
                n,
                elements=st.sampled_from([0, 0, 0, 1, -1, 2, 7, -7, 8, -8, 127, -127, -128, 128])
                | st.integers(-(2**31), 2**31 - 1),
            ),
        )
    )
)
def test_small_and_large_differences_may_be_mixed(bits_and_differences):
    bits, differences = bits_and_differences
    before = floats(bits)
    estimate = floats((bits + differences).astype(np.int32))
    assert_same_bits(restored(before, estimate)[0], before)


@pytest.mark.parametrize("size", [0, 1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
@pytest.mark.parametrize("largest", [0, 1, 7, 127, 10**6])
def test_borders_of_blocks_do_not_matter(size, largest):
    random = np.random.default_rng(size + largest)
    before = random.standard_normal(size).astype(np.float32)
    differences = random.integers(-largest, largest + 1, size)
    estimate = floats(before.view(np.int32) + differences)
    assert_same_bits(restored(before, estimate)[0], before)


def near(share: float, largest: int, size: int = 4096) -> tuple[Floats, Floats]:
    """A tensor, and an estimate that is off in a share of its elements by up to so many ulp."""
    random = np.random.default_rng(7)
    before = random.uniform(1, 2, size).astype(np.float32)
    sizes = random.integers(1, largest + 1, size) * random.choice([-1, 1], size)
    return before, floats(before.view(np.int32) + sizes * (random.random(size) < share))


@pytest.mark.parametrize(
    ("share", "largest", "bits", "most"),
    [
        (0.0, 1, 0, 0.0),
        (0.01, 100, 0, 0.05),
        (0.5, 1, 2, 0.26),
        (0.8, 7, 4, 0.51),
        (0.9, 127, 8, 1.01),
        (1.0, 2**30, WHOLE, 4.0),
    ],
    ids=["nothing", "few", "one ulp", "some ulp", "many ulp", "no likeness"],
)
def test_each_form_is_used_where_it_is_the_smallest(share, largest, bits, most):
    before, estimate = near(share, largest)
    values, residual = restored(before, estimate)
    assert_same_bits(values, before)
    assert residual.table[:, 0].tolist() == [bits]
    assert residual.payload.size <= most * before.size
    assert residual.is_copied == (bits == WHOLE)


def test_blocks_choose_for_themselves():
    good, bad = near(0.0, 1, BLOCK), near(1.0, 2**30, BLOCK)
    before, estimate = (np.concatenate([a, b]) for a, b in zip(good, bad, strict=True))
    values, residual = restored(before, estimate)
    assert_same_bits(values, before)
    assert residual.table[:, 0].tolist() == [0, WHOLE]
    assert residual.payload.size == 4 * BLOCK


def test_both_zeros_and_neighbours_across_zero_are_a_step_apart():
    before = np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)
    estimate = np.array([-0.0, 0.0, 0.0, -0.0], np.float32)
    values, residual = restored(before, estimate)
    assert_same_bits(values, before)
    assert residual.payload.size == 1, "each is one step away: two bits"


def test_what_is_given_is_only_read():
    before, estimate = near(0.5, 100)
    copies = before.copy(), estimate.copy()
    residual_of(before, estimate)
    assert_same_bits(before, copies[0])
    assert_same_bits(estimate, copies[1])
