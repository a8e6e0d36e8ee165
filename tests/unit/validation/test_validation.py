"""Which validation was the best, and when patience ends: pure, and the same in every process."""

import random

import pytest

from holdfast.config import ValidationConfig, config_from
from holdfast.control.state.settings import Settings
from holdfast.control.state.validations import NONE, Validations
from holdfast.errors import ConfigError
from holdfast.protocol.records import MicrobatchScore
from holdfast.validation import Validation, judged, why_stopped

NAN = float("nan")


def of(*losses, **metrics):
    return [
        Validation(step, loss, {name: values[step] for name, values in metrics.items()})
        for step, loss in enumerate(losses)
    ]


def config(**values):
    return ValidationConfig(every=1, **values)


# --- the best ---


@pytest.mark.parametrize(
    ("losses", "settings", "best", "waited"),
    [
        ((), {}, None, 0),
        ((3.0, 2.0, 2.0, 2.5), {}, 1, 2),  # as good is not better
        ((3.0, 2.9, 2.0), {"min_delta": 0.5}, 2, 0),
        ((3.0, 2.5), {"min_delta": 0.5}, 0, 1),
        ((NAN, NAN), {}, None, 2),
        ((NAN, 3.0, NAN), {}, 1, 1),
    ],
)
def test_the_best_and_how_many_came_since(losses, settings, best, waited):
    found = judged(of(*losses), config(**settings))
    assert (found.best and found.best.step, found.waited) == (best, waited)


def test_a_metric_is_judged_in_its_direction():
    validations = of(1.0, 1.0, 1.0, near=[0.2, 0.9, 0.5])
    assert judged(validations, config(keep_best="max near")).best.step == 1
    assert judged(validations, config(keep_best="min near")).best.step == 0


def test_patience_ends_with_the_number_and_what_was_best():
    losses = of(3.0, 2.0, 2.5, 2.6)
    assert why_stopped(losses, config()) == ""
    assert why_stopped(losses, config(patience=3)) == ""
    expected = "2 validations in a row no better than loss 2.0000 of step 1 (validation.patience=2)"
    assert why_stopped(losses, config(patience=2)) == expected
    assert "no number in 1 validation" in why_stopped(of(NAN), config(patience=1))


# --- when ---


def test_it_is_due_on_the_way_and_at_the_end():
    due = [v for v in range(11) if ValidationConfig(every=4).is_due(v, 10)]
    assert due == [4, 8, 10]
    assert [v for v in range(11) if ValidationConfig().is_due(v, 10)] == [10]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"every": -1}, "validation.every=-1: must be 0 or more"),
        ({"patience": 2}, "validation.patience=2: needs validation.every above 0"),
        ({"min_delta": NAN}, "validation.min_delta=nan: must be 0 or more"),
        ({"keep_best": "near"}, "validation.keep_best=near: write loss, or a metric with its dir"),
        ({"keep_best": "max"}, "validation.keep_best=max: write loss"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(settings, expected):
    with pytest.raises(ConfigError, match=expected):
        ValidationConfig(**settings)


# --- sums of the coordinator ---


def validations(**settings):
    return Validations(Settings(config_from({"validation": settings}), "run", None))


def scores(losses, sizes):
    pairs = enumerate(zip(losses, sizes, strict=True))
    return [MicrobatchScore(at, size, loss, [-loss]) for at, (loss, size) in pairs]


def test_the_order_of_scores_and_scores_that_come_twice_do_not_show():
    dice = random.Random(5)
    told = scores([dice.uniform(-1, 1) * 10.0 ** dice.randint(-9, 9) for _ in range(99)], [3] * 99)
    found = set()
    for _ in range(20):
        state, shuffled = validations(), dice.sample(told, len(told))
        state.note(4, shuffled[:40])
        state.note(4, shuffled[30:])
        one = state.conclude(["negative"], 99)
        found.add((one.step, one.loss, one.metrics["negative"]))
    assert len(found) == 1


def test_a_smaller_micro_batch_counts_for_less():
    state = validations()
    state.note(4, scores([1.0, 4.0], [2, 1]))
    assert state.conclude(["negative"], 2) == Validation(4, 2.0, {"negative": -2.0})


def test_nothing_is_concluded_before_all_is_told():
    state = validations()
    state.note(4, scores([1.0, 2.0], [2, 2])[1:])
    assert state.conclude([], 2) is None
    assert state.scored(2) == [1]  # and need not be run again


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_what_is_no_number_shows(bad):
    state = validations()
    state.note(4, scores([1.0, bad, 2.0], [2, 2, 2]))
    assert repr(state.conclude(["negative"], 3).loss) == repr(bad)


def concluded(state, version, loss=1.0):
    state.note(version, scores([loss], [1]))
    assert state.conclude(["negative"], 1) is not None


def test_whoever_goes_back_finds_again_what_came_after():
    state = validations(every=2, keep_best="loss")
    for version, loss in ((2, 3.0), (4, 1.0)):
        concluded(state, version, loss)
        state.release()
    assert (state.over, state.best) == (4, 4)
    state.go_back(3)
    assert (state.over, state.best, [one.step for one in state.found]) == (2, 2, [2])


def test_who_takes_over_knows_for_which_version_all_stand_still():
    """It is found, and its checkpoint is not there yet."""
    before, after = validations(every=2), validations(every=2)
    concluded(before, 2)
    after.recall(before.found, before.over)
    assert (after.version, after.over) == (2, NONE)
    assert after.scored(7) == list(range(7))
    after.release()
    assert (after.version, after.over) == (NONE, 2)
