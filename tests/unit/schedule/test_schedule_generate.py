import pytest

from holdfast.errors import ConfigError
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import gpipe, one_f_one_b
from holdfast.schedule.operation import Shape
from holdfast.schedule.validity import in_flight_peak

ONE_F_ONE_B_4_STAGES_8_MICROBATCHES = """\
schedule pipelines=1 stages=4 microbatches=8
0.0: 0F0 0F1 0F2 0F3 0BW0 0F4 0BW1 0F5 0BW2 0F6 0BW3 0F7 0BW4 0BW5 0BW6 0BW7 0R
0.1: 1F0 1F1 1F2 1BW0 1F3 1BW1 1F4 1BW2 1F5 1BW3 1F6 1BW4 1F7 1BW5 1BW6 1BW7 1R
0.2: 2F0 2F1 2BW0 2F2 2BW1 2F3 2BW2 2F4 2BW3 2F5 2BW4 2F6 2BW5 2F7 2BW6 2BW7 2R
0.3: 3F0 3BW0 3F1 3BW1 3F2 3BW2 3F3 3BW3 3F4 3BW4 3F5 3BW5 3F6 3BW6 3F7 3BW7 3R
"""

GPIPE_IN_WAVES_OF_2 = """\
schedule pipelines=2 stages=1 microbatches=6
0.0: 0F0 0F1 0BW0 0BW1 0F2 0BW2 0R
1.0: 0F3 0F4 0BW3 0BW4 0F5 0BW5 0R
"""


def test_1f1b_of_4_stages_and_8_microbatches():
    assert one_f_one_b(Shape(1, 4, 8)).dumps() == ONE_F_ONE_B_4_STAGES_8_MICROBATCHES


def test_1f1b_holds_as_many_microbatches_as_stages_are_left():
    lanes = one_f_one_b(Shape(1, 4, 8)).lanes.values()
    assert [in_flight_peak(lane) for lane in lanes] == [4, 3, 2, 1]


def test_gpipe_goes_in_waves_when_memory_is_short_and_numbers_go_on_in_the_next_pipeline():
    assert gpipe(Shape(2, 1, 6), memory=2).dumps() == GPIPE_IN_WAVES_OF_2


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"forward_s": 0}, "forward_s"),
        ({"input_s": -1}, "input_s = .*expected finite numbers >= 0"),
        ({"weight_s": float("nan")}, "weight_s"),
        ({"step_s": float("inf")}, "step_s"),
        ({"link_s": -0.5}, "link_s = -0.5: expected a finite number >= 0"),
    ],
)
def test_impossible_costs_are_refused(costs, message):
    with pytest.raises(ConfigError, match=message):
        Costs.uniform(2, **costs)


def test_costs_must_be_for_the_same_stages():
    with pytest.raises(ConfigError, match="input_s has 1 stages: expected 2"):
        Costs((1, 1), (1,), (1, 1))
