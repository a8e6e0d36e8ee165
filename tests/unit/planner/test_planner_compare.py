from dataclasses import replace
from functools import cache
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.baselines.compare import ComparisonRow, compare
from holdfast.baselines.published import (
    POLICIES,
    bamboo_s,
    dropped_s,
    fault_free_s,
    normalised_s,
    oobleck_s,
    rerouted_s,
    split_s,
    staggered_s,
)
from holdfast.cluster import WorkerId
from holdfast.planner.assign.roles import unmoved
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.planning import first_plan
from holdfast.planner.problem import LinkCosts, Member, Memory, Problem
from holdfast.planner.prove.bounds import bound, bounds, shared_work_s
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.operation import Shape
from holdfast.schedule.timeline import steady_period_s


def problem(
    *dead: tuple[int, int],
    shape: tuple[int, int, int] = (3, 4, 6),
    memory: float = 8,
    costs: Costs | None = None,
    slow: dict[tuple[int, int], float] | None = None,
    **other: object,
) -> Problem:
    """``shape``: pipelines, stages, micro-batches a pipeline. The worked example, unless told."""
    pipelines, stages, per_pipeline = shape
    members = tuple(
        Member(WorkerId(d, s), s, (slow or {}).get((d, s), 1.0))
        for d in range(pipelines)
        for s in range(stages)
        if (d, s) not in dead
    )
    return Problem(
        shape=Shape(pipelines, stages, pipelines * per_pipeline),
        costs=costs or Costs.uniform(stages),
        memory=Memory(limit=memory),
        members=members,
        **other,
    )


@cache
def worked_example() -> dict[str, ComparisonRow]:
    """3 pipelines of 4 stages, 6 micro-batches each, F = B = W = 1, worker 1.2 dead."""
    return {row.name: row for row in compare(problem((1, 2)))}


def test_the_worked_example_of_rerouting_comes_out_exactly() -> None:
    periods_s = {name: row.period_s for name, row in worked_example().items()}
    assert periods_s["fault-free 1F1B"] == 27
    assert periods_s["re-routing only"] == 36
    assert periods_s["+ split backward"] == 29
    assert periods_s["+ staggered optimizer"] == 27
    assert periods_s["Holdfast, nobody missing"] == 19


def test_holdfast_is_no_slower_than_any_published_policy_on_the_worked_example() -> None:
    rows = worked_example()
    assert rows["Holdfast"].period_s <= 27
    assert all(rows["Holdfast"].period_s <= rows[policy.name].period_s for policy in POLICIES)


def test_rows_say_how_they_stand_to_1f1b_and_to_the_peak() -> None:
    row = worked_example()["re-routing only"]
    assert row.of_1f1b == pytest.approx(27 / 36)
    assert row.of_peak == pytest.approx(6 * 3 / 36)


def test_every_policy_and_every_bound_has_one_row() -> None:
    limits = [f"bound: {name}" for name in ("work", "granularity", "path", "memory")]
    assert list(worked_example()) == [
        "fault-free 1F1B",
        *(policy.name for policy in POLICIES),
        "Holdfast",
        "Holdfast, nobody missing",
        *limits,
        "bound: all work",
    ]


def test_the_bounds_are_those_of_the_plan() -> None:
    asked = problem((1, 2), (2, 2))
    plan = first_plan(asked)
    found = {row.name: row.period_s for row in compare(asked, plan=plan)}
    for limit in bounds(plan.fleet):
        assert found[f"bound: {limit.limit}"] == limit.period_s


def test_a_plan_that_is_known_already_is_not_made_again() -> None:
    asked = problem((1, 2))
    plan = replace(first_plan(asked), period_s=1234.0)
    found = {row.name: row.period_s for row in compare(asked, plan=plan)}
    assert found["Holdfast"] == 1234.0


def test_with_less_memory_a_staggered_optimizer_gains_nothing() -> None:
    tight = problem((1, 2), memory=4)
    assert (split_s(tight), staggered_s(tight)) == (29, 29)


def test_a_policy_that_has_no_pipeline_left_says_so() -> None:
    asked = problem((0, 1), (1, 2), shape=(2, 4, 4))
    rows = {row.name: row for row in compare(asked, plan=first_plan(asked))}
    dropped = rows["dropping damaged pipelines"]
    assert dropped.period_s == inf
    assert (dropped.of_1f1b, dropped.of_peak) == (0, 0)
    assert dropped.note == "cannot run: no pipeline is left"
    assert rows["Oobleck-like"].period_s < inf
    assert rows["Bamboo-like"].period_s < inf


UNEVEN = Costs(
    forward_s=(1.0, 2.0, 0.5, 1.0),
    input_s=(1.0, 1.5, 1.0, 2.0),
    weight_s=(0.5, 1.0, 1.0, 1.0),
    fused_s=(1.25, 2.5, 1.75, 3.0),
    step_s=(0.5, 0.25, 0.0, 1.0),
    link_s=0.125,
)


@pytest.mark.parametrize("pipelines", [1, 3])
def test_1f1b_takes_as_long_as_its_lanes_on_the_timeline(pipelines: int) -> None:
    asked = problem(shape=(pipelines, 4, 7), costs=UNEVEN)
    lanes_s = steady_period_s(one_f_one_b(asked.shape), UNEVEN, staggered=False)
    assert fault_free_s(asked) == pytest.approx(lanes_s, rel=1e-6)


def test_fault_free_1f1b_knows_nothing_of_the_dead_and_the_slow() -> None:
    asked = problem((1, 2), slow={(0, 0): 0.5})
    assert fault_free_s(asked) == 27


def test_with_nobody_missing_dropping_and_cutting_anew_are_1f1b() -> None:
    asked = problem(costs=UNEVEN)
    assert dropped_s(asked) == pytest.approx(fault_free_s(asked), rel=1e-6)
    assert oobleck_s(asked) == pytest.approx(fault_free_s(asked), rel=1e-6)


def test_redundant_forwards_cost_what_does_not_fit_in_bubbles() -> None:
    few, many = problem(shape=(3, 4, 6)), problem(shape=(3, 4, 20))
    assert bamboo_s(few) == fault_free_s(few) == 27
    assert bamboo_s(many) == 20 * 4
    assert fault_free_s(many) == 23 * 3


def test_the_last_stage_runs_the_forwards_of_the_first() -> None:
    costs = Costs(forward_s=(3.0, 1.0), input_s=(1.0, 2.0), weight_s=(1.0, 2.0))
    asked = problem(shape=(2, 2, 20), costs=costs)
    assert bamboo_s(asked) == pytest.approx(20 * (1 + 4 + 3))


def test_dropped_pipelines_leave_their_micro_batches_to_the_others() -> None:
    assert dropped_s(problem((1, 2))) == (9 + 3) * 3
    assert dropped_s(problem((1, 2), (1, 3))) == (9 + 3) * 3
    assert dropped_s(problem((1, 2), (0, 3))) == (18 + 3) * 3
    assert dropped_s(problem((1, 2), shape=(3, 4, 5))) == (8 + 3) * 3


def test_a_pipeline_cut_anew_gets_fewer_micro_batches() -> None:
    """The short one has 6, 5 and 5 of 16 layers: 4.5 s a micro-batch, so 4 of 18 are enough."""
    assert oobleck_s(problem((1, 2))) == (7 + 3) * 3


def test_a_too_short_pipeline_repairs_the_others() -> None:
    """Two pipelines of four stages are left: one of the two workers is idle."""
    assert oobleck_s(problem((1, 2), (1, 3), (0, 0))) == (9 + 3) * 3


def test_two_halves_of_pipelines_become_one() -> None:
    asked = problem((0, 1), (0, 2), (1, 0), (1, 3), shape=(2, 4, 4))
    assert oobleck_s(asked) == (8 + 3) * 3
    assert dropped_s(asked) == inf


def test_a_neighbour_stands_in_for_a_dead_worker() -> None:
    """The worker of stage 1 runs two stages, and redundant forwards of the next."""
    lonely = problem((0, 2), *((1, s) for s in (0, 1, 3)), shape=(2, 4, 6))
    assert dropped_s(lonely) == inf
    assert bamboo_s(lonely) == 12 * (2 * 3 + 1)


def test_a_dead_worker_has_no_stand_in_if_its_neighbour_died_too() -> None:
    neighbours = problem((1, 1), (1, 2), shape=(2, 4, 6))
    assert bamboo_s(neighbours) == 12 * 4
    lonely = problem((0, 1), (0, 2), (1, 0), (1, 1), (2, 2), (2, 3))
    assert bamboo_s(lonely) == inf


def test_normalising_levels_out_what_the_dead_have_left() -> None:
    asked = problem((0, 2), (1, 2), shape=(4, 4, 12))
    assert staggered_s(asked) >= 48 / 2 * 3
    assert normalised_s(asked) < 0.8 * staggered_s(asked)


def test_rerouting_alone_never_splits_a_backward() -> None:
    """Even where a fused backward takes longer than its two parts."""
    asked = problem(shape=(2, 1, 6), costs=Costs.uniform(1, fused_s=4.0))
    assert rerouted_s(asked) == fault_free_s(asked) == 6 * (1 + 4)
    assert split_s(asked) == pytest.approx(6 * 3)


def test_a_slow_worker_holds_up_its_pipeline() -> None:
    asked = problem(slow={(1, 3): 0.5})
    assert dropped_s(asked) >= 6 * 3 / 0.5
    assert oobleck_s(asked) < dropped_s(asked)


def test_boundary_tensors_take_their_time_in_every_model() -> None:
    slow_links = LinkCosts(bytes_s=10, boundary_bytes=(5, 10, 20))
    for policy in POLICIES:
        asked = problem((1, 2), memory=4)
        assert policy.period_s(replace(asked, links=slow_links)) > policy.period_s(asked)


@given(
    dead=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4),
    slow=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 2)), st.sampled_from((0.5, 0.8)), max_size=2
    ),
    memory=st.sampled_from((3.0, 4.5, 6.0)),
)
@settings(deadline=None, max_examples=15)
def test_no_model_is_faster_than_its_workers_can_be(
    dead: set[tuple[int, int]], slow: dict[tuple[int, int], float], memory: float
) -> None:
    assume(all(sum(stage == s for _, stage in dead) < 4 for s in range(3)))
    asked = problem(*dead, shape=(4, 3, 5), memory=memory, slow=slow)
    fleet = Fleet.of(asked, unmoved(asked).stage_of)
    at_home_s, together_s = bound(fleet).period_s, shared_work_s(fleet)
    noise = 1 - 1e-6
    assert staggered_s(asked) >= at_home_s * noise
    assert split_s(asked) >= staggered_s(asked) * noise
    for policy in POLICIES:
        assert policy.period_s(asked) >= together_s * noise
