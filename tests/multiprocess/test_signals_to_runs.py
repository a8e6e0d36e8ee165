"""SIGTERM and SIGHUP, as schedulers and closing terminals send them: to every process of a run.

A worker stands still at a point of a step while they come, so that each point is met for sure.
"""

import os
import signal
from contextlib import suppress

import pytest

from helpers import jobs, runs
from helpers.etcd_fake import HANGS, FakeEtcd, served
from helpers.live import LiveRun, paced, process_state, processes_of, wait_until
from holdfast.observability.events import CheckpointSaved, FaultFired, WorkerJoined, WorkerLost

pytestmark = [pytest.mark.multiprocess, pytest.mark.wide, pytest.mark.timeout(300)]
NUMBERS = {"steps": 12, "microbatches": 4}
LIMIT_S = 120.0  # of which 30 s may be the run's own, to end its step and save
POINTS = ["F1", "B1", "reduce", "half", "save"]  # all of PHASES were tried once: docs/lab-book.md


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **NUMBERS))


@pytest.fixture
def start(tmp_path):
    started = []

    def start_one(*more, steps=NUMBERS["steps"]):
        words = ["train", str(paced(tmp_path)), *runs.layout("2x2"), "--steps", str(steps)]
        words += ["--microbatches", "4", *more]
        words += runs.settings("workers.heartbeat_timeout_s=30", "checkpoint.every_steps=2")
        started.append(LiveRun(tmp_path, *words))
        return started[-1]

    yield start_one
    for run in started:
        run.close()


def signal_all(live: LiveRun, number: signal.Signals) -> None:
    os.killpg(live.launcher.pid, number)
    for pid in processes_of(live.address):
        with suppress(ProcessLookupError):  # the launcher may have ended it by now
            os.kill(pid, number)


def assert_saved_and_resumes(live: LiveRun, undisturbed, numbers=NUMBERS) -> None:
    assert live.wait_for_end(LIMIT_S) == 1
    [line] = live.stderr.splitlines()
    assert line.startswith("holdfast: interrupted; all workers were stopped. Go on from the last")
    saved = live.all_of(CheckpointSaved)[-1].step
    assert saved >= 3
    live.release()
    words = [*runs.layout("2x2"), "--resume", str(live.run_dir)]
    run = runs.finished(
        runs.threads(live.run_dir.parent / "paced.py", live.run_dir, *words, **numbers)
    )
    assert run.summary["first_step"] == saved
    assert run.sha256 == undisturbed.sha256


@pytest.mark.parametrize("point", POINTS)
def test_r5_a_signal_to_all_at_any_point_of_a_step_ends_with_a_checkpoint(
    start, undisturbed, point
):
    number = signal.SIGHUP if POINTS.index(point) % 2 else signal.SIGTERM
    live = start("--fault", f"hang 0.1 @ 4.{point}")
    live.wait_for(FaultFired)
    pid = live.workers["0.1"]
    wait_until(lambda: process_state(pid) == "T", "the worker to stand still")
    signal_all(live, number)
    os.kill(pid, signal.SIGCONT)
    assert_saved_and_resumes(live, undisturbed)


@pytest.mark.parametrize("num_signals", [1, 2])
def test_ctrl_c_ends_a_run_whose_etcd_is_away(start, num_signals):
    etcd = FakeEtcd()
    with served(etcd) as place:
        # A lease that does not run out because this process, which is etcd, is busy.
        journal = (f"control.journal=etcd://{place}/run", "control.lease_s=30")
        live = start(*runs.settings(*journal), steps=1000)
        live.wait_for(CheckpointSaved)
        etcd.fault = lambda fake, path: HANGS
        for _ in range(num_signals):
            live.launcher.send_signal(signal.SIGINT)
        assert live.wait_for_end(LIMIT_S) == 1
    *before, last = live.stderr.splitlines()
    assert last.startswith("holdfast: the run ends without its journal (etcd://")
    assert last.endswith("; resume it from its newest checkpoint")
    assert [line[:40] for line in before] == ["holdfast: the journal cannot be written:"]
    wait_until(lambda: not processes_of(live.address), "all processes to end")


def test_r5_a_signal_to_all_while_one_joins_by_hand_ends_with_a_checkpoint(tmp_path, start):
    numbers = NUMBERS | {"steps": 100}
    undisturbed = runs.finished(runs.threads(jobs.mixed(tmp_path), tmp_path / "calm", **numbers))
    live = start(steps=100)
    live.wait_for_steps(2)
    live.kill("1.0")
    live.wait_for(WorkerLost)
    by_hand = live.join()
    live.wait_for(WorkerJoined)
    os.kill(by_hand.process.pid, signal.SIGTERM)
    signal_all(live, signal.SIGTERM)
    assert_saved_and_resumes(live, undisturbed, numbers)
    assert by_hand.process.wait(LIMIT_S) == 0
    assert "this worker goes on until the run ends" in by_hand.stderr


def test_r5_a_signal_to_the_group_before_training_is_a_clean_end(tmp_path, start):
    live = start()
    wait_until(lambda: "starting" in (tmp_path / "train.out").read_text(), "the first line")
    os.killpg(live.launcher.pid, signal.SIGTERM)
    assert live.wait_for_end(LIMIT_S) in (1, -signal.SIGTERM)
    assert "Traceback" not in live.stderr
    assert live.all_of(CheckpointSaved) == []
