"""Layers are cut so that the dearest stage is as cheap as can be."""

from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.schedule.cut import equal_cut, stage_ranges


def dearest(costs, cut) -> float:
    return max(sum(costs[i] for i in layers) for layers in stage_ranges(cut, len(costs)))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 8))
def test_no_other_cut_has_a_dearest_stage_that_is_cheaper_by_more_than_noise(costs, stages) -> None:
    if stages > len(costs):
        with pytest.raises(ConfigError, match="only"):
            equal_cut(costs, stages)
        return
    best = min(dearest(costs, cut) for cut in combinations(range(1, len(costs)), stages - 1))
    assert dearest(costs, equal_cut(costs, stages)) <= 1.05 * best


@given(st.lists(st.floats(0.98, 1.02), min_size=12, max_size=80), st.integers(2, 4))
@example([1.02] * 30 + [0.98] * 30, 2)
def test_layers_that_differ_by_noise_only_are_cut_evenly(costs, stages) -> None:
    costs = costs[: len(costs) // stages * stages]
    lengths = {len(layers) for layers in stage_ranges(equal_cut(costs, stages), len(costs))}
    assert lengths == {len(costs) // stages}


@pytest.mark.parametrize("cut", [(0,), (4,), (2, 2), (3, 1), (5,)])
def test_a_cut_that_leaves_a_stage_empty_is_refused(cut) -> None:
    with pytest.raises(ConfigError, match="every stage has a layer"):
        stage_ranges(cut, 4)
