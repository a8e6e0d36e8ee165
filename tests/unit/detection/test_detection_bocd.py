"""The posterior of the run length, against sums over all ways to cut a short series."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detection.change.bocd import Bocd, Prior

PRIOR = Prior(hazard=0.1, level_spread=0.3, noise=0.1, noise_weight=1.5, max_run=50)
VALUES = [0.0, 0.05, -0.1, 0.5, 0.45, 0.6]


def evidence(values: list[float], prior: Prior, centre: float) -> float:
    """Of one regime, all values at once: the normal-inverse-gamma formula."""
    num, kappa, alpha = len(values), (prior.noise / prior.level_spread) ** 2, prior.noise_weight
    if not num:
        return 1.0
    beta = alpha * prior.noise**2
    mean = sum(values) / num
    beta_after = beta + 0.5 * sum((v - mean) ** 2 for v in values)
    beta_after += 0.5 * kappa * num * (mean - centre) ** 2 / (kappa + num)
    log = math.lgamma(alpha + num / 2) - math.lgamma(alpha) + alpha * math.log(beta)
    log -= (alpha + num / 2) * math.log(beta_after)
    log += 0.5 * math.log(kappa / (kappa + num)) - num / 2 * math.log(2 * math.pi)
    return math.exp(log)


def by_all_cuts(values: list[float], prior: Prior, centre: float) -> list[float]:
    """A cut may follow any value; the run is what comes after the last cut."""
    num = len(values)
    odds = [0.0] * (num + 1)
    for cuts in itertools.product((False, True), repeat=num):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut]
        edges = [0, *ends, num] if not ends or ends[-1] != num else [0, *ends]
        weight = math.prod(prior.hazard if cut else 1 - prior.hazard for cut in cuts)
        for begin, end in itertools.pairwise(edges):
            weight *= evidence(values[begin:end], prior, centre)
        odds[num - (ends[-1] if ends else 0)] += weight
    return [o / sum(odds) for o in odds]


def posterior(values: list[float], prior: Prior = PRIOR, centre: float = 0.0) -> list[float]:
    bocd = Bocd(prior, centre)
    odds = np.ones(1)
    for value in values:
        odds = bocd.update(value)
    return [float(p) for p in odds]


@pytest.mark.parametrize("num", range(1, len(VALUES) + 1))
def test_the_posterior_is_that_of_all_ways_to_cut_the_series(num: int) -> None:
    expected = by_all_cuts(VALUES[:num], PRIOR, 0.2)
    assert posterior(VALUES[:num], centre=0.2) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=80))
def test_the_probabilities_sum_to_one(values: list[float]) -> None:
    prior = Prior(max_run=20)
    odds = posterior(values, prior)
    assert sum(odds) == pytest.approx(1)
    assert len(odds) == min(len(values), 20) + 1


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_that_the_run_is_empty_is_as_likely_as_the_hazard_whatever_the_values(
    values: list[float],
) -> None:
    assert posterior(values)[0] == pytest.approx(PRIOR.hazard)


def test_the_likeliest_run_is_that_of_the_values_since_a_change() -> None:
    rng = np.random.default_rng(0)
    values = [*rng.normal(0, 0.02, 60).tolist(), *rng.normal(0.3, 0.02, 4).tolist()]
    odds = posterior(values, Prior())
    assert int(np.argmax(odds)) == 4
    assert odds[4] > 0.9


def test_runs_beyond_the_longest_are_one_hypothesis_that_loses_to_none() -> None:
    values = np.random.default_rng(0).normal(0, 0.02, 300).tolist()
    odds = posterior(values, Prior(max_run=40))
    assert len(odds) == 41
    assert odds[-1] > 0.9
    assert sum(odds) == pytest.approx(1, abs=1e-9)


def test_the_noise_of_a_very_long_run_is_not_overrated() -> None:
    """Else a change after thousands of values would look like more of the same."""
    rng = np.random.default_rng(0)
    values = [*rng.normal(0, 0.02, 4000).tolist(), *rng.normal(0.1, 0.02, 4).tolist()]
    assert sum(posterior(values, Prior(max_run=50))[1:6]) > 0.9
