"""Shifts that are told, and many things that are none."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from holdfast.detection.change.changepoint import ChangeDetector, ChangeSettings, Shift
from holdfast.errors import ConfigError
from slow_series import HEALTHY, SLOW, slow_series

NOISE = 0.02


def told(
    values: Iterable[float], settings: ChangeSettings | None = None
) -> list[tuple[int, Shift]]:
    """With the index of the value at which each was told."""
    detector = ChangeDetector(settings)
    found = []
    for at, value in enumerate(values):
        shift = detector.update(float(value))
        if shift:
            found.append((at, shift))
    return found


def noise(num: int = 300, deviation: float = NOISE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, deviation, num)


# --- what is told ---


@pytest.mark.parametrize("loss", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_a_drop_and_its_relief_are_told_within_five_values(loss: float, seed: int) -> None:
    values, size = noise(seed=seed), -math.log(1 - loss)
    values[100:180] += size
    (on_at, onset), (off_at, relief) = told(values)
    assert (onset.onset, relief.onset) == (True, False)
    assert 100 <= on_at < 105
    assert 180 <= off_at < 185
    assert (onset.began, relief.began) == (100, 180)
    assert onset.after - onset.before == pytest.approx(size, abs=0.05)
    assert relief.after == pytest.approx(0, abs=0.05)
    assert onset.how == "change point"
    assert 0.9 <= onset.confidence <= 1


def test_a_small_drop_is_told_by_its_sum() -> None:
    values = noise(deviation=0.01)
    values[100:] += math.log(1.06)
    [(at, shift)] = told(values)
    assert shift.how == "cumulative sum"
    assert shift.onset
    assert at < 115
    assert abs(shift.began - 100) <= 3


def test_a_ladder_is_told_though_each_step_of_it_is_too_small() -> None:
    values = noise(400, 0.01)
    for begin in (100, 200, 300):
        values[begin:] += math.log(1.03)
    shifts = [shift for at, shift in told(values) if at >= 200]
    assert shifts
    assert all(shift.onset for shift in shifts)


def test_the_last_step_of_a_ladder_counts_though_most_values_are_of_the_first() -> None:
    values = noise(400, 0.01)
    values[100:] += math.log(1.03)
    values[250:] += math.log(1.03)
    [(at, shift)] = told(values)
    assert 250 <= at < 268
    assert shift.how == "cumulative sum"


def test_less_than_four_percent_is_not_told() -> None:
    values = noise(deviation=0.005)
    values[100:] += math.log(1.03)
    assert told(values) == []


def test_a_drift_is_told_again_and_again_but_only_upwards() -> None:
    values = noise(1000) + np.arange(1000) * 0.0005
    shifts = [shift for _, shift in told(values)]
    assert 5 <= len(shifts) <= 13
    assert all(shift.onset for shift in shifts)
    assert shifts[-1].after > 0.35


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_where_a_gradual_drop_comes_to_rest_is_told_too(seed: int) -> None:
    values = noise(140, 0.03, seed)
    values[60:72] += np.linspace(0, 0.5, 12)
    values[72:] += 0.5
    shifts = [shift for _, shift in told(values)]
    assert all(shift.onset for shift in shifts)
    assert shifts[-1].after == pytest.approx(0.5, abs=0.05)


def test_a_drop_after_a_short_start_is_told() -> None:
    values = noise(60)
    values[8:20] += 0.4
    assert [(shift.onset, shift.began) for _, shift in told(values)] == [(True, 8), (False, 20)]


def test_a_series_without_any_noise_is_no_special_case() -> None:
    values = np.zeros(300)
    values[100:200] = 0.06
    assert [(shift.onset, shift.began) for _, shift in told(values)] == [(True, 100), (False, 200)]
    assert told(np.zeros(300)) == []


def test_the_level_is_that_of_the_present_regime() -> None:
    detector = ChangeDetector()
    assert detector.level == 0
    values = noise(200) - 3
    values[100:] += 0.4
    levels = []
    for value in values:
        detector.update(float(value))
        levels.append(detector.level)
    assert levels[99] == pytest.approx(-3, abs=0.01)
    assert levels[104] == pytest.approx(-2.6, abs=0.05)
    assert levels[199] == pytest.approx(-2.6, abs=0.01)


def test_a_change_in_much_noise_is_told_once_it_is_sure() -> None:
    values = noise(400, 0.1)
    values[200:] += math.log(1.25)
    [(at, shift)] = told(values)
    assert shift.onset
    assert 203 < at < 240


# --- what is not ---


@pytest.mark.parametrize("deviation", [0.01, 0.03, 0.1, 0.2])
def test_noise_is_not_told(deviation: float) -> None:
    for seed in range(5):
        assert told(noise(500, deviation, seed)) == []


@pytest.mark.parametrize("deviation", [0.01, 0.03, 0.1])
def test_noise_with_heavy_tails_is_not_told(deviation: float) -> None:
    for seed in range(5):
        values = np.random.default_rng(seed).standard_t(3, 500) * deviation / math.sqrt(3)
        assert told(values) == []


@pytest.mark.parametrize("size", [1.3, 3, 50])
@pytest.mark.parametrize("period", [5, 9, 40])
def test_single_outliers_are_not_told(size: float, period: int) -> None:
    values = noise(600)
    values[period - 1 :: period] += math.log(size)
    assert told(values) == []


def test_two_outliers_in_a_row_are_not_told() -> None:
    values = noise(600)
    values[20::30] += 0.3
    values[21::30] += 0.3
    assert told(values) == []


@pytest.mark.parametrize("start", [[3.0], [2.0, 1.0, 0.5, 0.2], [-0.5, -0.5, -0.5], [0.3] * 5])
def test_an_atypical_start_is_not_told(start: list[float]) -> None:
    assert told([*start, *noise(200)]) == []


def test_after_an_atypical_start_a_drop_is_told_as_ever() -> None:
    values = noise(60)
    values[:5] += 1.5
    values[17:] += 0.3
    assert [(shift.onset, shift.began) for _, shift in told(values)] == [(True, 17)]


@pytest.mark.parametrize("seed", range(5))
def test_more_noise_at_the_same_level_is_not_told(seed: int) -> None:
    values = noise(600, seed=seed)
    values[300:] *= 5
    assert told(values) == []


@pytest.mark.parametrize("seed", range(5))
def test_noise_that_resembles_itself_is_not_told(seed: int) -> None:
    values = noise(600, 0.03, seed)
    for at in range(1, len(values)):
        values[at] += 0.6 * values[at - 1]
    assert told(values) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e6])
def test_what_is_no_logarithm_of_a_ratio_is_refused(value: float) -> None:
    detector = ChangeDetector()
    detector.update(0.0)
    with pytest.raises(ConfigError, match=r"value 1 is .*expected the logarithm of a time"):
        detector.update(value)


# --- all together ---


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_series_stay_silent(kind: str) -> None:
    for seed in range(6):
        assert not any(shift.onset for _, shift in told(slow_series(kind, seed).residuals))


@pytest.mark.parametrize("kind", SLOW)
def test_slow_series_are_told_while_they_are_slow_and_only_then(kind: str) -> None:
    for seed in range(6):
        series = slow_series(kind, seed)
        onsets = [at for at, shift in told(series.residuals) if shift.onset]
        for stretch in series.slow:
            assert any(stretch.begin <= at < stretch.end + 5 for at in onsets)
        for at in onsets:
            assert any(stretch.begin <= at < stretch.end + 5 for stretch in series.slow)


def test_settings_are_obeyed() -> None:
    values = noise()
    values[100:] += math.log(1.2)
    deaf = ChangeSettings(min_change=math.log(1.5), min_sum_change=math.log(1.5))
    assert told(values)
    assert told(values, deaf) == []
