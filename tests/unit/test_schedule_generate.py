import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import NAMES, gpipe, make, one_f_one_b, zero_bubble
from holdfast.schedule.operation import Kind, Shape
from holdfast.schedule.schedule import Schedule, loads
from holdfast.schedule.timeline import bound, steady_period_s, work_bound_s
from holdfast.schedule.validity import in_flight_peak, violations

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

seconds = st.integers(0, 40).map(lambda tenths: tenths / 10)


@st.composite
def cases(draw):
    pipelines, stages = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    shape = Shape(pipelines, stages, pipelines * draw(st.integers(1, 10)))

    def row(least: int = 0) -> tuple[float, ...]:
        durations = st.integers(least, 40).map(lambda tenths: tenths / 10)
        return tuple(draw(durations) for _ in range(stages))

    costs = Costs(row(1), row(), row(), draw(st.sampled_from([(), row()])), row(), draw(seconds))
    return shape, costs, draw(st.none() | st.integers(1, 14)), draw(st.booleans())


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from(NAMES))
def test_every_schedule_is_valid_reads_back_and_never_beats_the_bound(case, name):
    shape, costs, memory, staggered = case
    schedule = make(name, shape, costs, memory, staggered=staggered)
    assert violations(schedule, memory) == []
    assert loads(schedule.dumps()) == schedule
    period_s = steady_period_s(schedule, costs, staggered=staggered)
    assert period_s >= bound(shape, costs, memory, staggered=staggered).period_s * (1 - 1e-9)


@settings(max_examples=12, deadline=None)
@given(cases())
def test_zero_bubble_on_one_pipeline_is_never_slower_than_1f1b(case):
    shape, costs, memory, _ = case
    one = Shape(1, shape.stages, shape.microbatches_per_pipeline)
    ours, plain = (
        steady_period_s(make(name, one, costs, memory), costs) for name in ("zero-bubble", "1f1b")
    )
    assert ours <= plain * (1 + 1e-9)


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("extra", ["2S-1", "2S", "3S"])
def test_with_enough_microbatches_and_memory_zero_bubble_is_the_bound(stages, extra):
    each = {"2S-1": 2 * stages - 1, "2S": 2 * stages, "3S": 3 * stages}[extra]
    shape, costs = Shape(2, stages, 2 * each), Costs.uniform(stages)
    schedule = zero_bubble(shape, costs, memory=2 * stages)
    assert steady_period_s(schedule, costs) == work_bound_s(shape, costs) == 3 * each


def test_zero_bubble_gains_what_the_global_optimizer_leaves():
    shape, costs = Shape(3, 4, 18), Costs.uniform(4)
    staggered = zero_bubble(shape, costs, memory=8)
    barrier = zero_bubble(shape, costs, memory=8, staggered=False)
    assert steady_period_s(one_f_one_b(shape), costs, staggered=False) == 27
    assert steady_period_s(barrier, costs, staggered=False) == 21
    assert bound(shape, costs, 8, staggered=False).period_s == 21
    assert steady_period_s(staggered, costs) == bound(shape, costs, 8).period_s == 19


def kinds(schedule: Schedule, worker: WorkerId) -> list[Kind]:
    return [op.kind for op in schedule.lanes[worker]]


def test_stage_0_is_fused_because_nobody_waits_for_its_gradient():
    schedule = zero_bubble(Shape(1, 4, 8), Costs.uniform(4), memory=8)
    assert Kind.B not in kinds(schedule, WorkerId(0, 0))
    assert Kind.B in kinds(schedule, WorkerId(0, 3))


def test_nothing_is_split_where_there_is_no_bubble_to_fill():
    schedule = zero_bubble(Shape(2, 1, 8), Costs.uniform(1), memory=2)
    assert Kind.B not in kinds(schedule, WorkerId(0, 0))


def test_a_dear_split_is_not_made():
    costs = Costs.uniform(3, input_s=2, weight_s=2, fused_s=1)
    schedule = zero_bubble(Shape(1, 3, 6), costs, memory=6)
    assert all(Kind.B not in kinds(schedule, worker) for worker in schedule.lanes)


def test_1f1b_of_4_stages_and_8_microbatches():
    assert one_f_one_b(Shape(1, 4, 8)).dumps() == ONE_F_ONE_B_4_STAGES_8_MICROBATCHES


def test_1f1b_holds_as_many_microbatches_as_stages_are_left():
    lanes = one_f_one_b(Shape(1, 4, 8)).lanes.values()
    assert [in_flight_peak(lane) for lane in lanes] == [4, 3, 2, 1]


def test_gpipe_goes_in_waves_when_memory_is_short_and_numbers_go_on_in_the_next_pipeline():
    assert gpipe(Shape(2, 1, 6), memory=2).dumps() == GPIPE_IN_WAVES_OF_2


def test_the_same_question_gets_the_same_answer():
    shape, costs = Shape(2, 4, 12), Costs.uniform(4, link_s=0.1)
    assert zero_bubble(shape, costs, 6).dumps() == zero_bubble(shape, costs, 6).dumps()


@pytest.mark.parametrize("name", NAMES)
def test_no_memory_is_refused(name):
    with pytest.raises(ConfigError, match="memory = 0: expected at least 1"):
        make(name, Shape(1, 2, 2), Costs.uniform(2), 0)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'2f2b': expected one of gpipe, 1f1b, zero-bubble"):
        make("2f2b", Shape(1, 2, 2), Costs.uniform(2), 4)


def test_costs_of_other_stages_are_refused():
    with pytest.raises(ConfigError, match="costs are for 3 stages: expected 2"):
        zero_bubble(Shape(1, 2, 2), Costs.uniform(3), 4)


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
