from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plans import asked
from holdfast.cluster import WorkerId, parse_worker
from holdfast.planner.assign.swaps import eased, pace, swaps
from holdfast.planner.planning import first_plan
from holdfast.planner.problem import LinkCost, LinkCosts
from holdfast.schedule.timeline import steady_period_s

LINK_S = 0.1


def case(pipelines, stages, share=8, *, slow=None, links=(), excess_s=5.0, **more):
    """``links``: "0.0-1.0", each ``excess_s`` slower than usual."""
    pairs = (tuple(map(parse_worker, text.split("-"))) for text in links)
    unusual = LinkCosts(unusual={pair: LinkCost(LINK_S + excess_s) for pair in pairs})
    more = {"two_stages": False, "may_move": False} | more
    return asked(pipelines, stages, share, slow=slow, links=unusual, link_s=LINK_S, **more)


def placed(problem, stages):
    members = tuple(m._replace(stage=stages[m.worker]) for m in problem.members)
    return replace(problem, members=members)


def moved(problem, stages):
    return {str(m.worker): stages[m.worker] for m in problem.members if stages[m.worker] != m.stage}


def period_s(problem, planned=None):
    """Of the plan for ``planned``, as things are in ``problem``."""
    schedule = first_plan(planned or problem).schedule()
    return steady_period_s(schedule, problem.costs, pace=pace(problem))


def test_nobody_changes_places_when_nothing_is_slow():
    assert swaps(case(3, 2)) == []


@pytest.mark.parametrize(("pipelines", "stages"), [(2, 2), (4, 2), (4, 4)])
def test_one_end_of_a_slow_reduction_link_changes_places_with_a_worker_of_another_stage(
    pipelines, stages
):
    problem = case(pipelines, stages, links=["0.0-1.0"])
    healthy_s = period_s(case(pipelines, stages))
    assert period_s(problem) >= healthy_s + 9.5
    for stages_after in swaps(problem):
        (one, to), (other, back) = moved(problem, stages_after).items()
        assert {one, other} & {"0.0", "1.0"}
        assert (to, back).count(0) == 1
        assert period_s(placed(problem, stages_after)) <= 1.01 * healthy_s
    assert swaps(problem)


def test_two_slow_reduction_links_are_parted_by_one_exchange_if_that_is_enough():
    problem = case(4, 2, links=["0.0-1.0", "0.1-1.1"])
    best, *_ = swaps(problem)
    assert moved(problem, best) == {"0.0": 1, "0.1": 0}


def test_links_that_one_exchange_cannot_part_take_more():
    problem = case(4, 2, links=["0.0-1.0", "2.0-3.0"])
    best, *_ = swaps(problem)
    assert len(moved(problem, best)) == 4
    assert period_s(placed(problem, best)) <= 1.01 * period_s(case(4, 2))


def test_a_slow_pipeline_link_is_left_to_the_routes():
    assert swaps(case(4, 2, links=["0.0-0.1"])) == []


@pytest.mark.parametrize("other", ["0.1", "1.1"])
def test_an_end_is_not_put_where_the_next_stage_is_reached_over_slow_links_only(other):
    """Exchanging 0.0 and the other would part 0.0 and 1.0, and leave 0.0 no usual link."""
    assert swaps(case(2, 2, links=["0.0-1.0"]))
    assert swaps(case(2, 2, links=["0.0-1.0", f"0.0-{other}"])) == []


def test_slow_workers_of_one_stage_are_spread_so_that_no_stage_is_the_slowest():
    problem = case(4, 2, slow={"0.0": 0.5, "1.0": 0.5})
    best, *_ = swaps(problem)
    assert len(moved(problem, best)) == 2
    assert sorted(best[WorkerId(d, 0)] for d in (0, 1)) == [0, 1]
    assert period_s(placed(problem, best)) <= 0.92 * period_s(problem)


def test_slow_workers_of_several_stages_stay_as_they_share_a_pipeline_anyway():
    assert swaps(case(4, 2, slow={"0.0": 0.5, "1.1": 0.5})) == []


def test_a_stage_never_loses_all_that_could_be_copied_from():
    assert swaps(case(1, 2, slow={"0.0": 0.5})) == []


def test_no_more_guesses_are_made_than_asked_for():
    problem = case(4, 4, links=["0.0-1.0"])
    assert len(swaps(problem, 2)) == 2
    assert swaps(problem, 2) == swaps(problem, 4)[:2]


workers = st.sampled_from([f"{d}.{s}" for d in range(3) for s in range(3)])


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(workers, st.sampled_from([0.8, 0.5, 0.2]), max_size=4),
    st.sets(st.tuples(workers, workers).filter(lambda pair: pair[0] < pair[1]), max_size=3),
)
def test_every_guess_keeps_the_numbers_of_holders_and_a_source_a_stage(slow, pairs):
    problem = case(3, 3, 4, slow=slow, links=["-".join(pair) for pair in pairs])
    for stages in swaps(problem, 10):
        assert list(stages) == [member.worker for member in problem.members]
        assert sorted(stages.values()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert {to for worker, to in stages.items() if worker.stage == to} == {0, 1, 2}
        assert 2 <= len(moved(problem, stages)) <= 6


def test_the_ends_of_a_slow_reduction_link_are_eased_by_what_they_wait():
    """Two of 8 have 10 s less: 5 micro-batches, the others 9, in 27 s instead of 34 s."""
    problem = case(8, 2, links=["0.0-1.0"])
    speeds = {str(m.worker): m.speed for m in eased(problem).members if m.speed < 1}
    assert speeds == pytest.approx({"0.0": 17 / 27, "1.0": 17 / 27}, rel=1e-4)
    lanes = first_plan(eased(problem)).schedule().lanes
    assert sum(op.kind == "F" for op in lanes[WorkerId(0, 0)]) == 5
    assert period_s(problem, eased(problem)) < 0.95 * period_s(problem)


def test_nothing_is_eased_without_a_slow_reduction_link():
    problem = case(3, 2, slow={"1.1": 0.5}, links=["0.0-0.1"])
    assert eased(problem) is problem


def test_the_pace_knows_speeds_hops_and_reductions_and_no_dead_worker():
    problem = case(2, 2, slow={"1.1": 0.5, "0.1": 0.0}, links=["0.0-1.0"])
    first, second = WorkerId(0, 0), WorkerId(1, 0)
    found = pace(problem)
    assert found.speeds == {first: 1.0, second: 1.0, WorkerId(1, 1): 0.5}
    assert found.extra_link_s is not None
    assert found.extra_link_s(second, first) == pytest.approx(5.0)
    assert found.extra_link_s(first, WorkerId(1, 1)) == 0
    assert found.hop_s is not None
    assert found.hop_s(0, first, second) == pytest.approx(5.1)
