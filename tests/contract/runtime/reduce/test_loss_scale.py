"""The loss scale: a function of verdicts, and gradients that do not show it."""

import pytest
import torch

from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.gradients import ExactGradients, FastGradients
from holdfast.runtime.reduce.loss_scale import LossScale, ScaleState


def after(skips, first=ScaleState(3), growth_steps=2):  # noqa: B008 - a tuple
    scale = LossScale(first, growth_steps=growth_steps)
    for step, skipped in enumerate(skips):
        scale.note(step, skipped=bool(skipped))
    return scale


@pytest.mark.parametrize(
    ("skips", "expected"),
    [
        ([], (3, 0)),
        ([0], (3, 1)),
        ([0, 0], (4, 0)),
        ([0, 0, 0], (4, 1)),
        ([1], (2, 0)),
        ([0, 1, 0], (2, 1)),  # a row begins anew
        ([1, 1, 1, 1, 1], (0, 0)),  # it is never below 1
    ],
)
def test_it_halves_after_a_skip_and_doubles_after_so_many_good_steps(skips, expected):
    assert after(skips).state == expected


def test_it_stops_growing_at_2_to_the_24():
    assert after([0] * 9, ScaleState(23)).state.bits == 24


def test_a_step_is_taken_for_good_until_more_is_known():
    scale = after([0])
    scale.note(1, skipped=False)  # reduced: the verdict is not here
    assert (scale.bits, scale.at(2)) == (4, 16.0)
    scale.note(1, skipped=True)
    assert (scale.bits, scale.at(2)) == (2, 4.0)


def test_steps_that_may_be_run_again_keep_their_scale():
    scale = after([0, 0, 1, 0])
    assert [scale.at(step) for step in (2, 3, 4)] == [16.0, 8.0, 8.0]


def test_a_loaded_state_counts_from_the_version_that_it_is_told():
    scale = after([1, 1])
    scale.load(ScaleState(5, 1))
    scale.restart(40)
    scale.note(40, skipped=False)
    assert (scale.at(40), scale.at(41)) == (32.0, 64.0)


def test_without_fp16_it_is_always_1():
    scale = LossScale()
    scale.note(0, skipped=True)
    scale.load(ScaleState(5, 1))
    assert (scale.bits, scale.at(7), scale.is_steady) == (0, 1.0, True)


VALUES = torch.tensor([1.0, -3e-5, 1e30, 2.0**-149])  # the third spills, the last is subnormal


def sums(kind, values, scale=None):
    layout = FlatLayout.of([values])
    made = ExactGradients(layout, 4, scale) if kind == "exact" else FastGradients(layout, scale)
    for _ in range(3):
        made.add(0, values)
    out, exponent = torch.zeros(layout.numel), made.exponents[0]
    made.round_into(out, made.flat, exponent, made.spilled(0))
    return out


@pytest.mark.parametrize("kind", ["exact", "fast"])
def test_sums_are_those_of_the_gradients_without_the_scale(kind):
    scale = LossScale(ScaleState(20), growth_steps=2000)
    found, expected = sums(kind, VALUES * 2.0**20, scale), sums(kind, VALUES)
    assert torch.equal(found, expected)
    assert not torch.equal(found, sums(kind, VALUES * 2.0**20))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_overflowed_because_of_the_scale_is_seen(bad):
    gradients = ExactGradients(
        FlatLayout.of([VALUES]), 4, LossScale(ScaleState(16), growth_steps=2000)
    )
    gradients.add(0, VALUES.clone().index_fill_(0, torch.tensor([2]), bad))
    assert gradients.nonfinite
