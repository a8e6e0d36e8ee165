"""What is compared of real and simulated runs, on records that are made up."""

import pytest

from helpers.sample_events import sample
from holdfast.observability.events import Recovered, StepFinished, WorkerStep
from holdfast.schedule.operation import Shape
from simulate_lost import Window, error, forward_s, throughput, time_lost_s
from simulate_real import LAYOUTS, after_checkpoint, cases, first_fault

WARM = 3


def run(*times_s):
    """Steps that took so long."""
    at_s, found = 10.0, []
    for step, took_s in enumerate(times_s):
        at_s += took_s
        found.append(sample(StepFinished, at_s=at_s, step=step))
    return found


def test_throughput_is_from_the_first_step_to_the_last():
    assert throughput(run(9.0, 1.0, 1.0, 2.0)) == pytest.approx(3 / 4)


def test_time_lost_is_what_two_steps_take_beyond_the_usual():
    steps = run(5, 2, 2, 1.0, 1.2, 1.0, 1.5, 1.1, 1.0)
    assert time_lost_s(steps, [Window(6)], WARM) == pytest.approx(0.6)
    assert time_lost_s(steps, [Window(6, steps=1)], WARM) == pytest.approx(0.5)


def test_what_is_usual_is_counted_anew_after_each_window():
    steps = run(1, 1, 1, 1, 1, 3, 2, 2, 2, 5, 2)
    assert time_lost_s(steps, [Window(5, steps=1), Window(9, steps=1)], WARM) == pytest.approx(5.0)


def test_a_window_may_last_until_a_change():
    steps = run(1, 1, 1, 1, 1, 3, 2, 1, 1)
    join = sample(Recovered, cause="join", resumed_s=18.5)
    assert time_lost_s([*steps, join], [Window(5, until="join")], WARM) == pytest.approx(3.0)
    with pytest.raises(ValueError, match="no change by join"):
        time_lost_s(steps, [Window(5, until="join")], WARM)


def test_the_pace_of_a_run_is_that_of_its_forwards():
    ops = (("0F0", 1.0, 1.2), ("0BW0", 2.0, 9.0), ("0F1", 3.0, 3.4))
    one = sample(WorkerStep, step=4, ops=ops)
    assert forward_s([one], range(4, 5)) == pytest.approx(0.3)


def test_errors_count_both_ways():
    assert error(1.1, 1.0) == pytest.approx(0.1)
    assert error(0.9, 1.0) == pytest.approx(0.1)


@pytest.mark.parametrize("layout", LAYOUTS.values())
def test_every_case_has_calm_steps_before_and_replays_some(layout):
    shape = Shape(*layout, layout[0] * 4)
    for case in cases(shape):
        assert all(window.step >= first_fault(shape) for window in case.windows)
    assert after_checkpoint(12) % 5 == 3
