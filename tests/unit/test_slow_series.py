"""Series with known truth: what they say of themselves is what is in them."""

import numpy as np
import pytest

from holdfast.errors import ConfigError
from slow_series import HEALTHY, KINDS, MIN_LOSS, NUM_START, SLOW, slow_series

SEEDS = range(8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_always_gives_the_same_series(kind: str) -> None:
    assert slow_series(kind, 3) == slow_series(kind, 3)
    assert slow_series(kind, 3) != slow_series(kind, 4)


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_series_have_no_slow_stretch_and_a_steady_middle(kind: str) -> None:
    for seed in SEEDS:
        series = slow_series(kind, seed)
        assert series.slow == ()
        assert abs(np.median(series.residuals)) < 0.01
        away = np.abs(series.residuals)
        assert np.quantile(away, 0.85) < 4 * series.noise


@pytest.mark.parametrize("kind", SLOW)
def test_slow_stretches_are_as_slow_as_they_say(kind: str) -> None:
    for seed in SEEDS:
        series = slow_series(kind, seed)
        assert series.slow
        values = np.array(series.residuals)
        outer = series.slow[0]
        assert abs(np.median(values[: outer.begin])) < 0.02
        for stretch in series.slow:
            assert stretch.loss >= MIN_LOSS
            assert NUM_START <= stretch.begin < stretch.end <= len(values)
            last = np.median(values[max(stretch.begin, stretch.end - 30) : stretch.end])
            assert last >= -np.log(1 - stretch.loss) - 0.03 or kind == "compound"


@pytest.mark.parametrize("kind", SLOW)
def test_after_a_relief_all_is_as_before(kind: str) -> None:
    for seed in SEEDS:
        series = slow_series(kind, seed)
        values = np.array(series.residuals)
        if series.slow[0].relieved:
            end = max(stretch.end for stretch in series.slow)
            assert len(values) - end >= 50
            assert abs(np.median(values[end:])) < 0.02
        else:
            assert series.slow[0].end == len(values)


def test_the_steps_of_a_ladder_are_small_and_together_large_enough() -> None:
    for seed in SEEDS:
        series = slow_series("ladder", seed)
        [stretch] = series.slow
        assert 1 - 0.97**2 <= stretch.loss <= 1 - 0.92**3
        assert not stretch.relieved


def test_a_compound_has_one_slowdown_inside_of_the_other() -> None:
    for seed in SEEDS:
        series = slow_series("compound", seed)
        outer, inner = series.slow
        assert outer.begin < inner.begin < inner.end < outer.end
        values = np.array(series.residuals)
        rise = np.median(values[inner.begin : inner.end]) - np.median(
            values[outer.begin : inner.begin]
        )
        assert rise == pytest.approx(-np.log(1 - inner.loss), abs=0.04)


@pytest.mark.parametrize("kind", ["ragged work", "ragged drop"])
def test_ragged_times_follow_the_work_that_is_predicted(kind: str) -> None:
    series = slow_series(kind, 0)
    assert np.std(np.log(series.predicted_s)) > 0.04
    quiet = slice(0, series.slow[0].begin if series.slow else None)
    assert np.quantile(np.abs(series.residuals[quiet]), 0.8) < 0.05


def test_jitter_is_one_to_three_percent() -> None:
    for seed in SEEDS:
        series = slow_series("quiet", seed)
        assert 0.01 <= series.noise <= 0.03
        assert np.std(series.residuals) == pytest.approx(series.noise, rel=0.25)


def test_dips_and_outliers_are_of_single_iterations() -> None:
    for kind in ("dips", "outliers"):
        for seed in SEEDS:
            series = slow_series(kind, seed)
            high = np.array(series.residuals) > 0.13
            assert not (high[1:] & high[:-1]).any()
    assert max(slow_series("dips", 0).residuals) > 0.1


@pytest.mark.parametrize(("kind", "seed", "what"), [("nope", 0, "'nope'"), ("drop", -1, "-1")])
def test_what_cannot_be_made_is_refused(kind: str, seed: int, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        slow_series(kind, seed)
