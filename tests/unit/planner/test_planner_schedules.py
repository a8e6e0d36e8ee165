import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.planner.schedules import NAMES, make, zero_bubble
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.operation import Kind, Shape
from holdfast.schedule.schedule import Schedule, loads
from holdfast.schedule.timeline import bound, steady_period_s, work_bound_s
from holdfast.schedule.validity import violations

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
