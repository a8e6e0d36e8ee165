"""The published ways to recover, and workers that are started again: to the same bits.

Threads go through many points of a step; real processes show that the same holds for them.
"""

from collections import Counter

import pytest

from helpers import jobs, runs
from helpers.live import assert_nothing_left
from helpers.sweeps.chaos import QUICK
from helpers.sweeps.chaos_order import steps_wait_for_checkpoints, unhurried_joins
from helpers.wide import first
from holdfast.observability.events import (
    CheckpointSaved,
    IntervalChosen,
    WentBack,
    WorkerJoined,
    WorkerReady,
)

pytestmark = pytest.mark.timeout(300)
STEPS, MICROBATCHES = 8, 4
NUMBERS = {"steps": STEPS, "microbatches": MICROBATCHES}
EVERY_2 = "checkpoint.every_steps=2"
PATIENT = "workers.heartbeat_timeout_s=30"  # a busy machine is no fault


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **NUMBERS))


def train(kind, tmp_path, layout, faults, *assignments, **numbers):
    flags = [word for fault in faults for word in ("--fault", fault)]
    words = [*runs.layout(layout), *flags, *runs.settings(PATIENT, *assignments)]
    return kind(jobs.mixed(tmp_path), tmp_path / "run", *words, **NUMBERS | numbers)


def assert_as_undisturbed(run, undisturbed, faults):
    runs.finished(run)
    assert sorted(run.summary["faults_fired"]) == sorted(faults)
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses


def hellos(run):
    return Counter(event.worker for event in run.events if isinstance(event, WorkerReady))


def went_back(run):
    return [event for event in run.events if isinstance(event, WentBack)]


DEATHS = {
    "alone in its stage": ("1x2", ["kill 0.1 @ 5.B0"]),
    "half-way through an update": ("1x2", ["kill 0.0 @ 5.half"]),
    "while it saves": ("2x2", ["kill 0.0 @ 4.save"]),
    "with its share of the norm told": ("2x2", ["kill 1.1 @ 5.told"]),
    "twice, in different steps": ("2x2", ["kill 1.0 @ 3.F1", "kill 0.1 @ 6.reduced"]),
    "two at once": ("2x2", ["kill 0.0 @ 4.B1", "kill 1.1 @ 4.B1"]),
}


MODES = ("global", "checkfreq", "commit")
EVERY_PAIR = [(mode, death) for death in DEATHS for mode in MODES]


@pytest.mark.parametrize(("mode", "death"), first(3, EVERY_PAIR[::4] if QUICK else EVERY_PAIR))
def test_in_every_mode_a_death_leaves_no_trace_in_the_result(tmp_path, undisturbed, mode, death):
    layout, faults = DEATHS[death]
    run = train(runs.threads, tmp_path, layout, faults, EVERY_2, f"recovery.mode={mode}")
    assert_as_undisturbed(run, undisturbed, faults)
    assert went_back(run)


@pytest.mark.multiprocess
@pytest.mark.wide
@pytest.mark.parametrize("mode", MODES[:1] if QUICK else MODES[:2])
def test_a_killed_process_ends_all_and_all_are_new_processes_then(tmp_path, undisturbed, mode):
    faults = ["kill 1.0 @ 5.B1"]
    run = train(runs.processes, tmp_path, "2x2", faults, EVERY_2, f"recovery.mode={mode}")
    assert_as_undisturbed(run, undisturbed, faults)
    assert set(hellos(run).values()) == {2}, hellos(run)
    pids = [event.pid for event in run.events if isinstance(event, WorkerReady)]
    assert len(set(pids)) == 8
    [back] = went_back(run)
    assert f"recovery.mode={mode}" in back.reason
    assert_nothing_left(run)


@pytest.mark.wide
@pytest.mark.multiprocess
def test_in_mode_commit_the_survivors_of_a_killed_process_go_on(tmp_path, undisturbed):
    faults = ["kill 1.0 @ 5.B1"]
    run = train(runs.processes, tmp_path, "2x2", faults, "recovery.mode=commit")
    assert_as_undisturbed(run, undisturbed, faults)
    assert set(hellos(run).values()) == {1}, hellos(run)
    [back] = went_back(run)
    assert (back.checkpoint, back.to_step) in (("", 4), ("", 3))
    assert_nothing_left(run)


@pytest.mark.wide
@pytest.mark.multiprocess
def test_a_process_that_only_hangs_ends_all_others_too(tmp_path, undisturbed):
    faults = ["hang 0.1 @ 5.F1"]
    quick = "workers.heartbeat_timeout_s=6"  # nobody else is silent for so long
    settings = ("recovery.mode=global", EVERY_2, quick)
    run = train(runs.processes, tmp_path, "2x2", faults, *settings)
    assert_as_undisturbed(run, undisturbed, faults)
    assert set(hellos(run).values()) == {2}, hellos(run)
    assert_nothing_left(run)


@pytest.mark.parametrize("consistency", first(1, ["keep-old", "undo"]))
def test_copies_in_memory_that_are_rare_cost_steps_but_no_bits(tmp_path, undisturbed, consistency):
    faults = ["kill 1.0 @ 6.B1"]
    settings = ["recovery.mode=commit", "recovery.commit_every=3"]
    settings += [f"recovery.consistency={consistency}"]
    run = train(runs.threads, tmp_path, "2x2", faults, *settings)
    assert_as_undisturbed(run, undisturbed, faults)
    assert [(back.checkpoint, back.to_step) for back in went_back(run)] == [("", 3)]


@pytest.mark.wide
def test_in_mode_commit_somebody_may_join_and_a_loss_after_that_is_nothing_special(
    tmp_path, monkeypatch
):
    unhurried_joins(monkeypatch)
    undisturbed = runs.threads(jobs.mixed(tmp_path), tmp_path / "undisturbed", steps=40)
    faults = ["kill 1.0 @ 3.B0", "join 1.0 @ 4", "kill 0.0 @ 36.B0"]
    run = train(runs.threads, tmp_path, "2x2", faults, "recovery.mode=commit", steps=40)
    assert_as_undisturbed(run, undisturbed, faults)
    assert any(isinstance(event, WorkerJoined) for event in run.events)
    assert [back.checkpoint for back in went_back(run)] == ["", ""]


def test_without_a_survivor_of_a_stage_mode_commit_goes_back_to_the_checkpoint(
    tmp_path, undisturbed, monkeypatch
):
    steps_wait_for_checkpoints(monkeypatch, every=2)
    faults = ["kill 0.1 @ 5.B0", "kill 1.1 @ 5.B0"]
    run = train(runs.threads, tmp_path, "2x2", faults, EVERY_2, "recovery.mode=commit")
    assert_as_undisturbed(run, undisturbed, faults)
    assert went_back(run)[-1].checkpoint


def test_mode_checkfreq_chooses_how_often_and_the_checkpoints_are_whole(tmp_path):
    settings = ["recovery.mode=checkfreq", "checkpoint.every_steps=12", "checkpoint.keep=30"]
    # Steps take their time: else a slow disk writes the first one until the run is over.
    settings += ["recovery.overhead=1.0", "device.emulate=F=5ms,B=5ms,W=5ms"]
    run = train(runs.threads, tmp_path, "1x2", [], *settings, steps=60)
    runs.finished(run)
    first, *later = [event for event in run.events if isinstance(event, IntervalChosen)]
    saved = [event.step for event in run.events if isinstance(event, CheckpointSaved)]
    assert saved[0] == 12
    assert saved[-1] == 60
    assert set(saved) - {12, 24, 36, 48, 60}, "others than those of the first interval"
    # One is left out when its turn comes while an earlier one is still being written.
    until = min([60, *(event.first for event in later)])
    chosen = [step for step in saved if first.first <= step < until]
    assert all((step - first.first) % first.every == 0 for step in chosen)


@pytest.mark.wide
def test_in_two_phases_the_same_state_is_saved_as_in_one(tmp_path):
    one = runs.finished(train(runs.threads, tmp_path, "1x2", [], "checkpoint.every_steps=3"))
    words = [*runs.layout("1x2"), *runs.settings("checkpoint.every_steps=3")]
    words += runs.settings("recovery.mode=checkfreq", "checkpoint.at_end=false")
    two = runs.finished(runs.threads(jobs.mixed(tmp_path), tmp_path / "two", *words, **NUMBERS))
    resume = ["--resume", str(two.run_dir), *runs.settings("checkpoint.at_end=true")]
    resumed = runs.threads(jobs.mixed(tmp_path), tmp_path / "resumed", *resume, **NUMBERS)
    assert runs.finished(resumed).summary["first_step"] == 6
    runs.assert_same_result(resumed, one)


# --- workers are started again ---


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (runs.threads, "1x1"),
        (runs.threads, "1x2"),
        pytest.param(runs.processes, "1x2", marks=[pytest.mark.multiprocess, pytest.mark.wide]),
    ],
)
def test_a_worker_that_nobody_can_replace_is_started_again(tmp_path, undisturbed, kind, layout):
    last = "0.0" if layout == "1x1" else "0.1"
    faults = [f"kill {last} @ 4.B0", f"kill {last} @ 7.half"]
    run = train(kind, tmp_path, layout, faults, EVERY_2)
    assert_as_undisturbed(run, undisturbed, faults)
    assert hellos(run)[last] == 3
    assert hellos(run).total() == (3 if layout == "1x1" else 4), "the others live on"


def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path):
    faults = [f"kill 0.1 @ 4.{point}" for point in ("B0", "B1", "F1")]
    run = train(runs.threads, tmp_path, "1x2", faults, EVERY_2, "workers.restarts=2")
    assert run.exit_code == 1
    [line] = run.stderr.splitlines()
    assert "1 live worker cannot hold 2 stages" in line
    assert "started again 2 times in a row (workers.restarts=2)" in line
    assert "--resume" in line
