"""Who can leave its stage together with others, and how many turns a change of places takes."""

import pytest

from holdfast.cluster import parse_worker
from holdfast.control.join.moving import can_leave, num_turns

A, B, C, D = (parse_worker(text) for text in ("0.0", "1.0", "0.1", "1.1"))
TWO_EACH = {A: 0, B: 0, C: 1, D: 1}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [([A, C], [A, C]), ([A, B], [A]), ([A, B, C, D], [A, C]), ([], [])],
)
def test_every_stage_keeps_a_holder(asked, expected):
    assert can_leave(asked, TWO_EACH) == expected


def test_if_one_of_them_is_gone_nobody_leaves():
    assert can_leave([A, C], {A: 0, B: 0, D: 1}) == []


@pytest.mark.parametrize(
    ("moves", "stages", "expected"),
    [
        ({A: 1, C: 0}, TWO_EACH, 1),
        ({A: 1, B: 1, C: 0, D: 0}, TWO_EACH, 2),
        ({A: 1, C: 0}, {A: 0, C: 1}, None),
        ({A: 1, C: 0}, {A: 0, B: 0, C: 1}, 2),  # C can leave when A has come
        ({}, TWO_EACH, 0),
    ],
)
def test_a_change_of_places_takes_as_many_turns_as_it_must(moves, stages, expected):
    assert num_turns(moves, stages) == expected
