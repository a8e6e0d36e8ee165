import pytest

from helpers.plans import asked, fleet_of
from holdfast.planner.order.fusing import fused_where_free
from holdfast.planner.order.order import OrderSearch
from holdfast.planner.order.period import steady_period
from holdfast.planner.planning import best_plan, first_plan, refine
from holdfast.planner.prove.bounds import bound
from holdfast.planner.route.routing import relabelled
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind
from holdfast.schedule.timeline import steady_period_s


def kinds(plan):
    return [op.kind for lane in plan.schedule().lanes.values() for op in lane]


def test_the_worked_example_without_a_failure_takes_19_slots():
    assert best_plan(asked(3, 4, 6)).period_s == pytest.approx(19)


def test_the_worked_example_with_one_dead_worker_takes_no_more_than_27_slots():
    one_stage = asked(3, 4, 6, dead=["1.2"], two_stages=False)
    assert best_plan(one_stage).period_s == pytest.approx(27)
    assert best_plan(asked(3, 4, 6, dead=["1.2"])).period_s < 27


@pytest.mark.parametrize(("memory", "most"), [(3.0, 1.001), (2.0, 1.005), (1.5, 1.02)])
def test_refined_plans_are_near_the_bound(memory, most):
    plan = best_plan(asked(4, 4, 16, memory=memory, link_s=0.05, dead=["1.2"], two_stages=False))
    assert 1 - 1e-6 <= plan.period_s / plan.bound.period_s <= most


def test_waiting_for_a_known_arrival_pays_with_delays():
    """Without look-ahead a W begun just before an arrival shifts the whole pattern."""
    fleet = fleet_of(asked(1, 8, 16, link_s=0.05))
    template = relabelled(fleet).template
    search = OrderSearch(template, 0)
    hasty = search.policies[7]  # no patience
    assert (hasty[2:] == 0).all()
    without = search.attempt(hasty, 0 * search.policies[0][0][:8], 0 * search.policies[0][:2])
    assert without.period * fleet.units.tick_s == pytest.approx(52.2, abs=1e-3)
    assert search.first().period * fleet.units.tick_s < 49


def test_more_effort_never_makes_a_plan_worse():
    problem = asked(4, 4, 8, memory=1.0, link_s=0.1, dead=["0.1"], slow={"2.2": 0.7})
    periods = [plan.period_s for plan in refine(problem)]
    assert periods == sorted(periods, reverse=True)
    assert periods[0] == first_plan(problem).period_s


def test_two_stages_on_a_worker_break_the_bound_of_the_worst_stage():
    problem = asked(8, 4, 16, dead=["7.3"], link_s=0.05)
    fleet = fleet_of(problem)
    plan = best_plan(problem)
    assert plan.period_s < bound(fleet).period_s
    assert max(map(len, plan.holders.values())) == 2
    assert "hold a second stage" in plan.reason


def test_a_plan_is_split_only_where_that_shortens_the_period():
    plan = best_plan(asked(2, 1, 8))
    assert Kind.B not in kinds(plan)
    assert plan.period_s == pytest.approx(24)


def test_tidying_keeps_the_period_and_fuses_something():
    fleet = fleet_of(asked(1, 4, 12))
    routing = relabelled(fleet)
    order = OrderSearch(routing.template, 0).first()
    before = steady_period(routing, order, fleet)
    after = fused_where_free(routing, order, fleet)
    assert steady_period(routing, after, fleet) <= before
    assert len(after.layout.order) < len(order.layout.order)


def test_a_cheaper_fused_backward_is_used_for_most_micro_batches():
    costs = Costs.uniform(4, fused_s=1.8)
    plan = best_plan(asked(2, 4, 24, costs=costs))
    found = kinds(plan)
    assert found.count(Kind.BW) > found.count(Kind.B) > 0
    only_split_s = 24 * 3
    assert plan.period_s < only_split_s


@pytest.mark.parametrize("staggered", [True, False])
@pytest.mark.parametrize("share", [5, 6])
def test_the_period_is_that_of_the_lanes(staggered, share):
    """Pipelines that share an order count as equal: one message is then counted too many."""
    problem = asked(3, 3, share, link_s=0.25, dead=["0.2"], two_stages=False, staggered=staggered)
    for plan in refine(problem):
        exact_s = steady_period_s(plan.schedule(), problem.costs, staggered=staggered)
        uneven = any((group.numbers < 0).any() for group in plan.routing.groups)
        most_s = exact_s + (0.25 if uneven else 0)
        assert exact_s * (1 - 1e-5) <= plan.period_s <= most_s * (1 + 1e-5)


def test_a_plan_says_why():
    plan = best_plan(asked(2, 4, 16, slow={"0.1": 0.5}, two_stages=False))
    assert "1 runs below normal speed" in plan.reason
    assert plan.bound.limit == "granularity"
    assert "more and smaller micro-batches could gain up to" in plan.reason
