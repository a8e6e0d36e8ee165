import pytest

from helpers.plans import asked, fleet_of
from holdfast.planner.prove.bounds import bound, bounds, ideal_s, shared_work_s
from holdfast.schedule.costs import Costs


def limits(problem):
    return {each.limit: each.period_s for each in bounds(fleet_of(problem))}


def test_with_time_and_memory_enough_the_work_of_a_stage_is_the_bound():
    best = bound(fleet_of(asked(2, 4, 16)))
    assert (best.period_s, best.limit) == (48, "work")


def test_whole_micro_batches_bound_what_the_work_alone_would_allow():
    problem = asked(3, 4, 6, dead=["1.2"])
    assert limits(problem)["work"] == pytest.approx(27)
    problem = asked(8, 4, 16, dead=["1.2"])
    assert limits(problem)["work"] == pytest.approx(128 * 3 / 7)
    best = bound(fleet_of(problem))
    assert (best.period_s, best.limit) == (57, "granularity")
    assert "128 do not divide evenly over stage 2" in best.reason


def test_a_slow_worker_counts_as_its_fraction():
    # 32 micro-batches, one holder of two at half speed: 32 / 1.5, in whole ones 22.
    found = limits(asked(2, 4, 16, slow={"0.1": 0.5}))
    assert found["work"] == pytest.approx(32 * 3 / 1.5)
    assert found["granularity"] == pytest.approx(22 * 3)


def test_few_micro_batches_are_bound_by_the_way_through_all_stages():
    # 3 x (1 + 1 + 0.2) there and back, 2 x (1 + 1) at the last stage, and a weight gradient.
    best = bound(fleet_of(asked(1, 4, 2, link_s=0.1)))
    assert best.limit == "path"
    assert best.period_s == pytest.approx(3 * 2.2 + 2 * 2 + 1)


def test_little_memory_leaves_a_wait_at_the_ramp():
    # Zero-bubble with memory for S micro-batches waits (S - 1)(F + B - W).
    best = bound(fleet_of(asked(1, 4, 16, memory=1.0)))
    assert best.limit == "memory"
    assert best.period_s == pytest.approx(48 + 3)


def test_a_global_optimizer_has_a_barrier():
    best = bound(fleet_of(asked(1, 4, 16, staggered=False)))
    assert best.limit == "barrier"
    assert best.period_s == pytest.approx(48 + 3)


def test_the_optimizer_step_is_part_of_every_period():
    with_step = asked(2, 4, 16, costs=Costs.uniform(4, step_s=0.5))
    assert bound(fleet_of(with_step)).period_s == pytest.approx(48.5)


def test_two_stages_a_worker_can_at_best_share_all_work():
    fleet = fleet_of(asked(4, 4, 8, dead=["0.0", "1.0"]))
    assert shared_work_s(fleet) == pytest.approx(32 * 4 * 3 / 14)
    assert ideal_s(fleet) == 24
