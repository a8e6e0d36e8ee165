"""What the loss of a machine costs: who is gone, what is left, and the step time then."""

import pytest

from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import ConfigError
from holdfast.planner.place.losing import LossCosts
from holdfast.planner.place.machine import Machine, equal_machines
from holdfast.planner.place.placement import MachinePlacement
from holdfast.planner.place.placing import place
from holdfast.planner.planning import best_plan, first_plan
from holdfast.planner.question import costs_of, problem_of, shape_of


def asked(pipelines, stages, microbatches, **words):
    shape = shape_of(pipelines, stages, microbatches)
    return problem_of(shape, costs_of({}, stages), **words)


def slots(**numbers):
    return tuple(Machine(name, number) for name, number in numbers.items())


def workers(words):
    return tuple(map(parse_worker, words.split()))


def test_a_machine_that_is_lost_is_planned_around_as_if_its_workers_were_dead():
    placement = place(3, 2, slots(a=2, b=2, c=2))
    loss = LossCosts(placement, asked(3, 2, 12)).of("b")
    assert loss.workers == workers("1.0 1.1")
    assert loss.holders == (2, 2)
    assert (loss.outcome, loss.survives, loss.lost_stages) == ("goes on", True, ())
    assert loss.period_s == best_plan(asked(3, 2, 12, dead=["1.0", "1.1"])).period_s
    assert loss.period_s > best_plan(asked(3, 2, 12)).period_s
    assert (loss.started_again, loss.refilled_period_s) == ((), None)


def test_spare_slots_elsewhere_bring_the_workers_back():
    placement = place(2, 2, slots(a=3, b=3))
    loss = LossCosts(placement, asked(2, 2, 8)).of("a")
    assert loss.workers == workers("0.0 0.1")
    assert len(loss.started_again) == 1
    assert loss.refilled_period_s is not None
    assert loss.period_s is not None
    assert loss.refilled_period_s < loss.period_s
    larger = LossCosts(place(2, 2, slots(a=4, b=4)), asked(2, 2, 8)).of("a")
    assert larger.started_again == workers("0.0 0.1")
    assert larger.refilled_period_s == best_plan(asked(2, 2, 8)).period_s


def test_a_stage_that_is_lost_with_its_machine_is_rebuilt_by_one_who_is_left():
    where = {WorkerId(d, s): name for d in (0, 1) for s, name in ((0, "a"), (1, "b"), (2, "b"))}
    placement = MachinePlacement(2, 3, slots(a=2, b=4), where)
    loss = LossCosts(placement, asked(2, 3, 8)).of("a")
    assert (loss.outcome, loss.lost_stages, loss.holders) == ("rebuilds", (0,), (0, 2, 2))
    assert loss.survives
    # Four are left for three stages, as if two of different stages were dead.
    assert loss.period_s == best_plan(asked(2, 3, 8, dead=["1.0", "1.1"])).period_s


def test_a_run_without_room_for_every_stage_stops():
    placement = place(1, 4, slots(a=2, b=2))
    loss = LossCosts(placement, asked(1, 4, 8)).of("a")
    assert (loss.outcome, loss.survives) == ("stops", False)
    assert (loss.lost_stages, loss.period_s, loss.refilled_period_s) == ((0, 1), None, None)


def test_spare_slots_save_a_run_that_would_stop():
    placement = place(1, 4, slots(a=2, b=2, c=2))
    loss = LossCosts(placement, asked(1, 4, 8)).of("a")
    assert (loss.outcome, loss.period_s) == ("rebuilds", None)
    assert loss.started_again == workers("0.0 0.1")
    assert loss.refilled_period_s == best_plan(asked(1, 4, 8)).period_s


def test_who_is_dead_already_is_not_lost_again():
    placement = place(2, 2, slots(a=2, b=2))
    loss = LossCosts(placement, asked(2, 2, 8, dead=["0.1"]), refined=False).of("a")
    assert loss.workers == workers("0.0")
    assert loss.holders == (1, 1)
    problem = asked(2, 2, 8, dead=["1.1"])
    other = LossCosts(placement, problem, refined=False).of("a")
    assert (other.lost_stages, other.outcome) == ((1,), "stops")


def test_machines_that_leave_the_same_behind_are_planned_once(monkeypatch):
    placement = place(3, 2, equal_machines(3, 6))
    planned = []

    def counting(problem):
        planned.append(problem)
        return first_plan(problem)

    monkeypatch.setattr("holdfast.planner.place.losing.first_plan", counting)
    costs = LossCosts(placement, asked(3, 2, 6), refined=False)
    periods = {costs.of(f"m{index}").period_s for index in range(3)}
    assert (len(periods), len(planned)) == (1, 1)
    slow = LossCosts(placement, asked(3, 2, 6, slow=[("0.0", 0.5)]), refined=False)
    assert slow.of("m0").period_s < slow.of("m1").period_s
    assert len(planned) == 3


def test_losing_nothing_costs_nothing():
    placement = place(1, 2, slots(a=2, spare=1))
    loss = LossCosts(placement, asked(1, 2, 4), refined=False).of("spare")
    assert (loss.workers, loss.outcome) == ((), "goes on")
    assert loss.period_s == first_plan(asked(1, 2, 4)).period_s


def test_other_machines_and_other_shapes_are_refused():
    placement = place(2, 2, slots(a=2, b=2))
    with pytest.raises(ConfigError, match="machine 'z': expected one of a, b"):
        LossCosts(placement, asked(2, 2, 8)).of("z")
    with pytest.raises(ConfigError, match="a step of 2 x 3 workers: expected 2 x 2"):
        LossCosts(placement, asked(2, 3, 8)).of("a")
