from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plans import asked
from holdfast.baselines.whole_pipelines import dealt, whole_pipelines
from holdfast.errors import ConfigError
from holdfast.planner.planning import best_plan
from holdfast.planner.schedules import NAMES
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.timeline import Pace, steady_period_s
from holdfast.schedule.validity import violations


def period_s(schedule, problem):
    pace = Pace({member.worker: member.speed for member in problem.members})
    return steady_period_s(schedule, problem.costs, staggered=problem.staggered, pace=pace)


def counts(schedule):
    """Micro-batches of each worker of stage 0."""
    return {
        str(worker): sum(op.kind == "F" for op in schedule.lanes[worker])
        for worker in schedule.holders(0)
    }


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 8))
def test_no_other_numbers_of_micro_batches_are_done_sooner(each_s, more):
    total = len(each_s) + more
    best_s = min(
        max(n * s for n, s in zip(numbers, each_s, strict=True))
        for numbers in product(range(1, total + 1), repeat=len(each_s))
        if sum(numbers) == total
    )
    found = dealt(total, each_s)
    assert sum(found) == total
    assert max(n * s for n, s in zip(found, each_s, strict=True)) == best_s


def test_every_pipeline_gets_a_micro_batch_however_slow():
    assert dealt(4, [1.0, 100.0]) == [3, 1]


def test_fewer_micro_batches_than_pipelines_are_refused():
    with pytest.raises(ConfigError, match="1 micro-batches for 2 pipelines: expected at least one"):
        dealt(1, [1.0, 1.0])


def test_with_nobody_slow_it_is_the_schedule_it_would_have_been():
    problem = asked(3, 2, 4)
    assert whole_pipelines(problem) == one_f_one_b(problem.shape, 4)


def test_a_slow_worker_costs_its_pipeline_micro_batches_at_all_stages():
    problem = asked(4, 2, 8, slow={"1.1": 0.5})
    schedule = whole_pipelines(problem)
    assert counts(schedule) == {"0.0": 10, "1.0": 4, "2.0": 9, "3.0": 9}
    assert sum(op.kind == "F" for op in schedule.lanes[problem.members[3].worker]) == 4


def test_slow_workers_of_two_stages_cost_two_pipelines_unlike_with_our_own_plan():
    problem = asked(4, 2, 8, slow={"0.0": 0.5, "1.1": 0.5}, two_stages=False, may_move=False)
    theirs_s = period_s(whole_pipelines(problem, "zero-bubble"), problem)
    assert theirs_s >= 1.05 * period_s(best_plan(problem).schedule(), problem)


def test_a_pipeline_that_lost_a_worker_only_reduces():
    problem = asked(3, 2, 4, dead=["1.1"])
    schedule = whole_pipelines(problem)
    assert counts(schedule) == {"0.0": 6, "1.0": 0, "2.0": 6}
    assert violations(schedule) == []


def test_without_a_complete_pipeline_there_is_no_such_schedule():
    with pytest.raises(ConfigError, match="no pipeline has a live worker for each of its 2 stages"):
        whole_pipelines(asked(2, 2, 4, dead=["0.1", "1.0"]))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 6),
    st.lists(st.sampled_from([1.0, 1.0, 0.8, 0.5, 0.2]), min_size=16, max_size=16),
    st.sampled_from(NAMES),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_every_such_schedule_can_run(pipelines, stages, share, speeds, order, memory):
    names = [f"{d}.{s}" for d in range(pipelines) for s in range(stages)]
    slow = dict(zip(names, speeds, strict=False))
    problem = asked(pipelines, stages, share, slow=slow, memory=max(memory, 1 / stages))
    schedule = whole_pipelines(problem, order)
    assert violations(schedule, int(problem.memory.limit)) == []
    assert schedule.shape == problem.shape
