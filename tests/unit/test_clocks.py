"""Offset and drift of two clocks: found from exchanges, with an uncertainty that holds."""

import random

import pytest

from holdfast.clocks import ClockEstimate, Exchange

WAY_S = 0.0004
WORLDS = [(0.0, 0.0), (-3600.0, 1e-4), (0.2, -1e-4), (3600.0, 1e-4)]


def exchange(chance, at_s, offset_s=0.0, drift=0.0, there_s=0.0, noise=0.2):
    """``there_s``: that the way there takes longer than the way back."""
    true_s = offset_s + drift * at_s
    out_s, back_s = (WAY_S * chance.lognormvariate(0, noise) for _ in range(2))
    return Exchange(at_s, true_s - back_s, true_s + out_s + there_s)


def fed(count, *, seed=1, first=0, estimate=None, **world):
    chance, estimate = random.Random(seed), estimate or ClockEstimate()
    for at_s in range(first, first + count):
        estimate.add(exchange(chance, float(at_s), **world))
    return estimate


def test_nothing_is_known_before_the_first_exchange():
    assert ClockEstimate().at(0.0) is None


@pytest.mark.parametrize(("offset_s", "drift"), WORLDS)
@pytest.mark.parametrize("count", [1, 2, 5, 30, 500])
def test_the_offset_is_within_the_stated_bounds(count, offset_s, drift):
    for seed in range(10):
        found = fed(count, seed=seed, offset_s=offset_s, drift=drift).at(count - 1.0)
        assert abs(found.offset_s - (offset_s + drift * (count - 1))) <= found.within_s
        assert found.within_s < 4 * WAY_S


def test_the_more_exchanges_the_closer():
    errors = [abs(fed(500, seed=seed, drift=1e-4).at(499.0).offset_s - 0.0499) for seed in range(9)]
    assert max(errors) < WAY_S / 5


@pytest.mark.parametrize(("offset_s", "drift"), WORLDS)
def test_an_offset_and_a_drift_are_found_on_top_of_whatever_else_there_is(offset_s, drift):
    """So that all that is concluded from corrected times is the same with any clocks."""
    plain, shifted = fed(200, noise=0.6), fed(200, noise=0.6, offset_s=offset_s, drift=drift)
    for at_s in (150.0, 199.0, 260.0):
        more_s = shifted.at(at_s).offset_s - plain.at(at_s).offset_s
        assert more_s == pytest.approx(offset_s + drift * at_s, abs=1e-9)
        assert shifted.at(at_s).wander_s == pytest.approx(plain.at(at_s).wander_s, rel=1e-3)


def test_a_way_that_gets_longer_in_one_direction_is_not_taken_for_an_offset():
    estimate, clocks = fed(40, offset_s=0.2, drift=1e-4), {"offset_s": 0.2, "drift": 1e-4}
    for first, until in ((40, 80), (80, 400), (400, 1500)):
        slow = {"first": first, "estimate": estimate, "there_s": 0.005}
        fed(until - first, seed=until, **slow, **clocks)
        found = estimate.at(float(until))
        assert abs(found.offset_s - 0.2 - 1e-4 * until) <= found.wander_s
        assert found.wander_s < until * 5e-6


def test_a_way_that_stays_longer_is_believed_in_the_end():
    """A drift does not stay the same for ever: old exchanges say less and less."""
    estimate = fed(40)
    fed(9000, first=40, estimate=estimate, there_s=0.005)
    assert estimate.at(9040.0).offset_s == pytest.approx(0.0025, abs=WAY_S)


def test_without_new_exchanges_less_and_less_is_certain():
    estimate = fed(60, drift=1e-4)
    doubts_s = [estimate.at(60.0 + age_s).within_s for age_s in (0, 10, 100, 1000)]
    assert doubts_s == sorted(doubts_s)
    for age_s in (10, 100, 1000):
        found = estimate.at(60.0 + age_s)
        assert abs(found.offset_s - 1e-4 * (60 + age_s)) <= found.within_s


def test_one_exchange_says_nothing_of_the_drift():
    estimate = ClockEstimate()
    estimate.add(Exchange(0.0, 0.1998, 0.2002))
    assert estimate.at(0.0).offset_s == pytest.approx(0.2)
    assert estimate.at(100.0).wander_s >= 100.0 * 1e-4
