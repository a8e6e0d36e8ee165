from math import nextafter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId, parse_worker
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.planner.prove.checker import memory_peaks, violations
from holdfast.planner.schedules import NAMES, make
from holdfast.schedule import validity
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Schedule, loads

EXAMPLES = settings(max_examples=25, deadline=None)


def problem_of(schedule, memory=None, **more):
    stages = schedule.shape.stages
    members = tuple(Member(worker, worker.stage) for worker in schedule.lanes)
    return Problem(
        shape=schedule.shape,
        costs=Costs.uniform(stages),
        memory=memory or Memory(limit=2 * stages),
        **{"members": members, **more},
    )


def holders_of(schedule):
    return {
        worker: tuple(sorted({op.stage for op in lane})) for worker, lane in schedule.lanes.items()
    }


def found_in(schedule, memory=None, **more):
    return violations(schedule, problem_of(schedule, memory, **more), holders_of(schedule))


@st.composite
def schedules(draw, least_pipelines=1):
    pipelines, stages = draw(st.integers(least_pipelines, 3)), draw(st.integers(1, 4))
    shape = Shape(pipelines, stages, pipelines * draw(st.integers(1, 5)))
    return make(draw(st.sampled_from(NAMES)), shape, Costs.uniform(stages), 2 * stages)


def with_lane(schedule, worker, lane):
    return Schedule(schedule.shape, {**schedule.lanes, worker: tuple(lane)})


def picked(data, schedule, kinds=tuple(Kind)):
    worker = data.draw(st.sampled_from(sorted(schedule.lanes)))
    lane = list(schedule.lanes[worker])
    some = [index for index, op in enumerate(lane) if op.kind in kinds]
    return worker, lane, data.draw(st.sampled_from(some))


def found_after_change(before, after):
    """With the problem and the holders of the schedule before it was changed."""
    return violations(after, problem_of(before), holders_of(before))


@EXAMPLES
@given(schedules(), st.booleans())
def test_schedules_of_the_generators_are_sound(schedule, staggered):
    assert found_in(schedule, staggered=staggered) == []


@EXAMPLES
@given(st.data(), schedules())
def test_a_dropped_operation_is_found(data, schedule):
    worker, lane, index = picked(data, schedule)
    del lane[index]
    assert found_after_change(schedule, with_lane(schedule, worker, lane))


@EXAMPLES
@given(st.data(), schedules())
def test_a_doubled_operation_is_found(data, schedule):
    worker, lane, index = picked(data, schedule)
    lane.insert(data.draw(st.integers(0, len(lane))), lane[index])
    assert found_after_change(schedule, with_lane(schedule, worker, lane))


@EXAMPLES
@given(st.data(), schedules())
def test_a_forward_behind_its_own_backward_is_found(data, schedule):
    worker, lane, index = picked(data, schedule, [Kind.F])
    behind = next(
        turn
        for turn, op in enumerate(lane)
        if op.kind in (Kind.B, Kind.BW) and op.microbatch == lane[index].microbatch
    )
    lane[index], lane[behind] = lane[behind], lane[index]
    found = found_after_change(schedule, with_lane(schedule, worker, lane))
    assert any("never gets to run" in words for words in found)


@EXAMPLES
@given(st.data(), schedules(least_pipelines=2))
def test_a_microbatch_moved_to_a_worker_of_another_stage_is_found(data, schedule):
    worker, lane, index = picked(data, schedule)
    moved = [op for op in lane if op.microbatch == lane[index].microbatch]
    others = [w for w in sorted(schedule.lanes) if w.stage != worker.stage]
    assume(others and lane[index].microbatch is not None)
    other = data.draw(st.sampled_from(others))
    changed = with_lane(schedule, worker, [op for op in lane if op not in moved])
    changed = with_lane(changed, other, (*moved, *schedule.lanes[other]))
    found = found_after_change(schedule, changed)
    assert f"worker {other} runs operations of stage {worker.stage}: expected only stages " in (
        " ".join(found)
    )


def test_a_peers_microbatches_may_be_run_by_any_holder_of_the_stage():
    schedule = loads(
        "schedule pipelines=2 stages=2 microbatches=2\n"
        "0.0: 0F0 0BW0 0R\n"
        "0.1: 1F0 1B0 1F1 1BW1 1W0 1R\n"
        "1.0: 0F1 0BW1 0R\n"
    )
    assert found_in(schedule) == []


@pytest.mark.parametrize("speed", [None, 0.0])
def test_a_lane_of_a_worker_that_is_dead_or_no_member_is_found(speed):
    schedule = make("1f1b", Shape(2, 1, 2), Costs.uniform(1))
    living = Member(WorkerId(0, 0), 0)
    dead = () if speed is None else (Member(WorkerId(1, 0), 0, speed),)
    found = found_in(schedule, members=(living, *dead))
    assert found == [
        "worker 1.0 has a lane but is not alive: expected a member with speed > 0",
        "worker 1.0 is said to hold stages (0,) but is not alive",
    ]


THREE_STAGES = loads(
    "schedule pipelines=1 stages=3 microbatches=1\n0.0: 0F0 1F0 2F0 2BW0 1BW0 0BW0 2R 1R 0R\n"
)
TWO_STAGES = loads("schedule pipelines=1 stages=2 microbatches=1\n0.0: 0F0 1F0 1BW0 0BW0 1R 0R\n")


def test_a_third_stage_on_a_worker_is_found():
    assert found_in(THREE_STAGES) == ["worker 0.0 holds stages (0, 1, 2): expected at most 2"]


def test_a_second_stage_is_sound_unless_the_problem_forbids_it():
    assert found_in(TWO_STAGES) == []
    assert found_in(TWO_STAGES, two_stages=False) == [
        "worker 0.0 holds stages (0, 1): expected at most 1"
    ]


def test_a_holder_without_work_must_reduce_too():
    text = "schedule pipelines=1 stages=1 microbatches=1\n0.0: 0F0 0BW0 0R\n"
    idle = WorkerId(1, 0)
    with_r, without_r = loads(text + "1.0: 0R\n"), loads(text)
    holders = holders_of(with_r)
    assert violations(with_r, problem_of(with_r), holders) == []
    assert violations(without_r, problem_of(with_r), holders) == [
        f"worker {idle} holds stage 0 but has no 0R: expected one"
    ]


def test_a_missing_an_early_and_a_second_reduction_are_found():
    def found(lane):
        return found_in(loads(f"schedule pipelines=1 stages=1 microbatches=1\n0.0: {lane}\n"))

    assert found("0F0 0B0 0W0 0R") == []
    assert found("0F0 0B0 0W0") == ["worker 0.0 has 0 x 0R: expected one"]
    assert "worker 0.0 has operations of stage 0 after 0R" in found("0F0 0B0 0R 0W0")
    assert found("0F0 0B0 0W0 0R 0R") == ["worker 0.0 has 2 x 0R: expected one"]


def test_reductions_in_opposite_orders_would_hang():
    lanes = (
        "schedule pipelines=2 stages=2 microbatches=2\n"
        "0.0: 0F0 1F0 1BW0 0BW0 {} {}\n"
        "1.0: 0F1 1F1 1BW1 0BW1 1R 0R\n"
    )
    assert found_in(loads(lanes.format("1R", "0R"))) == []
    opposite = loads(lanes.format("0R", "1R"))
    assert validity.violations(opposite) == []
    assert found_in(opposite) == ["operations wait for each other in a ring: 0R 1R 0R"]


def test_a_reduction_in_mid_lane_is_sound_only_without_a_barrier_over_stages():
    schedule = loads("schedule pipelines=1 stages=2 microbatches=1\n0.0: 0F0 1F0 1BW0 1R 0BW0 0R\n")
    assert found_in(schedule) == []
    found = found_in(schedule, staggered=False)
    assert found == ["operations wait for each other in a ring: 0BW0 1R 0BW0"]


@EXAMPLES
@given(schedules())
def test_memory_one_below_the_peak_is_found_and_the_peak_is_not(schedule):
    peak = max(map(validity.in_flight_peak, schedule.lanes.values()))
    assume(peak > 1)
    assert max(memory_peaks(schedule, problem_of(schedule)).values()) == peak
    assert found_in(schedule, Memory(limit=peak)) == []
    found = found_in(schedule, Memory(limit=peak - 1))
    assert any(f"expected at most {peak - 1}" in words for words in found)


ONE_STAGE = loads(
    "schedule pipelines=1 stages=1 microbatches=3\n0.0: 0F0 0F1 0B0 0B1 0F2 0W0 0W1 0BW2 0R\n"
)


@pytest.mark.parametrize(
    ("held", "pending", "peak"),
    [
        (1.0, 1.0, 3.0),
        (4.0, 1.0, 8.0),  # two activations, before the first B
        (4.0, 3.0, 10.0),  # two pending and an activation
        (0.1, 0.1, 0.3),
    ],
)
def test_held_and_pending_amounts_count_from_f_to_b_and_from_b_to_w(held, pending, peak):
    memory = Memory(limit=peak, held=(held,), pending=(pending,))
    assert memory_peaks(ONE_STAGE, problem_of(ONE_STAGE, memory)) == {
        WorkerId(0, 0): pytest.approx(peak, rel=1e-15)
    }
    assert found_in(ONE_STAGE, memory) == []
    less = Memory(limit=peak * (1 - 1e-8), held=(held,), pending=(pending,))
    assert len(found_in(ONE_STAGE, less)) == 1


def test_a_fused_backward_never_has_a_pending_weight_gradient():
    schedule = loads("schedule pipelines=1 stages=1 microbatches=2\n0.0: 0F0 0BW0 0F1 0BW1 0R\n")
    assert found_in(schedule, Memory(limit=1)) == []


def test_a_weight_gradient_that_is_done_frees_its_memory():
    text = "schedule pipelines=1 stages=1 microbatches=2\n0.0: 0F0 0B0 0W0 0F1 0B1 0W1 0R\n"
    assert found_in(loads(text), Memory(limit=1)) == []


def test_rounding_does_not_break_a_memory_limit():
    assert found_in(ONE_STAGE, Memory(limit=nextafter(3.0, 0))) == []


def test_each_stage_of_a_worker_has_a_limit_of_its_own_and_the_peak_is_of_both():
    assert found_in(TWO_STAGES, Memory(limit=1)) == []
    assert memory_peaks(TWO_STAGES, problem_of(TWO_STAGES)) == {WorkerId(0, 0): 2.0}
    after_each_other = loads(
        "schedule pipelines=1 stages=2 microbatches=2\n"
        "0.0: 0F0 0F1 0B0 0B1 0W0 0W1 0R\n"
        "0.1: 1F0 1BW0 1F1 1BW1 1R\n"
    )
    peaks = memory_peaks(after_each_other, problem_of(after_each_other))
    assert peaks == {WorkerId(0, 0): 2.0, WorkerId(0, 1): 1.0}


def test_a_worker_may_have_a_limit_of_its_own():
    schedule = make("gpipe", Shape(2, 1, 4), Costs.uniform(1))
    limits = {WorkerId(1, 0): 1.0}
    assert found_in(schedule, Memory(limit=2, limits=limits)) == [
        "worker 1.0 needs memory 2 for stage 0: expected at most 1"
    ]


def two_workers(first, second):
    text = f"schedule pipelines=1 stages=2 microbatches=2\n0.0: {first}\n0.1: {second}\n"
    return loads(text)


def test_activations_used_out_of_order_are_found_though_nothing_deadlocks():
    schedule = two_workers("0F0 0F1 0BW0 0BW1 0R", "1F1 1F0 1BW0 1BW1 1R")
    assert validity.violations(schedule) == []
    assert found_in(schedule) == [
        "worker 0.1 uses the activation of micro-batch 1 at stage 0 from 0.0 before the "
        "activation of micro-batch 0 at stage 0: "
        "expected the activations in the order 0.0 makes them"
    ]


def test_gradients_used_out_of_order_are_found_though_nothing_deadlocks():
    schedule = two_workers("0F0 0F1 0B0 0B1 0W1 0W0 0R", "1F0 1F1 1BW1 1BW0 1R")
    assert validity.violations(schedule) == []
    [words] = found_in(schedule)
    assert words.endswith("expected the gradients in the order 0.1 makes them")


def test_weight_gradients_and_other_channels_have_no_order_to_keep():
    assert found_in(two_workers("0F0 0F1 0B0 0B1 0W1 0W0 0R", "1F0 1F1 1B0 1B1 1W1 1W0 1R")) == []
    two_senders = loads(
        "schedule pipelines=2 stages=2 microbatches=2\n"
        "0.0: 0F0 0BW0 0R\n"
        "0.1: 1F1 1F0 1BW0 1BW1 1R\n"
        "1.0: 0F1 0BW1 0R\n"
    )
    assert found_in(two_senders) == []


def test_two_boundaries_between_the_same_workers_have_a_channel_each():
    text = (
        "schedule pipelines=1 stages=4 microbatches=2\n"
        "0.0: 0F0 2F0 0F1 2F1 2BW0 2BW1 0BW0 0BW1 2R 0R\n"
        "0.1: 1F0 {} 3BW0 3BW1 1BW0 1BW1 3R 1R\n"
    )
    assert found_in(loads(text.format("3F0 1F1 3F1"))) == []
    assert found_in(loads(text.format("1F1 3F0 3F1"))) == []


def test_a_schedule_of_another_shape_is_refused_at_once():
    schedule = make("1f1b", Shape(1, 2, 2), Costs.uniform(2))
    other = problem_of(make("1f1b", Shape(1, 2, 3), Costs.uniform(2)))
    [words] = violations(schedule, other, holders_of(schedule))
    assert "expected Shape(pipelines=1, stages=2, microbatches=3)" in words


def test_an_operation_outside_the_shape_is_found_even_with_memory_by_stage():
    schedule = make("1f1b", Shape(1, 1, 1), Costs.uniform(1))
    worker = parse_worker("0.0")
    changed = with_lane(schedule, worker, (Op(4, Kind.F, 0), *schedule.lanes[worker]))
    found = violations(
        changed, problem_of(schedule, Memory(limit=2, held=(1.0,))), holders_of(schedule)
    )
    assert any("has 4F0" in words for words in found)
