"""Real processes that really die: training goes on, to the parameters of the undisturbed run.

HOLDFAST_SEED repeats a random sample; it is in the names of the tests and printed when one fails.
"""

import os
import random
import signal
import time
from collections import Counter

import pytest

from helpers import jobs, runs
from helpers.live import LiveRun, assert_nothing_left, is_running, paced, wait_until
from helpers.seed import SEED
from helpers.sweeps.chaos import PHASES
from helpers.wide import first
from holdfast.observability.events import WorkerJoined, WorkerLost, WorkerReady

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
STEPS, MICROBATCHES = 6, 6
PACED_STEPS = 60  # at their slow pace they take longer than any test
EVERY_2 = runs.settings("checkpoint.every_steps=2")
PATIENT = runs.settings("workers.heartbeat_timeout_s=30")  # a busy machine is no fault
NUMBERS = {"steps": STEPS, "microbatches": MICROBATCHES}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **NUMBERS))


@pytest.fixture(scope="module")
def undisturbed_paced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paced")
    numbers = {"steps": PACED_STEPS, "microbatches": MICROBATCHES}
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **numbers))


@pytest.fixture
def start(tmp_path):
    """2 x 2 workers in the middle of a run that is slow until it is released."""
    started = []

    def start_one(*settings):
        words = ["train", str(paced(tmp_path)), *runs.layout("2x2"), "--steps", str(PACED_STEPS)]
        words += ["--microbatches", str(MICROBATCHES), *runs.settings(*settings)]
        started.append(LiveRun(tmp_path, *words))
        started[-1].wait_for_steps(1)
        return started[-1]

    yield start_one
    for run in started:
        run.close()


def train(tmp_path, layout, faults, *more):
    flags = [word for fault in faults for word in ("--fault", fault)]
    words = [*runs.layout(layout), *flags, *PATIENT, *more]
    return runs.processes(jobs.mixed(tmp_path), tmp_path / "run", *words, **NUMBERS)


WAYS = ("notice", "plan", "resume")


def killed_by(faults):
    return {fault.split()[1] for fault in faults}


def assert_as_undisturbed(run, undisturbed, faults):
    runs.finished(run)
    assert sorted(run.summary["faults_fired"]) == sorted(faults)
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses
    assert_nothing_left(run)


def assert_recovered(run, dead):
    """Every death was noticed, planned around and over, in this order; survivors lived on."""
    lost = [event.worker for event in run.events if isinstance(event, WorkerLost)]
    assert sorted(lost) == sorted(dead)
    deaths = [one for one in run.summary["recoveries"] if "death" in one["cause"]]
    assert {worker for one in deaths for worker in one["workers"]} >= set(dead)
    for one in deaths:
        notice_s, plan_s, resume_s = (one[f"seconds_to_{what}"] for what in WAYS)
        assert 0 <= notice_s <= plan_s <= resume_s, one
    assert_nobody_was_started_again(run)


def assert_nobody_was_started_again(run):
    """Each worker has said hello once, so the survivors' processes are those of the beginning."""
    hellos = Counter(event.worker for event in run.events if isinstance(event, WorkerReady))
    assert set(hellos.values()) == {1}, hellos


FIXED = {
    "in the middle of its operations": ("2x2", ["kill 1.0 @ 3.B1"]),
    "when its share of the sum is sent": ("2x2", ["kill 1.1 @ 3.partials"]),
    "half-way through the optimizer step": ("2x2", ["kill 1.1 @ 3.half"]),
    "before it hears the verdict of others": ("2x2", ["kill 0.0 @ 3.check"]),
    "with a peer of its stage": ("3x2", ["kill 0.0 @ 3.F1", "kill 1.0 @ 3.F1"]),
    "with its neighbour in the pipeline": ("2x2", ["kill 1.0 @ 3.B0", "kill 1.1 @ 3.B0"]),
    "when it is told to stop for another": ("3x2", ["kill 0.1 @ 3.W0", "kill 1.0 @ 3.halt"]),
    "with the new plan in hand": ("3x2", ["kill 2.1 @ 3.told", "kill 0.1 @ 3.proceed"]),
    "while it saves its part of a checkpoint": ("2x2", ["kill 0.0 @ 4.save"]),
}


@pytest.mark.parametrize("when", first(1, FIXED))
def test_a_worker_killed_leaves_no_trace_in_the_result(tmp_path, undisturbed, when):
    layout, faults = FIXED[when]
    run = train(tmp_path, layout, faults, *EVERY_2)
    assert_as_undisturbed(run, undisturbed, faults)
    assert_recovered(run, killed_by(faults))
    assert not run.summary["went_back"]


@pytest.mark.wide
@pytest.mark.parametrize("number", range(3), ids=lambda number: f"{SEED}-{number}")
def test_nor_does_one_killed_at_a_random_point(tmp_path, undisturbed, number):
    dice = random.Random(f"{SEED}-{number}")
    operations = [f"{kind}{m}{done}" for kind in "FBW" for m in (0, 1, 2) for done in ("", ".done")]
    point = dice.choice((*operations, *PHASES))
    faults = [f"kill {dice.choice((0, 1))}.{dice.choice((0, 1))} @ {dice.randint(2, 5)}.{point}"]
    faults = [fault.removesuffix(".begin") for fault in faults]
    print(f"HOLDFAST_SEED={SEED}: {faults}")  # noqa: T201
    run = train(tmp_path, "2x2", faults)
    assert_as_undisturbed(run, undisturbed, faults)
    assert_recovered(run, killed_by(faults))


@pytest.mark.wide
def test_nor_does_one_killed_from_outside_at_a_random_moment(start, undisturbed_paced):
    live = start("workers.heartbeat_timeout_s=30")
    dice = random.Random(SEED)
    worker, wait_s = f"{dice.choice((0, 1))}.{dice.choice((0, 1))}", dice.uniform(0, 1)
    print(f"HOLDFAST_SEED={SEED}: {worker} after {wait_s:.3f} s")  # noqa: T201
    time.sleep(wait_s)
    live.kill(worker)
    live.wait_for(WorkerLost, worker=worker)
    live.release()
    assert_as_undisturbed(live.outcome(), undisturbed_paced, [])
    assert_recovered(live.outcome(), {worker})


@pytest.mark.wide
def test_when_both_holders_of_a_stage_die_all_go_back_to_the_checkpoint(tmp_path, undisturbed):
    faults = ["kill 0.1 @ 4.B0", "kill 1.1 @ 4.B0"]
    run = train(tmp_path, "2x2", faults, *EVERY_2)
    assert_as_undisturbed(run, undisturbed, faults)
    [back] = run.summary["went_back"]
    assert back["lost_stage"] == 1
    assert back["checkpoint"] in ("", str(run.run_dir / "checkpoints" / "step-00000002"))
    assert_nobody_was_started_again(run)


@pytest.mark.wide
def test_too_few_workers_for_all_stages_end_the_run_which_can_be_resumed(tmp_path, undisturbed):
    faults = ["kill 0.0 @ 2.F1", "kill 0.1 @ 5.B0", "kill 1.1 @ 5.B0"]
    alone = runs.settings("checkpoint.every_steps=1", "workers.restarts=0")
    run = train(tmp_path, "2x2", faults, *alone)
    assert run.exit_code == 1
    [line] = run.stderr.splitlines()
    assert line.startswith("holdfast: worker ")
    for part in ("signal SIGKILL", "1 live worker cannot hold 2 stages", f"--resume {run.run_dir}"):
        assert part in line
    assert run.summary["outcome"] == f"failed: {line.removeprefix('holdfast: ')}"
    assert_nothing_left(run)
    job, words = tmp_path / "mixed.py", [*runs.layout("2x2"), "--resume", str(run.run_dir)]
    resumed = runs.finished(runs.threads(job, run.run_dir, *words, **NUMBERS))
    assert resumed.summary["first_step"] > 0
    runs.assert_same_result(resumed, undisturbed)


@pytest.mark.wide
def test_a_worker_that_stands_still_is_left_behind_and_may_come_back(start, undisturbed_paced):
    live = start("workers.heartbeat_timeout_s=1")
    pid = live.kill("1.0", signal.SIGSTOP)
    live.wait_for(WorkerLost, worker="1.0")
    live.wait_for_more_steps(1)
    os.kill(pid, signal.SIGCONT)
    wait_until(
        lambda: not is_running(pid) or has_joined(live, "1.0"), "the woken one to end or come back"
    )
    live.release()
    assert_as_undisturbed(live.outcome(), undisturbed_paced, [])


def has_joined(live, worker):
    return any(event.worker == worker for event in live.all_of(WorkerJoined))
