import sys
from functools import cache
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, ScheduleError
from holdfast.planner.problem import LinkCost, LinkCosts, Member, Memory, Problem
from holdfast.planner.prove.certificate import certify
from holdfast.planner.prove.checker import memory_violations
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind, Op, Shape, makes, needs
from holdfast.schedule.schedule import Schedule, loads
from holdfast.schedule.timeline import Pace, steady_period_s
from holdfast.schedule.validity import walk

LIMIT_S = 60.0  # far more than any of these takes: none depends on the machine's speed


def one_at_a_time(shape, dead=()):
    """Every worker runs micro-batch after micro-batch; a dead worker's are dealt to its peers."""
    alive = {
        stage: [d for d in range(shape.pipelines) if WorkerId(d, stage) not in dead]
        for stage in range(shape.stages)
    }
    lanes = {WorkerId(d, stage): [] for stage, ds in alive.items() for d in ds}
    for m, stage in product(range(shape.microbatches), range(shape.stages)):
        home, turn = divmod(m, shape.microbatches_per_pipeline)
        deputy = alive[stage][turn % len(alive[stage])]
        runner = home if home in alive[stage] else deputy
        lanes[runner, stage] += [Op(stage, kind, m) for kind in (Kind.F, Kind.B, Kind.W)]
    return Schedule(shape, {WorkerId(*w): (*ops, Op(w[1], Kind.R)) for w, ops in lanes.items()})


def problem_of(schedule, costs=None, memory=None, speeds=None, **more):
    stages = schedule.shape.stages
    return Problem(
        shape=schedule.shape,
        costs=costs or Costs.uniform(stages),
        memory=memory or Memory(limit=2 * stages),
        members=tuple(Member(w, w.stage, (speeds or {}).get(w, 1.0)) for w in schedule.lanes),
        **more,
    )


def certified(schedule, **more):
    return certify(schedule, problem_of(schedule, **more), limit_s=LIMIT_S)


@pytest.mark.parametrize(
    ("dead", "memory", "staggered", "period_s"),
    [
        ((), 8, True, 19),
        ((WorkerId(1, 2),), 8, True, 27),
        ((), 4, True, 21),
        ((), 8, False, 21),
    ],
)
def test_three_pipelines_of_four_stages_have_the_known_optimum(dead, memory, staggered, period_s):
    schedule = one_at_a_time(Shape(3, 4, 18), dead)
    found = certified(schedule, memory=Memory(limit=memory), staggered=staggered)
    assert (found.optimum_s, found.bound_s, found.proven) == (period_s, period_s, True)


def interleavings(chains):
    """All orders of the operations that keep each chain's own."""
    if not any(chains):
        yield ()
    for i, chain in enumerate(chains):
        if chain:
            rest = (*chains[:i], chain[1:], *chains[i + 1 :])
            yield from ((chain[0], *then) for then in interleavings(rest))


@cache
def lanes_of(stage, num_microbatches):
    split = [
        tuple(Op(stage, k, m) for k in (Kind.F, Kind.B, Kind.W)) for m in range(num_microbatches)
    ]
    fused = [tuple(Op(stage, k, m) for k in (Kind.F, Kind.BW)) for m in range(num_microbatches)]
    return [
        (*lane, Op(stage, Kind.R))
        for chains in product(*zip(split, fused, strict=True))
        for lane in interleavings(chains)
    ]


def least_period_s(problem):
    """By trying every order of two stages with a worker each."""
    share = problem.shape.microbatches
    best_s = float("inf")
    choices = [
        [
            lane
            for lane in lanes_of(stage, share)
            if not memory_violations(Schedule(problem.shape, {WorkerId(0, stage): lane}), problem)
        ]
        for stage in range(2)
    ]
    for lanes in product(*choices):
        schedule = Schedule(problem.shape, {WorkerId(0, s): lane for s, lane in enumerate(lanes)})
        if not walk(schedule).missing:
            best_s = min(best_s, steady_period_s(schedule, problem.costs))
    return best_s


PAIR = one_at_a_time(Shape(1, 2, 2))
whole = st.integers(1, 4).map(float)
measured = st.floats(0.01, 1.0)


def rows(each):
    return st.tuples(each, each)


@st.composite
def pair_problems(draw, each):
    costs = Costs(
        forward_s=draw(rows(each)),
        input_s=draw(rows(each)),
        weight_s=draw(rows(each)),
        fused_s=draw(rows(each)) if draw(st.booleans()) else (),
        step_s=draw(rows(each)),
        link_s=draw(each) / 2,
    )
    held = draw(rows(each))
    pending = tuple(amount * draw(st.sampled_from([0.0, 0.5, 1.0])) for amount in held)
    limit = max(held) * draw(st.sampled_from([1.0, 1.5, 2.0]))
    memory = Memory(limit=limit, held=held, pending=pending)
    return problem_of(PAIR, costs, memory)


@settings(max_examples=12, deadline=None)
@given(pair_problems(whole))
def test_no_order_at_all_is_shorter_and_one_is_as_short(problem):
    found = certify(PAIR, problem, limit_s=LIMIT_S)
    assert found.proven
    assert found.optimum_s == pytest.approx(least_period_s(problem), rel=1e-12)
    assert found.bound_s == pytest.approx(found.optimum_s, rel=1e-12)


@settings(max_examples=8, deadline=None)
@given(pair_problems(measured))
def test_rounding_to_ticks_never_puts_the_bound_too_high(problem):
    found = certify(PAIR, problem, limit_s=LIMIT_S)
    least_s = least_period_s(problem)
    assert found.bound_s <= least_s * (1 + 1e-12)
    assert found.bound_s >= least_s * 0.99
    assert found.optimum_s is None or found.optimum_s >= least_s * (1 - 1e-12)


def test_costs_that_share_a_unit_are_exact_however_they_are_written():
    schedule = one_at_a_time(Shape(1, 3, 4))
    small = certified(schedule, costs=Costs.uniform(3, link_s=0.05))
    large = certified(
        schedule, costs=Costs.uniform(3, forward_s=2e4, input_s=2e4, weight_s=2e4, link_s=1e3)
    )
    assert small.proven
    assert large.optimum_s == pytest.approx(2e4 * small.optimum_s, rel=1e-12)
    assert large.bound_s == pytest.approx(2e4 * small.bound_s, rel=1e-12)


def test_a_stage_with_several_holders_waits_for_one_message_and_the_step():
    one, two = one_at_a_time(Shape(1, 1, 3)), one_at_a_time(Shape(2, 1, 6))
    costs = Costs.uniform(1, link_s=0.25, step_s=0.5)
    assert certified(one, costs=costs).optimum_s == 9.5
    assert certified(two, costs=costs).optimum_s == 9.75


def test_the_last_one_to_come_to_a_reduction_waits_for_no_message():
    uneven = loads(
        "schedule pipelines=1 stages=1 microbatches=3\n"
        "0.0: 0F0 0BW0 0F1 0BW1 0R\n"
        "1.0: 0F2 0BW2 0R\n"
    )
    found = certified(uneven, costs=Costs.uniform(1, link_s=1.0))
    assert (found.optimum_s, found.bound_s, found.proven) == (6, 6, True)
    # Over two steps each waits for the other once: 3 and 6 of work, and a message each way.
    found = certified(uneven, costs=Costs.uniform(1, link_s=4.0))
    assert (found.optimum_s, found.bound_s, found.proven) == (
        (6 + 3 + 8) / 2,
        (6 + 3 + 8) / 2,
        True,
    )


def test_with_a_global_optimizer_a_long_step_of_one_stage_delays_no_other():
    # In a period of 9: 0F at 0, 1F 1B 1W from 1 to 4, 0B 0W from 3 to 5, the step of stage 0 to 9;
    # that of stage 1, from 5 to 6, is over long before.
    costs = Costs((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), step_s=(4.0, 1.0))
    assert certified(one_at_a_time(Shape(1, 2, 1)), costs=costs, staggered=False).optimum_s == 9
    # The other way round stage 0 is at its next forward while stage 1 still steps, until 4 + 5.
    costs = Costs((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), step_s=(1.0, 4.0))
    assert certified(one_at_a_time(Shape(1, 2, 1)), costs=costs, staggered=False).optimum_s == 8


A, B, C = WorkerId(0, 0), WorkerId(0, 1), WorkerId(1, 1)


@cache
def all_schedules(route):
    """Every order of two stages and micro-batches. ``route[stage][m]``: who runs it."""
    chains = {}
    for stage, m in product(range(2), range(2)):
        forms = [(Kind.F, Kind.B, Kind.W), (Kind.F, Kind.BW)]
        ways = [tuple(Op(stage, kind, m) for kind in form) for form in forms]
        chains.setdefault(route[stage][m], []).append((stage, ways))
    choices = [
        [
            (*lane, *(Op(stage, Kind.R) for stage in turns))
            for way in product(*(ways for _, ways in own))
            for lane in interleavings(way)
            for turns in permutations({stage for stage, _ in own})
        ]
        for own in chains.values()
    ]
    found = []
    for lanes in product(*choices):
        found.append(Schedule(Shape(1, 2, 2), dict(zip(chains, lanes, strict=True))))
    return [schedule for schedule in found if not walk(schedule).missing]


@pytest.mark.parametrize("staggered", [True, False])
@pytest.mark.parametrize("route", [((A, A), (B, C)), ((A, C), (B, B)), ((A, B), (A, C))])
@settings(max_examples=5, deadline=None)
@given(costs=st.builds(Costs, *[rows(whole)] * 5, link_s=whole))
def test_messages_and_two_stages_count_as_in_lanes_that_just_run(route, staggered, costs):
    schedules = all_schedules(route)
    found = certified(schedules[-1], costs=costs, staggered=staggered)
    least_s = min(steady_period_s(each, costs, staggered=staggered) for each in schedules)
    assert found.proven
    assert found.optimum_s == pytest.approx(least_s, rel=1e-12)


def random_schedule(chance):
    """A few micro-batches, each stage of each at any worker, in any order that can run."""
    shape = Shape(1, chance.randint(1, 3), chance.randint(1, 4))
    route = {}
    for stage in range(shape.stages):
        workers = [WorkerId(d, stage) for d in range(3)] + [WorkerId(0, 0)] * (stage == 2)
        route |= {(stage, m): chance.choice(workers) for m in range(shape.microbatches)}
    lanes = {worker: [] for worker in route.values()}
    made = set()
    ready = [Op(stage, kind, m) for stage, m in route for kind in (Kind.F, Kind.B, Kind.W)]
    while ready:
        op = chance.choice([op for op in ready if made.issuperset(needs(op, shape))])
        ready.remove(op)
        made.update(makes(op))
        lanes[route[op.stage, op.microbatch]].append(op)
    for lane in lanes.values():
        lane += [Op(stage, Kind.R) for stage in {op.stage for op in lane}]
    return Schedule(shape, lanes)


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([whole, measured]), st.data())
def test_no_lanes_at_all_are_shorter_than_the_bound(chance, each, data):
    schedule = random_schedule(chance)
    stages = schedule.shape.stages
    row = st.tuples(*[each] * stages)
    costs = Costs(*(data.draw(row) for _ in range(5)), link_s=data.draw(each))
    speeds = {worker: data.draw(st.sampled_from([1.0, 0.5])) for worker in schedule.lanes}
    staggered = data.draw(st.booleans())
    problem = problem_of(schedule, costs, Memory(limit=4), speeds=speeds, staggered=staggered)
    period_s = steady_period_s(schedule, costs, staggered=staggered, pace=Pace(speeds=speeds))
    assert certify(schedule, problem, limit_s=1.0).bound_s <= period_s + 1e-6


def test_a_slow_worker_takes_longer():
    schedule = one_at_a_time(Shape(2, 1, 4))
    assert certified(schedule, speeds={WorkerId(1, 0): 0.5}).optimum_s == 12


def test_an_unusual_link_delays_only_what_crosses_it():
    schedule = one_at_a_time(Shape(1, 2, 1))
    slow = LinkCosts(unusual={(WorkerId(0, 0), WorkerId(0, 1)): LinkCost(3.0)})
    # Stage 0: F, there, F and B of stage 1, back, B and W.
    assert certified(schedule, links=slow).optimum_s == 11
    elsewhere = LinkCosts(unusual={(WorkerId(0, 0), WorkerId(9, 1)): LinkCost(3.0)})
    assert certified(schedule, links=elsewhere).optimum_s == 5


def test_a_worker_with_two_stages_does_both_and_both_steps_in_one_period():
    costs = Costs.uniform(2, step_s=0.5)
    alone = loads(
        "schedule pipelines=1 stages=2 microbatches=2\n"
        "0.0: 0F0 1F0 1BW0 0BW0 0F1 1F1 1BW1 0BW1 1R 0R\n"
    )
    assert certified(alone, costs=costs).optimum_s == 12 + 2 * 0.5
    helped = loads(
        "schedule pipelines=1 stages=2 microbatches=2\n"
        "0.0: 0F0 1F0 1BW0 0BW0 0F1 0BW1 1R 0R\n"
        "0.1: 1F1 1BW1 1R\n"
    )
    found = certified(helped, costs=costs)
    assert (found.optimum_s, found.proven) == (9 + 2 * 0.5, True)


def test_the_end_of_a_worker_with_two_stages_is_the_end_of_both():
    # Stage 2 has one micro-batch, but 0.0 still owes stage 0 the backward that comes after it:
    # 0F 1F 2F 2B 1B 0B 0W in a row keep stage 0 open, and stage 2 from its F to the same end.
    schedule = loads(
        "schedule pipelines=1 stages=3 microbatches=1\n"
        "0.0: 0F0 2F0 2BW0 0BW0 2R 0R\n"
        "0.1: 1F0 1BW0 1R\n"
    )
    found = certified(
        schedule,
        costs=Costs(
            forward_s=(1.0, 1.0, 1.0),
            input_s=(1.0, 1.0, 1.0),
            weight_s=(1.0, 1.0, 1.0),
            step_s=(0.0, 0.0, 4.0),
        ),
    )
    # 2F 2B 1B 0B and then the step of stage 2; the window of worker 0.0 also has 0F and 1F.
    assert found.optimum_s == 7 + 4


def test_a_fused_backward_is_chosen_where_it_is_shorter():
    schedule = one_at_a_time(Shape(1, 1, 3))
    assert certified(schedule, costs=Costs.uniform(1, fused_s=1.5)).optimum_s == 7.5
    assert certified(schedule, costs=Costs.uniform(1, fused_s=2.5)).optimum_s == 9


@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_the_weight_part_of_a_fused_backward_takes_no_room(num_microbatches):
    pairs = " ".join(f"0F{m} 0BW{m}" for m in range(num_microbatches))
    head = f"schedule pipelines=1 stages=1 microbatches={num_microbatches}\n"
    costs = Costs.uniform(1, weight_s=5.0, fused_s=1.5)
    assert certified(loads(f"{head}0.0: {pairs} 0R\n"), costs=costs).optimum_s == (
        2.5 * num_microbatches
    )


def test_costs_that_only_nearly_share_a_unit_are_not_taken_to_be_equal():
    schedule = one_at_a_time(Shape(1, 1, 1))
    found = certified(schedule, costs=Costs.uniform(1, weight_s=1.000001))
    assert found.bound_s == pytest.approx(3.000001, rel=1e-12)
    assert (found.optimum_s, found.proven) == (pytest.approx(3.000001, rel=1e-12), True)


def test_a_known_period_is_confirmed_or_refuted():
    schedule = one_at_a_time(Shape(1, 3, 4))
    problem = problem_of(schedule)
    least_s = certify(schedule, problem, limit_s=LIMIT_S).optimum_s
    again = certify(schedule, problem, limit_s=LIMIT_S, known_period_s=least_s)
    assert (again.optimum_s, again.proven) == (least_s, True)
    refuted = certify(schedule, problem, limit_s=LIMIT_S, known_period_s=least_s - 1)
    assert (refuted.optimum_s, refuted.proven) == (None, False)
    assert least_s - 1 < refuted.bound_s <= least_s


def test_out_of_time_there_is_still_a_bound():
    schedule = one_at_a_time(Shape(3, 4, 18))
    found = certify(schedule, problem_of(schedule), limit_s=1e-9)
    assert 18 <= found.bound_s <= 19
    assert not found.proven


def test_without_the_solver_the_user_is_told_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(ConfigError, match=r"^certify needs OR-Tools: pip install 'holdfast\[ce"):
        certified(PAIR)


def test_a_case_too_large_for_the_solver_is_refused():
    schedule = one_at_a_time(Shape(1, 1, 2001))
    with pytest.raises(ConfigError, match=r"6003 operations: expected at most 6000"):
        certified(schedule)


@pytest.mark.parametrize(("limit_s", "num_threads"), [(0.0, 2), (1.0, 0)])
def test_a_limit_of_nothing_is_refused(limit_s, num_threads):
    with pytest.raises(ConfigError, match="expected both above 0"):
        certify(PAIR, problem_of(PAIR), limit_s=limit_s, num_threads=num_threads)


def test_a_schedule_that_cannot_run_is_refused():
    stuck = loads("schedule pipelines=1 stages=1 microbatches=1\n0.0: 0BW0 0F0 0R\n")
    with pytest.raises(ScheduleError, match="never gets to run 0BW0"):
        certified(stuck)
    together = loads("schedule pipelines=1 stages=1 microbatches=2\n0.0: 0F0 0F1 0BW0 0BW1 0R\n")
    with pytest.raises(ConfigError, match="needs memory 2 for stage 0"):
        certified(together, memory=Memory(limit=1))
    with pytest.raises(ConfigError, match=r"worker 0\.1 is not alive"):
        certified(PAIR, speeds={WorkerId(0, 1): 0.0})
