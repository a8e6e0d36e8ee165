"""The launcher is killed; its workers go on, and whoever resumes the run goes on with them."""

import os
import random
import signal
import subprocess
import time

import pytest

from helpers import live, runs
from helpers.seed import SEED
from helpers.wide import first_two
from holdfast.observability import events

STEPS = 25
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("takeover")


@pytest.fixture(scope="module")
def job(folder):
    job = live.paced(folder)
    live.pace(folder, 0.01)
    return job


@pytest.fixture(scope="module")
def calm(folder, job):
    return runs.finished(runs.processes(job, folder / "calm", *runs.layout("1x2"), steps=STEPS))


def begun(job, run_dir, *more):
    words = runs.arguments(job, run_dir, *runs.layout("1x2"), *more, steps=STEPS)
    process = subprocess.Popen(
        runs.command(*words), env=runs.environment(), stdout=subprocess.DEVNULL
    )
    live.wait_until(lambda: num_steps(run_dir) > 0, "the first step to be finished")
    return process


def num_steps(run_dir):
    try:
        found = events.read_events(run_dir / events.EVENTS_FILE)
    except Exception:
        return 0
    return sum(isinstance(event, events.StepFinished) for event in found)


def resumed(run_dir):
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
    run_dir = folder / f"run-{number}"
    process = begun(job, run_dir)
    time.sleep(random.Random(f"{SEED}-{number}").uniform(0.0, 1.5))
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


@pytest.mark.wide
@pytest.mark.multiprocess
def test_without_workers_it_goes_on_from_the_checkpoint_and_says_so(folder, job, calm):
    run_dir = folder / "nobody"
    settings = runs.settings("workers.orphan_limit_s=1", "checkpoint.every_steps=2")
    process = begun(job, run_dir, *settings)
    manifests = "checkpoints/step-*/manifest.json"
    live.wait_until(lambda: list(run_dir.glob(manifests)), "a checkpoint")
    address = live.address_of(events.read_events(run_dir / events.EVENTS_FILE))
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
