"""Finished steps as columns: every value comes back, and what ran again is told apart."""

import math
from dataclasses import replace

import numpy as np

from helpers.sample_events import sample
from holdfast.observability.events import RunStarted, StepFinished, WentBack
from holdfast.observability.log import StepFlag, StepTable

STEP = sample(StepFinished)
STEPS = [
    STEP,
    replace(STEP, step=1, gradient_norm=2.5, clipped=False, lr=0.1),
    replace(STEP, step=2, gradient_norm=math.inf, skipped=True, loss_scale=0.5),
    replace(STEP, step=3, gradient_norm=1.0, skipped=True, empty=True),
]


def test_every_value_of_a_step_comes_back():
    table = StepTable.of(STEPS)
    assert [table.event(row) for row in range(len(table))] == STEPS
    assert table.last() == STEPS[-1]


def test_a_step_without_a_norm_is_not_one_whose_norm_is_no_number():
    nan = replace(STEP, gradient_norm=math.nan)
    table = StepTable.of([STEP, nan])
    assert np.isnan(table.norm).all()
    assert table.event(0).gradient_norm is None
    assert math.isnan(table.event(1).gradient_norm)


def test_of_a_step_that_ran_again_the_last_row_counts():
    losses = [(0, 3.0), (1, 2.0), (2, 1.5), (1, 2.1), (2, 1.6), (3, 1.0)]
    table = StepTable.of(replace(STEP, step=step, loss=loss) for step, loss in losses)
    assert table.step.tolist() == [step for step, _ in losses]
    final = table.final()
    assert final.step.tolist() == [0, 1, 2, 3]
    assert final.loss.tolist() == [3.0, 2.1, 1.6, 1.0]


def test_rows_know_their_launch_and_their_place_among_the_other_events():
    started, back = sample(RunStarted), sample(WentBack)
    table = StepTable.of([started, STEP, back, STEP, started, STEP])
    assert table.launch.tolist() == [1, 1, 2]
    assert table.rare_before.tolist() == [1, 2, 3]


def test_of_no_steps_there_is_an_empty_table():
    table = StepTable.of([sample(RunStarted)])
    assert (len(table), table.last(), len(table.final())) == (0, None, 0)


def test_a_part_of_a_table_is_a_table():
    table = StepTable.of(STEPS)
    assert table[1:3].step.tolist() == [1, 2]
    skipped = table[(table.flags & StepFlag.SKIPPED) != 0]
    assert skipped.step.tolist() == [2, 3]
