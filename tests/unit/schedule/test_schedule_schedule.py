import pytest

from holdfast.cluster import WorkerId
from holdfast.errors import ScheduleError
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Schedule, loads

# Micro-batch 1 of pipeline 0 runs at 1.1, a peer of 0.1: routes are data.
REROUTED = """schedule pipelines=2 stages=2 microbatches=2
0.0: 0F0 0F1 0BW0 0BW1 0R
1.0: 0R
1.1: 1F1 1B1 1F0 1W1 1BW0 1R
"""


def test_the_text_form_reads_back():
    schedule = loads(REROUTED)
    assert schedule.dumps() == REROUTED
    assert loads(schedule.dumps()) == schedule


def test_routes_follow_the_lanes_not_the_pipeline_numbers():
    schedule = loads(REROUTED)
    assert schedule.route(1, 0) == WorkerId(1, 1)
    assert schedule.route(0, 1) == WorkerId(0, 0)


def test_holders_are_all_who_have_the_stage_even_without_microbatches():
    assert loads(REROUTED).holders(0) == (WorkerId(0, 0), WorkerId(1, 0))
    assert loads(REROUTED).holders(7) == ()


def test_a_route_nobody_runs_is_an_error_with_its_place():
    with pytest.raises(ScheduleError, match="micro-batch 9 at stage 1"):
        loads(REROUTED).route(1, 9)


def test_lanes_cannot_be_changed():
    schedule = one_f_one_b(Shape(1, 2, 2))
    with pytest.raises(TypeError):
        schedule.lanes[WorkerId(0, 0)] = ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "0.0: 0F0",
        "schedule pipelines=2 stages=2 microbatches=3",
        f"schedule pipelines={'9' * 5000} stages=2 microbatches=3",
        "schedule pipelines=1 stages=1 microbatches=1\n0.0 0F0",
        "schedule pipelines=1 stages=1 microbatches=1\n0: 0F0",
        "schedule pipelines=1 stages=1 microbatches=1\n0.0: 0F0 0Q0",
        "schedule pipelines=1 stages=1 microbatches=1\n0.0: 0F0\n0.0: 0R",
    ],
)
def test_nonsense_is_refused(text):
    with pytest.raises(ScheduleError, match=r"line '.*:"):
        loads(text)


def test_the_relative_form_is_read_back_and_says_the_same_of_each_pipeline():
    schedule = one_f_one_b(Shape(3, 2, 12))
    text = schedule.dumps_relative()
    assert loads(text) == schedule
    assert [line.partition(": ")[0] for line in text.splitlines()[1:]] == ["0-2.0", "0-2.1"]


def test_lanes_that_differ_have_lines_of_their_own():
    lanes = {WorkerId(p, 0): (Op(0, Kind.F, 2 * p), Op(0, Kind.R)) for p in (0, 1, 3, 4, 5, 7)}
    lanes |= {WorkerId(2, 0): (Op(0, Kind.R),), WorkerId(0, 1): (Op(0, Kind.F, 0), Op(0, Kind.R))}
    schedule = Schedule(Shape(8, 2, 16), lanes)
    text = schedule.dumps_relative()
    assert text.splitlines()[1:] == ["0-1,3-5,7.0: 0F+0 0R", "0.1: 0F+0 0R", "2.0: 0R"]
    assert loads(text) == schedule
    assert loads(text).dumps_relative() == text
    assert loads(text).dumps() == schedule.dumps()


def test_an_empty_lane_is_read_back():
    schedule = Schedule(Shape(2, 1, 2), {WorkerId(0, 0): (), WorkerId(1, 0): (Op(0, Kind.R),)})
    assert loads(schedule.dumps_relative()) == loads(schedule.dumps()) == schedule


@pytest.mark.parametrize(
    "line",
    [
        "3-1.0: 0R",
        "0-1,1.0: 0R",
        "0-.0: 0R",
        "0-1-2.0: 0R",
        ",1.0: 0R",
        "0-999999999.0: 0R",  # a few bytes that stand for a thousand million lanes
        f"0-99999.0: {'0R ' * 10_000}",
        "0.0: 0F99999999999999999999",
    ],
)
def test_names_of_nobody_and_of_far_too_many_are_refused(line):
    with pytest.raises(ScheduleError, match="line"):
        loads(f"schedule pipelines=2 stages=1 microbatches=4\n{line}\n")


def test_a_lane_with_micro_batches_of_other_pipelines_has_a_relative_form_too():
    shape = Shape(2, 1, 4)
    lane = (Op(0, Kind.F, 0), Op(0, Kind.BW, 0), Op(0, Kind.F, 3), Op(0, Kind.BW, 3), Op(0, Kind.R))
    schedule = Schedule(shape, {WorkerId(1, 0): lane})
    assert "1.0: 0F-2 0BW-2 0F+1 0BW+1 0R" in schedule.dumps_relative()
    assert loads(schedule.dumps_relative()) == schedule


@pytest.mark.parametrize("word", ["0F-3", "0F+-1", "0R+1", "0F+", "0X+1"])
def test_a_relative_word_that_names_nothing_is_refused(word):
    with pytest.raises(ScheduleError):
        loads(f"schedule pipelines=2 stages=1 microbatches=4\n1.0: {word} 0R\n")
