"""Layers are cut so that the dearest stage is as cheap as can be."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.schedule.cut import equal_cut, stage_ranges


def dearest(costs, cut) -> float:
    return max(sum(costs[i] for i in layers) for layers in stage_ranges(cut, len(costs)))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 8))
def test_no_other_cut_has_a_cheaper_dearest_stage(costs, stages) -> None:
    if stages > len(costs):
        with pytest.raises(ConfigError, match="only"):
            equal_cut(costs, stages)
        return
    best = min(dearest(costs, cut) for cut in combinations(range(1, len(costs)), stages - 1))
    assert dearest(costs, equal_cut(costs, stages)) == best


@pytest.mark.parametrize("cut", [(0,), (4,), (2, 2), (3, 1), (5,)])
def test_a_cut_that_leaves_a_stage_empty_is_refused(cut) -> None:
    with pytest.raises(ConfigError, match="every stage has a layer"):
        stage_ranges(cut, 4)
