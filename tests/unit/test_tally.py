"""The tests' own clock: more CPU time than was promised fails a run, whatever the machine."""

from types import SimpleNamespace

import pytest

from helpers import drawn
from helpers import tally as module
from helpers.tally import BUDGETS, CLUSTER, PROMISED_S, TOTAL_MARGIN, USUAL, WIDE, Tally


@pytest.fixture(autouse=True)
def nobody_sweeps(monkeypatch):
    for name in ("HOLDFAST_SWEEP", "HOLDFAST_SOAK"):
        monkeypatch.delenv(name, raising=False)


def counted(seconds, slowness=1.0, **config):
    """A run that took so many CPU seconds, by folder and kind, on a machine that slow."""
    tally = Tally(SimpleNamespace(**config))
    for key in seconds:
        tally.tests[key] += 1
        tally.seconds[key] += seconds[key]
    tally.probes = [slowness * module.PROBE_S]
    return tally


def whole(factor, kind=USUAL):
    """All folders, each at the same multiple of its budget."""
    return {(name, kind): factor * both[kind == WIDE] for name, both in BUDGETS.items()}


def exit_status(tally, before=0):
    session = SimpleNamespace(exitstatus=before)
    tally.pytest_sessionfinish(session)
    return session.exitstatus


def test_the_budgets_leave_what_was_promised_for_make_test_and_for_all():
    assert module.predicted_s(module.budget_of(USUAL)) <= PROMISED_S[USUAL]
    both = module.budget_of(USUAL) + module.budget_of(WIDE)
    assert module.predicted_s(both) <= PROMISED_S[WIDE]


def test_no_margin_of_all_together_is_as_wide_as_that_of_a_folder():
    assert 1.0 < TOTAL_MARGIN < module.MARGIN


@pytest.mark.parametrize("kind", [USUAL, WIDE])
def test_a_run_within_its_budgets_passes(kind):
    tally = counted(whole(1.0, kind))
    assert tally.too_long() == []
    assert exit_status(tally) == 0


def test_tests_with_several_machines_take_as_long_as_they_take():
    tally = counted({(name, CLUSTER): 1e6 for name in BUDGETS})
    assert tally.too_long() == []
    assert exit_status(tally) == 0


@pytest.mark.parametrize("kind", [USUAL, WIDE])
def test_all_folders_a_little_over_their_budgets_fail_the_run_together(kind):
    tally = counted(whole(TOTAL_MARGIN + 0.01, kind))
    [line] = tally.too_long()
    assert line.startswith(f"all tests ({kind}): ")
    assert f"more than {TOTAL_MARGIN:g} x {module.budget_of(kind)} s" in line
    assert exit_status(tally) == 1


def test_a_single_folder_over_its_margin_fails_the_run_alone():
    budget = BUDGETS["contract"][0]
    tally = counted({("contract", USUAL): module.MARGIN * budget + 1, ("unit", USUAL): 1})
    [line] = tally.too_long()
    assert line.startswith(f"tests/contract (usual): {module.MARGIN * budget + 1:.0f} CPU-s")
    assert exit_status(tally) == 1


def test_a_slow_machine_may_take_as_much_longer_as_it_is_slower():
    slow = counted(whole(3.0), slowness=3.0)
    assert slow.too_long() == []
    assert counted(whole(3.0), slowness=2.0).too_long()


def test_a_fast_machine_must_take_less():
    assert counted(whole(0.7)).too_long() == []
    assert counted(whole(0.7), slowness=0.5).too_long()


def test_another_failure_of_the_run_is_not_written_over():
    assert exit_status(counted(whole(9.0)), before=3) == 3


@pytest.mark.parametrize("name", ["HOLDFAST_SWEEP", "HOLDFAST_SOAK"])
def test_a_sweep_takes_as_long_as_it_was_asked_to(monkeypatch, name):
    monkeypatch.setenv(name, "100")
    assert counted(whole(9.0)).too_long() == []


def test_what_test_processes_counted_is_added_up():
    both = counted({})
    both.probes = []
    for num, seconds in enumerate((100.0, 200.0), start=1):
        node = counted({("unit", USUAL): seconds}, slowness=num, workeroutput={})
        assert exit_status(node) == 0  # whoever started it decides
        both.pytest_testnodedown(SimpleNamespace(workeroutput=node.config.workeroutput))
    both.pytest_testnodedown(SimpleNamespace())  # it died: nothing is known of it
    assert both.slowness == 1.5
    assert list(both.totals()) == [(USUAL, 2, 200.0, module.budget_of(USUAL))]


def test_the_total_is_shown_beside_its_limit_and_the_promised_time():
    budget = module.budget_of(USUAL)
    *_, total, _, promise = counted(whole(1.0)).table()
    shown = [f"{budget:.1f}", str(budget), f"{TOTAL_MARGIN * budget:.0f}"]
    assert total.split() == ["all", USUAL, "5", *shown]
    assert promise.endswith(f"{module.predicted_s(budget):.0f} s, promised are 480 s")


def test_a_part_of_the_tests_says_nothing_of_the_promised_time():
    assert not [line for line in counted({("unit", USUAL): 9.0}).table() if "promised" in line]


def test_each_is_drawn_within_a_few_trees_and_the_same_tree_draws_the_same():
    names = [f"tests/multiprocess/test_a.py::test_{number}" for number in range(100)]
    trees = [{name for name in names if drawn.is_drawn(name, str(seed))} for seed in range(12)]
    assert trees[3] == {name for name in names if drawn.is_drawn(name, "3")}
    assert all(40 < len(tree) < 80 for tree in trees)
    assert set().union(*trees) == set(names)
