import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import ScheduleError
from holdfast.planner.planning import best_plan, first_plan
from holdfast.planner.problem import LinkCost, LinkCosts, Member, Memory, Problem
from holdfast.planner.schedules import NAMES, make
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import gpipe, one_f_one_b
from holdfast.schedule.operation import Shape
from holdfast.schedule.reduction_delay import reduction_delays_s
from holdfast.schedule.schedule import loads
from holdfast.schedule.timeline import (
    Pace,
    barrier_bound_s,
    bound,
    path_bound_s,
    ramp_bound_s,
    steady_period_s,
    timeline,
    work_bound_s,
)

TWO_STAGES = loads(
    "schedule pipelines=1 stages=2 microbatches=1\n0.0: 0F0 0BW0 0R\n0.1: 1F0 1B0 1W0 1R\n"
)


def times(spans):
    return {str(span.op): (span.start_s, span.end_s) for span in spans if span.step == 0}


def test_each_operation_starts_when_worker_and_facts_are_there():
    costs = Costs((1, 2), (3, 4), (5, 6), step_s=(0.5, 0.25), link_s=0.125)
    assert times(timeline(TWO_STAGES, costs).spans) == {
        "0F0": (0, 1),
        "1F0": (1.125, 3.125),
        "1B0": (3.125, 7.125),
        "1W0": (7.125, 13.125),
        "1R": (13.125, 13.375),
        "0BW0": (7.25, 15.25),
        "0R": (15.25, 15.75),
    }


def test_a_result_needs_no_link_on_the_worker_that_made_it():
    alone = loads("schedule pipelines=1 stages=2 microbatches=1\n0.0: 0F0 1F0 1BW0 0BW0 0R 1R\n")
    assert timeline(alone, Costs.uniform(2, link_s=5)).makespan_s == 6


def test_a_reduction_waits_for_all_holders_of_the_stage_only():
    schedule = loads(
        "schedule pipelines=2 stages=1 microbatches=2\n0.0: 0F0 0BW0 0F1 0BW1 0R\n1.0: 0R\n"
    )
    spans = timeline(schedule, Costs.uniform(1, link_s=0.5)).spans
    ends = {str(s.worker): s.start_s for s in spans if str(s.op) == "0R" and s.step == 0}
    assert ends == {"0.0": 6, "1.0": 6.5}


def test_with_a_global_optimizer_every_stage_waits_for_the_last_weight_gradient():
    costs = Costs.uniform(2, step_s=1)
    assert times(timeline(TWO_STAGES, costs).spans)["1R"] == (4, 5)
    assert times(timeline(TWO_STAGES, costs, staggered=False).spans)["1R"] == (5, 6)


def test_a_slow_worker_takes_longer_for_all_but_its_step():
    costs = Costs((1, 2), (3, 4), (5, 6), step_s=(0.5, 0.25), link_s=0.125)
    slow = timeline(TWO_STAGES, costs, pace=Pace({WorkerId(0, 1): 0.5}))
    assert times(slow.spans) == {
        "0F0": (0, 1),
        "1F0": (1.125, 5.125),
        "1B0": (5.125, 13.125),
        "1W0": (13.125, 25.125),
        "1R": (25.125, 25.375),
        "0BW0": (13.25, 21.25),
        "0R": (21.25, 21.75),
    }
    assert slow.busy_s == {WorkerId(0, 0): 9.5, WorkerId(0, 1): 24.25}
    assert steady_period_s(TWO_STAGES, costs, pace=Pace({WorkerId(0, 1): 0.5})) == slow.period_s


def test_tensors_take_the_time_of_their_boundary_and_way_reductions_that_of_a_message():
    schedule = loads(
        "schedule pipelines=1 stages=2 microbatches=1\n"
        "0.0: 0F0 0BW0 0R\n0.1: 1F0 1BW0 1R\n1.0: 0R\n"
    )
    asked = []

    def hop_s(boundary, sender, receiver):
        asked.append((boundary, str(sender), str(receiver)))
        return 3 if sender.stage else 2

    found = timeline(schedule, Costs.uniform(2, link_s=0.5), pace=Pace(hop_s=hop_s)).spans
    starts = {(str(s.worker), str(s.op)): s.start_s for s in found if s.step == 0}
    assert starts[("0.1", "1F0")] == 1 + 2
    assert starts[("0.0", "0BW0")] == 6 + 3
    assert starts[("1.0", "0R")] == 11 + 0.5
    assert set(asked) == {(0, "0.0", "0.1"), (0, "0.1", "0.0")}


THREE_HOLDERS = loads(
    "schedule pipelines=3 stages=1 microbatches=3\n"
    "0.0: 0F0 0BW0 0R\n1.0: 0F1 0BW1 0R\n2.0: 0F2 0BW2 0R\n"
)
FIRST, SECOND, THIRD = THREE_HOLDERS.lanes


def reductions(schedule, costs, pace):
    found = timeline(schedule, costs, pace=pace).spans
    return {str(s.worker): s.start_s for s in found if s.step == 0 and s.op.kind == "R"}


def slow(links):
    return lambda one, other: links.get((one, other), links.get((other, one), 0.0))


def test_over_a_slow_link_both_ends_of_a_reduction_are_late_twice_and_the_others_once():
    pace = Pace(extra_link_s=slow({(FIRST, THIRD): 5.0}))
    costs = Costs.uniform(1, link_s=0.5)
    assert reductions(THREE_HOLDERS, costs, Pace()) == {"0.0": 3.5, "1.0": 3.5, "2.0": 3.5}
    # 3 s of work; the result of a slow end comes to 1.0 as any other does, but 5 s later.
    assert reductions(THREE_HOLDERS, costs, pace) == {"0.0": 13, "1.0": 8.5, "2.0": 13}
    # The ends hold each other up in every step, two messages a step.
    assert steady_period_s(THREE_HOLDERS, costs, pace=pace) == 13


def test_a_slow_link_of_a_reduction_counts_from_when_its_senders_are_ready():
    pace = Pace({SECOND: 0.25}, extra_link_s=slow({(FIRST, THIRD): 2.0}))
    # 1.0 is ready after 12 s: then all else has long been exchanged; its own part comes
    # to 0.0 at once, but over 2.0 (as the owner of a shard) 2 s later.
    found = reductions(THREE_HOLDERS, Costs.uniform(1), pace)
    assert found == {"0.0": 14, "1.0": 12, "2.0": 14}


def test_a_holder_without_work_takes_part_in_a_reduction_over_its_slow_link():
    schedule = loads(
        "schedule pipelines=2 stages=1 microbatches=2\n0.0: 0F0 0BW0 0F1 0BW1 0R\n1.0: 0R\n"
    )
    pace = Pace(extra_link_s=slow({(FIRST, SECOND): 5.0}))
    assert reductions(schedule, Costs.uniform(1), pace) == {"0.0": 16, "1.0": 11}


def test_slow_links_between_holders_of_different_stages_are_no_matter_of_reductions():
    pace = Pace(extra_link_s=slow({(WorkerId(0, 0), WorkerId(0, 1)): 5.0}))
    costs = Costs.uniform(2)
    assert timeline(TWO_STAGES, costs, pace=pace) == timeline(TWO_STAGES, costs)


@settings(deadline=None)
@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 20), min_size=n, max_size=n),
            st.lists(st.sampled_from([0, 0, 1, 7]), min_size=n * n, max_size=n * n),
        )
    )
)
def test_a_reduction_takes_what_its_two_rounds_of_messages_take(drawn):
    ready_s, excess = drawn
    members = [WorkerId(d, 0) for d in range(len(ready_s))]

    def extra_link_s(one, other):
        assert one != other
        return excess[one.pipeline * len(members) + other.pipeline]

    def heard(times_s):
        return [
            max(
                t + (extra_link_s(a, b) if a != b else 0)
                for a, t in zip(members, times_s, strict=True)
            )
            for b in members
        ]

    late_s = reduction_delays_s(members, extra_link_s)
    found = [
        max(t + late_s.get((a, b), 0) for a, t in zip(members, ready_s, strict=True))
        for b in members
    ]
    assert found == heard(heard(ready_s))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 2, 9, 31]), min_size=16, max_size=16))
def test_the_period_is_exact_with_slow_links_of_reductions(excess):
    schedule = make("1f1b", Shape(4, 2, 12), Costs.uniform(2), 4)
    pace = Pace(
        {WorkerId(1, 1): 0.5},
        extra_link_s=lambda one, other: excess[one.pipeline * 4 + other.pipeline],
    )
    many = timeline(schedule, Costs.uniform(2), steps=90, pace=pace)
    ends = [max(s.end_s for s in many.spans if s.step == step) for step in (29, 89)]
    assert (ends[1] - ends[0]) / 60 == pytest.approx(many.period_s, rel=1e-9)


def test_a_period_that_is_known_is_not_worked_out_again():
    assert timeline(TWO_STAGES, Costs.uniform(2), period_s=123.0).period_s == 123.0


def test_a_reduction_for_which_a_weight_gradient_is_missing_is_stuck():
    short = loads("schedule pipelines=1 stages=1 microbatches=2\n0.0: 0F0 0BW0 0R\n")
    with pytest.raises(ScheduleError, match=r"worker 0\.0 never gets to run 0R: .* micro-batch 1"):
        timeline(short, Costs.uniform(1))


def test_a_reduction_in_the_middle_of_a_lane_holds_up_what_comes_after_it():
    two = loads(
        "schedule pipelines=2 stages=2 microbatches=2\n0.0: 0F0 0BW0 0R\n0.1: 1F0 1BW0 1R\n"
        "1.0: 0F1 1F1 1BW1 0BW1 0R 1R\n"
    )
    moved = loads(two.dumps().replace("1BW1 0BW1 0R 1R", "1BW1 1R 0BW1 0R"))
    costs = Costs.uniform(2, step_s=10)
    assert times(timeline(two, costs).spans)["0BW1"] == (4, 6)
    assert times(timeline(moved, costs).spans)["0BW1"] == (14, 16)


@st.composite
def problems(draw, speeds):
    """One stage a worker, some workers dead, ``speeds`` for some of the others, maybe a bad link.

    Stage 0 keeps the first pipeline's worker, and so does every other.
    """
    pipelines, stages, each = (draw(st.integers(1, most)) for most in (4, 4, 5))
    everyone = [WorkerId(d, s) for d in range(pipelines) for s in range(stages)]
    dead = draw(st.sets(st.sampled_from(everyone), max_size=3))
    alive = [worker for worker in everyone if worker.pipeline == 0 or worker not in dead]
    pace = dict(zip(draw(st.permutations(alive)), speeds, strict=False))
    bad = (
        {(WorkerId(0, 0), WorkerId(0, 1)): LinkCost(2.5)}
        if stages > 1 and draw(st.booleans())
        else {}
    )
    return Problem(
        shape=Shape(pipelines, stages, pipelines * each),
        costs=Costs.uniform(
            stages,
            forward_s=draw(st.sampled_from((1, 0.77))),
            step_s=draw(st.sampled_from((0, 0.4))),
            link_s=draw(st.sampled_from((0, 0.05, 0.3))),
        ),
        memory=Memory(limit=float(draw(st.integers(1, 2 * stages)))),
        members=tuple(Member(w, w.stage, pace.get(w, 1.0)) for w in alive),
        links=LinkCosts(unusual=bad),
        staggered=draw(st.booleans()),
        move_s=10.0,
        two_stages=False,
    )


def period_of(plan):
    problem = plan.fleet.problem
    pace = Pace({member.worker: member.speed for member in problem.members}, problem.hop_s)
    schedule = plan.schedule()
    return steady_period_s(schedule, problem.costs, staggered=problem.staggered, pace=pace)


@settings(max_examples=25, deadline=None)
@given(problems(speeds=[0.6]))
def test_the_period_is_the_one_the_planner_names(problem):
    """The planner lets like pipelines wait for a message of their like, even if it came before."""
    for plan in (first_plan(problem), best_plan(problem)):
        rounding_s = 1e-5 * plan.period_s
        too_long_s = plan.period_s - period_of(plan)
        assert -rounding_s <= too_long_s <= problem.costs.link_s + rounding_s


@settings(max_examples=15, deadline=None)
@given(problems(speeds=[0.6, 0.8, 0.5, 0.6]))
def test_the_period_is_never_longer_than_the_planner_names(problem):
    """Shorter where the planner takes unlike pipelines for as slow as the slowest."""
    plan = best_plan(problem)
    assert period_of(plan) <= plan.period_s * (1 + 1e-5)


def test_bubbles_are_what_is_left_of_the_period():
    found = timeline(one_f_one_b(Shape(1, 4, 8)), Costs.uniform(4))
    assert (found.period_s, found.makespan_s) == (33, 33)
    assert [found.period_s - busy_s for busy_s in found.busy_s.values()] == [9] * 4
    assert found.bubble_share == pytest.approx(9 / 33)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 12),
    st.lists(st.integers(1, 30), min_size=5, max_size=5),
)
def test_the_period_is_what_many_steps_take_on_average(name, pipelines, stages, each, memory, cost):
    forward, backward, weight, step, link = cost
    costs = Costs.uniform(
        stages, forward_s=forward, input_s=backward, weight_s=weight, step_s=step, link_s=link
    )
    schedule = make(name, Shape(pipelines, stages, pipelines * each), costs, memory)
    many = timeline(schedule, costs, steps=90)
    end_s = {step: 0.0 for step in range(90)}
    for span in many.spans:
        end_s[span.step] = max(end_s[span.step], span.end_s)
    # 60 steps are a multiple of the short cycles such lanes settle into.
    assert (end_s[89] - end_s[29]) / 60 == pytest.approx(many.period_s, rel=1e-9)


def test_a_reduction_between_two_holders_costs_one_message_a_step():
    schedule = loads(
        "schedule pipelines=2 stages=1 microbatches=2\n0.0: 0F0 0BW0 0R\n1.0: 0F1 0BW1 0R\n"
    )
    assert steady_period_s(schedule, Costs.uniform(1, link_s=1)) == 4


def test_the_period_is_exact_even_while_one_stage_is_still_catching_up():
    """Stage 0 alone needs 20.7 s a step, stage 1 21 s; the first steps do not show it."""
    schedule = loads(
        "schedule pipelines=1 stages=2 microbatches=3\n"
        "0.0: 0F0 0F1 0F2 0BW0 0BW1 0BW2 0R\n"
        "0.1: 1F0 1B0 1F1 1B1 1F2 1B2 1W0 1W1 1W2 1R\n"
    )
    costs = Costs(forward_s=(5, 1), input_s=(0.9, 1), weight_s=(1, 5))
    first = timeline(schedule, costs).spans
    ends_s = [span.end_s for span in first if str(span.op) == "0R"]
    assert ends_s[1] - ends_s[0] == pytest.approx(20.7)
    assert steady_period_s(schedule, costs) == pytest.approx(21)


def test_a_stuck_schedule_has_no_timeline():
    stuck = loads("schedule pipelines=1 stages=1 microbatches=1\n0.0: 0BW0 0F0 0R\n")
    with pytest.raises(ScheduleError, match=r"worker 0\.0 never gets to run 0BW0"):
        timeline(stuck, Costs.uniform(1))


def test_the_bounds_of_a_worked_example():
    shape, costs = Shape(2, 4, 8), Costs.uniform(4)
    assert work_bound_s(shape, costs) == 12
    assert path_bound_s(shape, costs) == 15  # 3 x 2 there and back, 4 x 2 of the last stage, 1 W
    assert ramp_bound_s(shape, costs) == 15  # 7 s to the first gradient, 4 forwards to fill them
    assert ramp_bound_s(shape, costs, memory=2) == 17
    assert barrier_bound_s(shape, costs) == 15


@pytest.mark.parametrize(
    ("each", "memory", "staggered", "reason"),
    [
        (16, 8, True, "the work of the busiest stage"),
        (16, 4, True, "memory: 4 micro-batches in flight"),
        (16, 8, False, "the global optimizer's barrier"),
        (4, 8, True, "the way of a micro-batch"),
    ],
)
def test_the_bound_says_what_limits(each, memory, staggered, reason):
    found = bound(Shape(2, 4, 2 * each), Costs.uniform(4), memory, staggered=staggered)
    assert found.reason.startswith(reason)


def test_the_bound_counts_the_slowest_stage_and_its_step():
    costs = Costs((1, 2), (1, 1), (1, 1), fused_s=(2, 1.5), step_s=(0, 4))
    assert work_bound_s(Shape(1, 2, 10), costs) == 10 * (2 + 1.5) + 4


def test_gpipe_and_1f1b_take_equally_long():
    shape, costs = Shape(1, 4, 8), Costs.uniform(4)
    assert steady_period_s(gpipe(shape), costs) == steady_period_s(one_f_one_b(shape), costs) == 33
