"""The launcher is killed; its workers go on, and whoever resumes the run goes on with them."""

import os
import random
import signal
import subprocess
import time

import pytest

from helpers import live, runs
from helpers.etcd_server import etcd_cluster
from helpers.seed import SEED
from helpers.wide import first_two
from holdfast.observability import events, log

STEPS = 25
LIMIT_S = 240.0
SLOW_S, FAST_S = 0.05, 0.01  # of a sample: a run does not end before its launcher is killed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("takeover")


@pytest.fixture(scope="module")
def job(folder):
    return live.paced(folder)


@pytest.fixture(scope="module")
def calm(folder, job):
    live.pace(folder, FAST_S)
    return runs.finished(runs.processes(job, folder / "calm", *runs.layout("1x2"), steps=STEPS))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield cluster


def started(*words):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(runs.command(*words), env=runs.environment(), **quiet)


def begun(job, run_dir, *more, layout="1x2", sample_s=SLOW_S):
    live.pace(job.parent, sample_s)
    process = started(*runs.arguments(job, run_dir, *runs.layout(layout), *more, steps=STEPS))
    live.wait_until(lambda: num_steps(run_dir) > 0, "the first step to be finished")
    return process


def num_steps(run_dir):
    return len(any_of(run_dir, events.StepFinished))


def any_of(run_dir, kind):
    try:
        found = log.read_events(run_dir / log.EVENTS_FILE)
    except Exception:
        return []
    return [event for event in found if isinstance(event, kind)]


def resumed(run_dir):
    live.pace(run_dir.parent, FAST_S)
    done = subprocess.run(
        runs.command("train", "--resume", str(run_dir)),
        capture_output=True,
        text=True,
        env=runs.environment(),
        timeout=LIMIT_S,
    )
    return runs.Outcome(run_dir, done.returncode, done.stdout, done.stderr)


def killed(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", first_two(0, 2, range(20)))
def test_a_killed_launcher_is_taken_over_from_in_the_same_step(folder, job, calm, number):
    check_taken_over(job, calm, folder / f"run-{number}")


@pytest.mark.cluster
@pytest.mark.multiprocess
@pytest.mark.parametrize("number", range(20))
def test_a_killed_launcher_is_taken_over_from_with_its_journal_in_etcd(
    folder, job, calm, etcd, number
):
    journal = f"control.journal={etcd.address(f'run-{number}')}"
    check_taken_over(job, calm, folder / f"etcd-{number}", *runs.settings(journal))


def check_taken_over(job, calm, run_dir, *settings):
    process = begun(job, run_dir, *settings)
    time.sleep(random.Random(f"{SEED}-{run_dir.name}").uniform(0.0, 1.5))
    killed(process)
    outcome = resumed(run_dir)
    assert outcome.exit_code == 0, outcome
    assert outcome.sha256 == calm.sha256
    assert outcome.losses == calm.losses
    assert outcome.summary["went_back"] == []
    took_over = [event for event in outcome.events if isinstance(event, events.TookOver)]
    if took_over:  # else it had ended already
        assert took_over[0].workers == ("0.0", "0.1")
        assert "it goes on where they are" in outcome.stderr
    live.assert_nothing_left(outcome)


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", first_two(0, 1, range(6)))
def test_one_that_takes_over_may_be_killed_too(folder, job, calm, number):
    run_dir, dice = folder / f"twice-{number}", random.Random(f"{SEED}-twice-{number}")
    process = begun(job, run_dir)
    time.sleep(dice.uniform(0.0, 0.5))
    killed(process)
    live.pace(folder, FAST_S)
    process = started("train", "--resume", str(run_dir))
    if dice.random() < 0.5:
        live.wait_until(
            lambda: any_of(run_dir, events.TookOver) or process.poll() is not None, "a successor"
        )
    else:
        time.sleep(dice.uniform(0.0, 4.0))  # it loads, waits for a knock, or is about to go on
    killed(process)
    outcome = resumed(run_dir)
    if outcome.exit_code == 2:  # the second one had ended the run
        assert "nothing is left to do" in outcome.stderr
        outcome = runs.Outcome(run_dir, 0, "", "")
    assert outcome.exit_code == 0, outcome
    assert outcome.sha256 == calm.sha256
    assert outcome.losses == calm.losses
    assert outcome.summary["went_back"] == []
    live.assert_nothing_left(outcome)


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", first_two(0, 1, range(4)))
def test_a_worker_that_dies_while_nobody_leads_is_lost_and_the_others_go_on(
    folder, job, calm, number
):
    run_dir, dice = folder / f"worker-{number}", random.Random(f"{SEED}-worker-{number}")
    process = begun(job, run_dir, layout="2x2")
    workers = {event.worker: event.pid for event in any_of(run_dir, events.WorkerReady)}
    victim = dice.choice(sorted(workers))
    killed(process)
    time.sleep(dice.uniform(0.0, 0.3))
    os.kill(workers[victim], signal.SIGKILL)
    outcome = resumed(run_dir)
    assert outcome.exit_code == 0, outcome
    assert victim in [event.worker for event in any_of(run_dir, events.WorkerLost)]
    assert outcome.sha256 == calm.sha256
    assert outcome.losses == calm.losses
    assert outcome.summary["went_back"] == []
    live.assert_nothing_left(outcome)


@pytest.mark.wide
@pytest.mark.multiprocess
def test_without_workers_it_goes_on_from_the_checkpoint_and_says_so(folder, job, calm):
    run_dir = folder / "nobody"
    settings = runs.settings("workers.orphan_limit_s=1", "checkpoint.every_steps=2")
    process = begun(job, run_dir, *settings)
    live.wait_until(lambda: any_of(run_dir, events.CheckpointSaved), "a checkpoint")
    address = live.address_of(log.read_events(run_dir / log.EVENTS_FILE))
    killed(process)
    live.wait_until(lambda: not live.processes_of(address), "orphans to end")
    outcome = resumed(run_dir)
    assert outcome.exit_code == 0, outcome
    assert outcome.sha256 == calm.sha256


@pytest.mark.wide
@pytest.mark.multiprocess
def test_nobody_takes_over_from_a_launcher_that_is_there(folder, job, calm):
    run_dir = folder / "led"
    process = begun(job, run_dir)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        outcome = resumed(run_dir)
        assert outcome.exit_code == 2
        assert "leads this run" in outcome.stderr
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert process.wait(LIMIT_S) == 0
    assert runs.Outcome(run_dir, 0, "", "").sha256 == calm.sha256


def standing_by(run_dir, said):
    with said.open("w") as out:
        standby = subprocess.Popen(
            runs.command("standby", str(run_dir)), env=runs.environment(), stdout=out
        )
    live.wait_until(lambda: "leads the run" in said.read_text(), "the standby to be there")
    return standby


@pytest.mark.wide
@pytest.mark.multiprocess
@pytest.mark.timeout(300)
def test_a_standby_on_the_same_machine_waits_for_the_lock(folder, job, calm, tmp_path):
    run_dir, said = folder / "watched", tmp_path / "said"
    process = begun(job, run_dir, sample_s=0.3)  # a standby is not there at once
    standby = standing_by(run_dir, said)
    killed(process)
    live.pace(folder, FAST_S)
    assert standby.wait(LIMIT_S) == 0
    outcome = runs.Outcome(run_dir, 0, said.read_text(), "")
    assert outcome.sha256 == calm.sha256
    assert outcome.losses == calm.losses
    assert [event.step for event in outcome.events if isinstance(event, events.TookOver)]
    live.assert_nothing_left(outcome)


@pytest.mark.wide
@pytest.mark.multiprocess
@pytest.mark.timeout(300)
def test_a_standby_that_is_interrupted_leaves_the_run_alone(folder, job, calm, tmp_path):
    run_dir, said = folder / "left-alone", tmp_path / "said"
    process = begun(job, run_dir, sample_s=0.3)
    standby = standing_by(run_dir, said)
    standby.send_signal(signal.SIGINT)
    assert standby.wait(LIMIT_S) == 130
    live.pace(folder, FAST_S)
    assert process.wait(LIMIT_S) == 0
    assert runs.Outcome(run_dir, 0, "", "").sha256 == calm.sha256
