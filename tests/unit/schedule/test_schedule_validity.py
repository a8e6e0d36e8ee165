import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import ScheduleError
from holdfast.planner.schedules import NAMES, make
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import gpipe
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Schedule, loads
from holdfast.schedule.validity import check, in_flight_peak, violations


@st.composite
def schedules(draw, least_pipelines=1):
    pipelines, stages = draw(st.integers(least_pipelines, 3)), draw(st.integers(1, 4))
    shape = Shape(pipelines, stages, pipelines * draw(st.integers(1, 5)))
    return make(draw(st.sampled_from(NAMES)), shape, Costs.uniform(stages), 2 * stages)


def change_lane(schedule, worker, lane):
    return Schedule(schedule.shape, {**schedule.lanes, worker: tuple(lane)})


def pick(data, schedule, kinds=tuple(Kind)):
    worker = data.draw(st.sampled_from(sorted(schedule.lanes)))
    lane = list(schedule.lanes[worker])
    some = [index for index, op in enumerate(lane) if op.kind in kinds]
    return worker, lane, data.draw(st.sampled_from(some))


@settings(max_examples=25, deadline=None)
@given(st.data(), schedules())
def test_a_dropped_operation_is_reported(data, schedule):
    worker, lane, index = pick(data, schedule)
    del lane[index]
    assert violations(change_lane(schedule, worker, lane))


@settings(max_examples=25, deadline=None)
@given(st.data(), schedules())
def test_a_doubled_operation_is_reported(data, schedule):
    worker, lane, index = pick(data, schedule)
    lane.insert(data.draw(st.integers(0, len(lane))), lane[index])
    assert violations(change_lane(schedule, worker, lane))


@settings(max_examples=25, deadline=None)
@given(st.data(), schedules(least_pipelines=2))
def test_an_operation_moved_to_another_worker_is_reported(data, schedule):
    worker, lane, index = pick(data, schedule)
    op = lane.pop(index)
    other = data.draw(st.sampled_from([w for w in sorted(schedule.lanes) if w != worker]))
    moved = (op, *schedule.lanes[other])
    assert violations(change_lane(change_lane(schedule, worker, lane), other, moved))


@settings(max_examples=25, deadline=None)
@given(st.data(), schedules())
def test_a_forward_swapped_behind_its_own_backward_is_reported(data, schedule):
    worker, lane, index = pick(data, schedule, [Kind.F])
    behind = next(
        i
        for i, op in enumerate(lane)
        if op.kind in (Kind.B, Kind.BW) and op.microbatch == lane[index].microbatch
    )
    lane[index], lane[behind] = lane[behind], lane[index]
    assert any(
        "never gets to run" in found for found in violations(change_lane(schedule, worker, lane))
    )


@settings(max_examples=25, deadline=None)
@given(schedules())
def test_memory_one_below_the_peak_is_reported_and_the_peak_is_not(schedule):
    peak = max(map(in_flight_peak, schedule.lanes.values()))
    assert violations(schedule, peak) == []
    assert any(f"expected at most {peak - 1}" in found for found in violations(schedule, peak - 1))


def test_a_dead_workers_microbatches_may_run_at_a_peer():
    schedule = loads(
        "schedule pipelines=2 stages=2 microbatches=2\n"
        "0.0: 0F0 0BW0 0R\n"
        "0.1: 1F0 1B0 1F1 1BW1 1W0 1R\n"
        "1.0: 0F1 0BW1 0R\n"
    )
    assert violations(schedule) == []


def test_a_worker_may_hold_two_stages():
    schedule = loads("schedule pipelines=1 stages=2 microbatches=1\n0.0: 0F0 1F0 1BW0 1R 0BW0 0R\n")
    assert violations(schedule) == []


def test_a_deadlock_names_who_is_stuck_on_what():
    schedule = loads(
        "schedule pipelines=1 stages=2 microbatches=2\n"
        "0.0: 0F0 0BW0 0F1 0BW1 0R\n"
        "0.1: 1F0 1F1 1BW0 1BW1 1R\n"
    )
    assert violations(schedule) == [
        "worker 0.0 never gets to run 0BW0: nothing before it makes the "
        "gradient of micro-batch 0 at stage 1",
        "worker 0.1 never gets to run 1F1: nothing before it makes the "
        "activation of micro-batch 1 at stage 0",
    ]


def test_work_after_the_stage_has_stepped_is_reported():
    schedule = loads("schedule pipelines=1 stages=1 microbatches=1\n0.0: 0F0 0R 0BW0\n")
    assert "worker 0.0 has operations of stage 0 after 0R" in violations(schedule)


def test_an_empty_lane_and_an_operation_outside_the_shape_are_reported():
    schedule = gpipe(Shape(1, 1, 1))
    worker = WorkerId(0, 0)
    outside = change_lane(schedule, worker, (Op(4, Kind.F, 0), *schedule.lanes[worker]))
    assert any("has 4F0: expected stage < 1" in found for found in violations(outside))
    empty = change_lane(schedule, WorkerId(1, 0), ())
    assert violations(empty) == ["worker 1.0 has an empty lane: expected at least R of its stage"]


def test_check_raises_with_every_violation():
    schedule = gpipe(Shape(1, 2, 3))
    check(schedule, memory=3)
    with pytest.raises(ScheduleError, match=r"worker 0\.0 has 3 .* worker 0\.1 has 3 "):
        check(schedule, memory=2)
