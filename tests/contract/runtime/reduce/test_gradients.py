"""What the two gradient accumulators promise, and the arithmetic under the exact one."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.errors import ConfigError
from holdfast.runtime.reduce import fixed_point
from holdfast.runtime.reduce.flat_layout import ALIGNMENT, FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients, FastGradients

finite_fp32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
exponents = st.integers(fixed_point.MIN_EXPONENT, fixed_point.MAX_EXPONENT)


pytestmark = pytest.mark.usefixtures("one_thread")


def layout_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> FlatLayout:
    return FlatLayout.of([torch.zeros(shape, dtype=dtype) for shape in shapes])


def rounded(gradients: ExactGradients, slot: int) -> torch.Tensor:
    """A slot's sum as fp32: a reduction of one member, without the messages."""
    total = gradients.layout.padded(gradients.flat, slot)
    out = torch.empty(total.numel())
    spill = gradients.spilled(slot)
    gradients.round_into(out, total, gradients.exponents[slot], spill)
    return out[: gradients.layout.slots[slot].numel]


def test_slots_start_at_multiples_of_the_alignment_and_do_not_overlap():
    layout = layout_of((3, 7), (), (16,), (17,), (0, 4))
    assert [slot.start for slot in layout.slots] == [0, 32, 48, 64, 96]
    assert layout.numel == 96
    assert all(slot.start % ALIGNMENT == 0 for slot in layout.slots)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_a_parameter_that_cannot_be_summed_is_refused_by_name(dtype):
    with pytest.raises(ConfigError, match=r"head\.weight is torch"):
        FlatLayout.of([torch.zeros(2), torch.zeros(3, dtype=dtype)], ["norm.weight", "head.weight"])


@settings(deadline=None)
@given(value=finite_fp32, exponent=exponents, limit_bits=st.integers(40, 62))
def test_a_split_number_is_recovered_exactly_from_its_bins(value, exponent, limit_bits):
    exact = Fraction(value) * Fraction(2) ** exponent
    rows = fixed_point.split(np.array([value], np.float32), exponent, limit_bits)
    if abs(exact) <= 2**limit_bits:
        assert len(rows) == 0
        return
    assert (
        sum(count * 2 ** (fixed_point.BIN_BITS * bin_) for bin_, _, count in rows.tolist()) == exact
    )
    assert all(abs(count) <= 2**limit_bits for count in rows[:, 2].tolist())


@settings(deadline=None)
@given(values=st.lists(finite_fp32, min_size=1, max_size=8), exponent=exponents)
@example(values=[3.4028234663852886e38], exponent=-105)  # rounded up, as far as infinity
def test_an_exact_sum_is_within_rounding_and_resolution_of_the_true_sum(values, exponent):
    gradients = ExactGradients(layout_of(()), num_contributions=8)
    gradients.exponents = [exponent]
    for value in values:
        gradients.add(0, torch.tensor(value))
    true = sum(map(Fraction, values))
    result = rounded(gradients, 0).item()
    resolution, overflows = len(values) * Fraction(2) ** -exponent / 2, 2**128 - 2**103
    if np.isinf(result):
        assert abs(true) + resolution >= overflows
        return
    assert abs(true) - resolution < overflows
    spacing = max(Fraction(2) ** -149, abs(true) / 2**23)
    assert abs(Fraction(result) - true) <= resolution + spacing / 2


def test_a_sum_is_rounded_to_fp32_once():
    # Halfway between two fp32 numbers, plus one unit that is lost on a detour through fp64.
    out = np.empty(1, np.float32)
    fixed_point.round_scaled(out, np.array([2**54 + 2**30 + 1]), 1.0)
    assert out[0] == 2**54 + 2**31
    above_a_tie = np.array([[2, 0, 2**24 + 1]])  # 2**104 + 2**80
    for below, expected in ((1, 2**104 + 2**81), (0, 2**104), (-1, 2**104)):
        fixed_point.round_split(out, np.array([below]), 0, above_a_tie)
        assert out[0] == expected


@settings(deadline=None)
@given(
    largest=st.floats(min_value=2.0**-149, width=32, allow_infinity=False),
    num_contributions=st.integers(1, 2**22),
)
def test_the_next_exponent_leaves_the_headroom_and_wastes_at_most_two_bits(
    largest, num_contributions
):
    exponent = fixed_point.next_exponent(largest, num_contributions)
    assert fixed_point.MIN_EXPONENT <= exponent <= fixed_point.MAX_EXPONENT
    bits_used = Fraction(largest) * num_contributions * 2**10 * Fraction(2) ** exponent
    assert bits_used <= 2**62
    assert exponent == fixed_point.MAX_EXPONENT or bits_used > 2**60


@pytest.mark.parametrize(("largest", "expected"), [(1.0, 46), (0.75, 46), (1.5, 45), (2.0, 45)])
def test_the_next_exponent_follows_the_rule_at_powers_of_two(largest, expected):
    assert fixed_point.next_exponent(largest, num_contributions=64) == expected


def test_a_slot_that_was_zero_or_infinite_keeps_its_exponent():
    gradients = ExactGradients(layout_of((2,), (2,), (2,)), num_contributions=4)
    gradients.exponents = [10, 20, 30]
    assert gradients.next_exponents([0.0, float("inf"), 1.0]) == (10, 20, 50)


def test_exponents_are_checked_and_fixed_within_a_step():
    gradients = ExactGradients(layout_of((2,)), num_contributions=4)
    with pytest.raises(ConfigError, match="2 exponents for 1 slots"):
        gradients.exponents = [1, 2]
    with pytest.raises(ConfigError, match="within"):
        gradients.exponents = [1000]
    gradients.add(0, torch.ones(2))
    with pytest.raises(ValueError, match="clear"):
        gradients.exponents = [40]


@pytest.mark.parametrize("num_contributions", [0, 2**22 + 1])
def test_more_contributions_than_64_bits_can_sum_are_refused(num_contributions):
    with pytest.raises(ConfigError, match="micro-batches a step"):
        ExactGradients(layout_of((2,)), num_contributions)


def test_the_most_contributions_of_the_largest_size_do_not_overflow():
    gradients = ExactGradients(layout_of((1,)), num_contributions=64)
    gradients.exponents = [0]
    largest = 2.0**56
    for _ in range(64):
        gradients.add(0, torch.tensor([largest]))
    assert gradients.spilled(0).numel() == 0
    assert gradients.flat[0] == 2**62


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nonfinite_elements_raise_the_flag_and_add_nothing(bad):
    gradients = ExactGradients(layout_of((3,)), num_contributions=4)
    gradients.add(0, torch.tensor([1.0, bad, 2.0]))
    assert gradients.nonfinite
    assert rounded(gradients, 0).tolist() == [1.0, 0.0, 2.0]
    gradients.clear()
    assert not gradients.nonfinite


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_are_widened_before_they_are_added(dtype):
    gradients = ExactGradients(layout_of((2,), dtype=dtype), num_contributions=4)
    for value in (1.0, 0.001, 0.001):
        gradients.add(0, torch.full((2,), value, dtype=dtype))
    step = torch.tensor(0.001, dtype=dtype).item()
    assert rounded(gradients, 0).tolist() == [np.float32(1 + 2 * step)] * 2


def test_a_gradient_with_strides_lands_element_by_element():
    gradients = ExactGradients(layout_of((2, 3)), num_contributions=4)
    values = torch.arange(6.0).view(3, 2).t()
    gradients.add(0, values)
    assert torch.equal(rounded(gradients, 0).view(2, 3), values)


def test_a_gradient_of_another_shape_is_refused():
    gradients = ExactGradients(layout_of((2, 3)), num_contributions=4)
    with pytest.raises(ValueError, match=r"slot 0 of shape \(2, 3\) got a gradient of \(3, 2\)"):
        gradients.add(0, torch.zeros(3, 2))


def test_clear_forgets_sums_spills_and_touches():
    gradients = ExactGradients(layout_of((2,), (2,)), num_contributions=4)
    gradients.add(1, torch.tensor([1e30, 1.0]))
    assert gradients.touched == (False, True)
    assert gradients.spilled(1).numel() > 0
    gradients.clear()
    assert gradients.touched == (False, False)
    assert gradients.spilled(1).numel() == 0
    assert not gradients.flat.any()


class TwoOfThree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.multiplied_by_zero = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.used(x) + 0.0 * self.multiplied_by_zero).sum()


def test_autograd_accumulates_in_place_and_tells_unused_from_zero():
    torch.manual_seed(0)
    model, plain = TwoOfThree(), TwoOfThree()
    plain.load_state_dict(model.state_dict())
    parameters = list(model.parameters())
    gradients = FastGradients(FlatLayout.of(parameters))
    gradients.attach(parameters)
    for x in torch.randn(3, 4, 3):
        model(x).backward()
        plain(x).backward()
    for slot, (used, expected) in enumerate(
        zip(gradients.touched, plain.parameters(), strict=True)
    ):
        assert used == (expected.grad is not None)
        if expected.grad is not None:
            assert torch.equal(gradients.layout.view(gradients.flat, slot), expected.grad)
    assert sum(gradients.touched) == 2
    gradients.clear()
    assert not any(gradients.touched)
    assert all(not parameter.grad.any() for parameter in parameters)


def test_a_deferred_gradient_joins_what_autograd_has_added():
    weight = nn.Parameter(torch.ones(2))
    gradients = FastGradients(FlatLayout.of([weight]))
    gradients.attach([weight])
    (weight * 3).sum().backward()
    gradients.add(0, torch.tensor([1.0, 2.0]))
    assert weight.grad.tolist() == [4.0, 5.0]
    gradients.clear()
    gradients.add(0, torch.zeros(2))
    assert gradients.touched == (True,)


def test_half_precision_parameters_are_summed_in_fp32_without_autograd():
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    gradients = FastGradients(FlatLayout.of([weight]))
    assert not gradients.native
    with pytest.raises(ValueError, match="fp32 parameters only"):
        gradients.attach([weight])
    for value in (1.0, 0.001):
        gradients.add(0, torch.full((2,), value, dtype=torch.bfloat16))
    assert gradients.flat[0] == np.float32(1) + torch.tensor(0.001).bfloat16().float().item()


@pytest.mark.parametrize("kind", ["exact", "fast"])
def test_measures_agree_with_the_definition_and_show_nonfinite_values(kind):
    layout = layout_of((100_000,))
    gradients = ExactGradients(layout, 4) if kind == "exact" else FastGradients(layout)
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    squares, largest = gradients.measure(values)
    assert squares == pytest.approx(float((values.double() ** 2).sum()), rel=1e-12)
    assert largest == values.abs().max().item()
    assert np.isfinite(gradients.measure(torch.full((16,), 3e38))[0])
    values[77_777] = float("nan")
    assert not np.isfinite(gradients.measure(values)[0])


def test_fast_gradients_do_not_load_numba():
    program = (
        "import sys, torch\n"
        "from holdfast.runtime.reduce.flat_layout import FlatLayout\n"
        "from holdfast.runtime.reduce.gradients import FastGradients\n"
        "import holdfast.runtime.reduce.reduction\n"
        "FastGradients(FlatLayout.of([torch.zeros(3)]))\n"
        "sys.exit('numba' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
