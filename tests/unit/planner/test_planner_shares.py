import heapq
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.planner.route.shares import least_time, shares

UNITS = st.lists(st.sampled_from([0.1, 0.3, 0.7, 1.0, 1.5, 2.0, 9.0]), min_size=1, max_size=4)


def best_by_trying_all(num_microbatches: int, unit_s: list[float]) -> float:
    ways = product(range(num_microbatches + 1), repeat=len(unit_s))
    return min(
        max(n * unit for n, unit in zip(way, unit_s, strict=True))
        for way in ways
        if sum(way) == num_microbatches
    )


def one_after_the_other(num_microbatches: int, unit_s: list[float]) -> list[int]:
    """Each micro-batch to the worker that ends it first."""
    given_out = [0] * len(unit_s)
    ends = [(unit, index) for index, unit in enumerate(unit_s)]
    heapq.heapify(ends)
    for _ in range(num_microbatches):
        _, index = ends[0]
        given_out[index] += 1
        heapq.heapreplace(ends, ((given_out[index] + 1) * unit_s[index], index))
    return given_out


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 7), UNITS)
def test_no_way_to_share_is_faster(num_microbatches: int, unit_s: list[float]) -> None:
    best_s = best_by_trying_all(num_microbatches, unit_s)
    assert least_time(num_microbatches, unit_s) == pytest.approx(best_s)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 400), st.lists(st.floats(0.05, 20), min_size=1, max_size=30))
def test_shares_add_up_and_reach_the_least_time(num_microbatches: int, unit_s: list[float]) -> None:
    given_out = shares(num_microbatches, unit_s)
    assert given_out.sum() == num_microbatches
    assert given_out.min() >= 0
    busiest_s = (given_out * np.array(unit_s)).max()
    assert busiest_s == pytest.approx(least_time(num_microbatches, unit_s), rel=1e-8)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 200), st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0]), min_size=1))
def test_every_micro_batch_goes_to_whom_ends_it_first(
    num_microbatches: int, unit_s: list[float]
) -> None:
    assert shares(num_microbatches, unit_s).tolist() == one_after_the_other(
        num_microbatches, unit_s
    )


def test_equal_workers_differ_by_one_at_most_and_the_first_have_more() -> None:
    assert shares(10, [0.1] * 4).tolist() == [3, 3, 2, 2]


def test_rounding_does_not_decide_a_tie() -> None:
    # 3 * 0.1 is a bit more than 0.3; both end their first three tenths together.
    assert shares(3, [0.1, 0.3]).tolist() == [3, 0]
    assert least_time(4, [0.1, 0.3]) == pytest.approx(0.3)


def test_a_very_slow_worker_gets_nothing() -> None:
    assert shares(5, [1.0, 1e9]).tolist() == [5, 0]
    assert least_time(5, [1e9, 1.0]) == 5.0


def test_a_thousand_workers_of_mixed_speed_are_shared_out_exactly() -> None:
    unit_s = np.random.default_rng(3).choice([1.0, 1.25, 2.0, 8.0], 1024)
    assert shares(16384, unit_s).tolist() == one_after_the_other(16384, unit_s.tolist())


@pytest.mark.parametrize("unit_s", [[], [1.0, 0.0], [-1.0], [float("nan")], [float("inf")]])
def test_units_that_are_no_durations_are_refused(unit_s: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"unit_s = .*: expected a finite number > 0"):
        shares(4, unit_s)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_microbatches = -1"):
        least_time(-1, [1.0])
