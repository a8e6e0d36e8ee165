import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.scarce import refuse_threads
from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, WaitTimeout
from holdfast.planner import planning, service
from holdfast.planner.planning import best_plan, first_plan
from holdfast.planner.problem import LinkCost, LinkCosts, Member, Memory, Problem
from holdfast.planner.service import Planner, question
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape

LONG_S = 100.0  # no test waits so long unless something hangs; compiling may take its time


def cluster(
    pipelines: int = 3, stages: int = 2, *, dead: tuple[WorkerId, ...] = (), version: int = 0
) -> Problem:
    """Memory is tight and the stages are unlike: the first plan is not the best."""
    workers = [WorkerId(d, s) for d in range(pipelines) for s in range(stages)]
    return Problem(
        shape=Shape(pipelines, stages, 8 * pipelines),
        costs=Costs(
            tuple(1.0 + s for s in range(stages)), (2.0,) * stages, (1.0,) * stages, link_s=0.5
        ),
        memory=Memory(limit=float(stages)),
        members=tuple(Member(w, w.stage, 1.0, version) for w in workers if w not in dead),
    )


@pytest.fixture(autouse=True)
def short_search(monkeypatch):
    monkeypatch.setattr(planning, "NUM_TRIALS", 20)


@pytest.fixture
def planner():
    planner = Planner()
    yield planner
    planner.stop(LONG_S)
    assert not [thread for thread in threading.enumerate() if thread.name == "planner"]


@pytest.fixture
def own_time(monkeypatch):
    """Of the service alone: threads of others may sleep, too."""
    monkeypatch.setattr(service, "time", SimpleNamespace(**vars(time)))
    return service.time


def no_planning(*args: object, **kwargs: object) -> None:
    raise AssertionError("planned again what was prepared")


class Endless:
    """Stands for ``refine``: gives the first plan, then tries on for ever."""

    def __init__(self) -> None:
        self.asked: list[Problem] = []
        self.trying, self.dropped = threading.Event(), threading.Event()

    def __call__(self, problem, *, plain, between):
        self.asked.append(problem)
        try:
            between()
            yield first_plan(problem, plain=plain)
            self.trying.set()
            while True:
                between()
                self.dropped.wait(0.001)
        finally:
            self.dropped.set()


# --- at once ---


def test_what_was_not_prepared_gets_the_first_plan(planner):
    assert planner.plan_now(cluster()).schedule() == first_plan(cluster()).schedule()


def test_any_single_death_is_prepared(planner, monkeypatch):
    planner.prepare(cluster())
    assert planner.finish(LONG_S)
    expected = {
        worker: first_plan(cluster(dead=(worker,)))
        for worker in (WorkerId(d, s) for d in range(3) for s in range(2))
    }
    monkeypatch.setattr(service, "first_plan", no_planning)
    for worker, plan in expected.items():
        got = planner.plan_now(cluster(dead=(worker,)))
        assert got.schedule() == plan.schedule()
        assert (got.moves, got.period_s, got.reason) == (plan.moves, plan.period_s, plan.reason)


def test_what_was_prepared_steps_ago_still_fits(planner, monkeypatch):
    planner.prepare(cluster(version=3))
    assert planner.finish(LONG_S)
    monkeypatch.setattr(service, "first_plan", no_planning)
    asked = cluster(dead=(WorkerId(1, 1),), version=8)
    assert planner.plan_now(asked).fleet.problem == asked


def test_what_was_prepared_for_another_cluster_is_forgotten(planner, monkeypatch):
    planner.prepare(cluster())
    assert planner.finish(LONG_S)
    planner.prepare(cluster(4))
    assert planner.finish(LONG_S)
    monkeypatch.setattr(service, "first_plan", no_planning)
    with pytest.raises(AssertionError, match="planned again"):
        planner.plan_now(cluster(dead=(WorkerId(1, 1),)))


def test_a_death_that_loses_a_stage_is_told_when_it_happens_not_before(planner):
    planner.prepare(cluster(1))
    assert planner.finish(LONG_S)
    with pytest.raises(ConfigError, match="stage 1 has no live holder"):
        planner.plan_now(cluster(1, dead=(WorkerId(0, 1),)))


def test_nothing_is_prepared_for_a_very_large_cluster(planner, monkeypatch):
    monkeypatch.setattr(service, "MOST_PREPARED", 5)
    asked = Endless()
    monkeypatch.setattr(service, "refine", asked)
    planner.prepare(cluster())  # six workers
    assert planner.finish(LONG_S)
    assert asked.asked == []


def test_prepared_plans_have_a_limit_in_memory(planner, monkeypatch):
    one = first_plan(cluster(dead=(WorkerId(0, 0),))).order.board.graph.num_ops
    monkeypatch.setattr(service, "MOST_PREPARED_OPS", one)
    asked = Endless()
    monkeypatch.setattr(service, "refine", asked)
    planner.prepare(cluster())
    assert planner.finish(LONG_S)
    assert 1 <= len(asked.asked) <= 3


# --- in the background ---


def test_refining_ends_with_the_best_plan(planner):
    asked = cluster(2, 2, dead=(WorkerId(0, 1),))
    first = planner.plan_now(asked)
    planner.refine_in_background(asked)
    assert planner.finish(LONG_S)
    better, best = planner.better(), best_plan(asked)
    assert better.schedule() == best.schedule() != first.schedule()
    assert better.period_s == best.period_s < first.period_s


@pytest.mark.parametrize("most", [5, 6])
def test_refining_rests_between_trials_if_the_cluster_is_large(
    planner, monkeypatch, own_time, most
):
    pauses: list[float] = []
    own_time.sleep = pauses.append
    monkeypatch.setattr(service, "MOST_PREPARED", most)
    planner.refine_in_background(cluster())  # of 6 workers
    assert planner.finish(LONG_S)
    assert bool(pauses) == (most < 6)
    assert all(0.0 <= pause_s <= 0.5 for pause_s in pauses)


def test_whoever_asks_never_waits_for_a_thread_that_rests(planner, monkeypatch, own_time):
    waited: list[bool] = []

    def ask(_s: float) -> None:
        asks = threading.Thread(target=planner.better, daemon=True)
        asks.start()
        asks.join(LONG_S / 2)
        waited.append(asks.is_alive())

    own_time.sleep = ask
    monkeypatch.setattr(service, "MOST_PREPARED", 5)
    planner.refine_in_background(cluster())
    assert planner.finish(LONG_S)
    assert waited
    assert not any(waited)


def test_a_large_cluster_takes_its_share_however_long_a_trial_is(monkeypatch, own_time):
    clock = [0.0]
    own_time.thread_time = lambda: clock[0]
    pauses: list[float] = []
    own_time.sleep = pauses.append
    monkeypatch.setattr(service, "MOST_PREPARED", 5)
    leisure = service.Leisure(cluster())
    for worked_s in (0.01, 0.1, 2.0):
        clock[0] += worked_s
        pauses.clear()
        leisure.pause(lambda: None)
        assert sum(pauses) == pytest.approx(19 * worked_s)
        assert max(pauses) <= 0.5


def test_a_rest_ends_when_nobody_wants_the_answer(monkeypatch, own_time):
    clock = [0.0]
    own_time.thread_time = lambda: clock[0]
    pauses: list[float] = []
    own_time.sleep = pauses.append
    monkeypatch.setattr(service, "MOST_PREPARED", 5)
    leisure = service.Leisure(cluster())
    clock[0] = 10.0

    def dropped() -> None:
        raise service.DroppedError

    with pytest.raises(service.DroppedError):
        leisure.pause(dropped)
    assert pauses == [0.5]


def test_without_a_thread_the_first_plan_holds_and_better_ones_come_later(planner, monkeypatch):
    refused = refuse_threads(monkeypatch, "planner", 2)
    asked = cluster(2, 2, dead=(WorkerId(0, 1),))
    planner.plan_now(asked)
    planner.refine_in_background(asked)
    assert planner.better() is None
    assert len(refused) == 2
    assert not planner.finish(LONG_S)
    assert planner.better() is None  # a thread works on it from here on
    assert planner.finish(LONG_S)
    assert planner.better().schedule() == best_plan(asked).schedule()


def test_a_search_that_runs_out_of_memory_is_left_out(planner, monkeypatch):
    failed = threading.Event()

    def large(problem, *, plain, between):
        failed.set()
        raise MemoryError

    monkeypatch.setattr(service, "refine", large)
    planner.refine_in_background(cluster())
    assert planner.finish(LONG_S)
    assert failed.is_set()
    assert planner.better() is None
    assert planner.plan_now(cluster()).schedule() == first_plan(cluster()).schedule()


def test_a_better_plan_is_given_out_once(planner):
    planner.plan_now(cluster())
    planner.refine_in_background(cluster())
    assert planner.finish(LONG_S)
    assert planner.better() is not None
    assert planner.better() is None
    planner.refine_in_background(cluster())  # once more: finds no more than before
    assert planner.finish(LONG_S)
    assert planner.better() is None


def test_a_plan_that_is_the_one_given_out_is_not_better(planner, monkeypatch):
    asked = Endless()
    monkeypatch.setattr(service, "refine", asked)
    planner.plan_now(cluster())
    planner.refine_in_background(cluster())
    assert asked.trying.wait(LONG_S)
    assert planner.better() is None


def test_a_death_ends_the_work_for_the_cluster_before_it(planner, monkeypatch):
    asked = Endless()
    monkeypatch.setattr(service, "refine", asked)
    planner.refine_in_background(cluster())
    assert asked.trying.wait(LONG_S)
    planner.plan_now(cluster(dead=(WorkerId(0, 0),)))
    assert asked.dropped.wait(LONG_S)
    assert planner.better() is None  # though a plan had been found


def test_asking_for_the_same_again_does_not_begin_anew(planner, monkeypatch):
    asked = Endless()
    monkeypatch.setattr(service, "refine", asked)
    planner.refine_in_background(cluster())
    assert asked.trying.wait(LONG_S)
    planner.plan_now(cluster(version=1))
    planner.refine_in_background(cluster(version=1))
    assert not asked.dropped.wait(0.05)


def test_refining_goes_before_preparing(planner, monkeypatch):
    asked = Endless()
    monkeypatch.setattr(service, "refine", asked)
    planner.refine_in_background(cluster())
    planner.prepare(cluster())
    assert asked.trying.wait(LONG_S)
    assert asked.asked == [cluster()]


def test_after_refining_comes_preparing(planner, monkeypatch):
    planner.refine_in_background(cluster())
    planner.prepare(cluster())
    assert planner.finish(LONG_S)
    monkeypatch.setattr(service, "first_plan", no_planning)
    planner.plan_now(cluster(dead=(WorkerId(2, 0),)))


def test_stopping_does_not_wait_for_a_long_search(planner, monkeypatch):
    improving = threading.Event()

    class Told(planning.OrderSearch):
        def improve(self, *args, **kwargs):
            improving.set()
            return super().improve(*args, **kwargs)

    monkeypatch.setattr(planning, "OrderSearch", Told)
    monkeypatch.setattr(planning, "NUM_TRIALS", 10**9)
    monkeypatch.setattr(planning, "NUM_TRIED_OPS", 10**15)
    planner.refine_in_background(cluster())
    assert improving.wait(LONG_S)
    planner.stop(LONG_S)


def test_after_a_stop_the_planner_works_on(planner):
    planner.refine_in_background(cluster())
    planner.stop(LONG_S)
    planner.refine_in_background(cluster())
    assert planner.finish(LONG_S)
    assert planner.better().schedule() == best_plan(cluster()).schedule()


def test_a_thread_that_does_not_end_is_told(planner, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()

    def stuck(problem, *, plain, between):
        inside.set()
        go_on.wait(LONG_S)
        yield from ()

    monkeypatch.setattr(service, "refine", stuck)
    planner.refine_in_background(cluster())
    assert inside.wait(LONG_S)
    with pytest.raises(WaitTimeout, match=r"still busy after 0\.01 s"):
        planner.stop(timeout_s=0.01)
    go_on.set()


@pytest.mark.parametrize(
    "call",
    [
        lambda planner: planner.plan_now(cluster()),
        lambda planner: planner.better(),
        lambda planner: planner.refine_in_background(cluster()),
        lambda planner: planner.prepare(cluster()),
        lambda planner: planner.stop(),
    ],
)
def test_the_next_call_raises_what_went_wrong_in_the_background(planner, monkeypatch, call):
    failed = threading.Event()

    def broken(problem, *, plain, between):
        try:
            raise RuntimeError("a fault in the search")
        finally:
            failed.set()

    monkeypatch.setattr(service, "refine", broken)
    planner.refine_in_background(cluster())
    assert failed.wait(LONG_S)
    for thread in [one for one in threading.enumerate() if one.name == "planner"]:
        thread.join(LONG_S)
    with pytest.raises(RuntimeError, match="a fault in the search"):
        call(planner)
    planner.better()  # told once


# --- which questions are the same ---


@pytest.mark.parametrize(
    "change",
    [
        {"shape": Shape(3, 2, 12)},
        {"costs": Costs.uniform(2)},
        {"memory": Memory(limit=3.0)},
        {"memory": Memory(limit=2.0, limits={WorkerId(0, 0): 4.0})},
        {"links": LinkCosts(unusual={(WorkerId(0, 0), WorkerId(0, 1)): LinkCost(3.0)})},
        {"staggered": False},
        {"horizon_steps": 1},
        {"move_s": 1.0},
        {"two_stages": False},
        {"may_move": False},
        {"members": cluster().members[1:]},
        {"members": (*cluster().members[1:], Member(WorkerId(0, 0), 0, 0.5))},
        {"members": (*cluster().members[1:], Member(WorkerId(0, 0), 1))},
        {"members": (*cluster().members[1:], Member(WorkerId(0, 0), None))},
        {"members": (*cluster().members[1:], Member(WorkerId(0, 0), 0, version=-1))},
    ],
    ids=str,
)
def test_any_other_cluster_is_another_question(change):
    assert question(replace(cluster(), **change)) != question(cluster())


@pytest.mark.parametrize(
    "change",
    [
        {"members": cluster().members[::-1]},
        {"members": (*cluster().members, Member(WorkerId(7, 0), 0, 0.0, version=9))},
        {"members": cluster(version=5).members},
        {"memory": Memory(limit=2.0, limits={WorkerId(7, 0): 4.0})},
        {"links": LinkCosts(unusual={(WorkerId(0, 0), WorkerId(7, 1)): LinkCost(3.0)})},
    ],
    ids=str,
)
def test_the_dead_and_the_count_of_steps_make_no_other_question(change):
    same = replace(cluster(), **change)
    assert question(same) == question(cluster())
    assert first_plan(same).schedule() == first_plan(cluster()).schedule()


# --- before the first plan ---

AFTER_WARM_UP = """
from holdfast.planner.kernel import kernel
from holdfast.planner.assign import kernels as roles_kernels
from holdfast.planner.planning import first_plan
from holdfast.planner.warm_up import warm_up
from test_planner_properties import draw

def num_compiled():
    kernels = [*vars(kernel).values(), *vars(roles_kernels).values()]
    return [len(made.signatures) for made in kernels if hasattr(made, "signatures")]

warm_up()
before = num_compiled()
for number in range(60):
    first_plan(draw(f"warm-{number}"))
assert sum(before) >= 4, before
assert num_compiled() == before, (before, num_compiled())
"""


def test_after_warming_up_nothing_is_left_to_compile():
    pytest.importorskip("numba")
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", AFTER_WARM_UP],
        cwd=here,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        timeout=100,
    )


def test_importing_the_planner_does_not_load_numba():
    pytest.importorskip("numba")
    code = (
        "import sys\n"
        "from holdfast.planner import service\n"
        "from holdfast.planner.warm_up import warm_up\n"
        "assert 'numba' not in sys.modules\n"
        "warm_up()\n"
        "sys.exit('numba' not in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
