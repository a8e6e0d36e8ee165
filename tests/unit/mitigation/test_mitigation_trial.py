"""A change is judged by the steps after it."""

from holdfast.mitigation.trial import Trial


def run(trial: Trial, *steps_s: float) -> list[bool | None]:
    return [trial.note_step(took_s) for took_s in steps_s]


def verdict(trial: Trial, *steps_s: float) -> bool | None:
    (found,) = [one for one in run(trial, *steps_s) if one is not None] or [None]
    return found


def test_nothing_is_judged_unless_something_is_on_trial():
    assert set(run(Trial(), *[1.0] * 50)) == {None}


def test_shorter_steps_show_that_it_has_helped():
    trial = Trial()
    run(trial, *[1.0] * 6)
    trial.begin()
    assert verdict(trial, *[0.8] * 8) is True


def test_steps_that_are_no_shorter_show_that_it_has_not():
    trial = Trial()
    run(trial, *[1.0] * 6)
    trial.begin()
    assert verdict(trial, *[1.0] * 8) is False
    assert (trial.was_s, trial.after_s) == (1.0, 1.0)


def test_the_steps_in_which_old_lanes_end_do_not_count():
    trial = Trial()
    run(trial, *[1.0] * 6)
    trial.begin()
    assert verdict(trial, 5.0, 5.0, 5.0, *[0.9] * 5) is True


def test_a_single_long_step_decides_nothing():
    trial = Trial()
    run(trial, *[1.0] * 6)
    trial.begin()
    assert verdict(trial, *[0.9] * 5, 9.0, 0.9, 0.9) is True


def test_a_change_is_judged_once():
    trial = Trial()
    run(trial, *[1.0] * 6)
    trial.begin()
    assert run(trial, *[1.5] * 30).count(False) == 1


def test_what_is_not_on_trial_any_more_is_not_judged():
    trial = Trial()
    run(trial, *[1.0] * 6)
    trial.begin()
    run(trial, 1.5)
    trial.end()
    assert set(run(trial, *[1.5] * 20)) == {None}


def test_without_steps_before_it_a_change_is_not_judged():
    trial = Trial()
    trial.begin()
    assert set(run(trial, *[1.0] * 20)) == {None}
