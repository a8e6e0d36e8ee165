"""The end of the launcher, wished for or not: nothing is left running, and the run can go on."""

import os
import signal
from contextlib import suppress
from subprocess import Popen, TimeoutExpired

import pytest

from helpers import jobs, runs
from helpers.live import LiveRun, is_running, paced, process_state, processes_of, wait_until
from holdfast.observability.events import (
    CheckpointSaved,
    Interrupted,
    StepFinished,
    WorkerJoined,
    WorkerLost,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
STEPS, MICROBATCHES = 40, 6
END_LIMIT_S = 60.0  # the promise is 10 s; a busy machine may need more
INTERRUPT_LIMIT_S = 120.0  # of which 30 s are the run's own, to end its step and save
NUMBERS = {"steps": STEPS, "microbatches": MICROBATCHES}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **NUMBERS))


@pytest.fixture
def start(tmp_path):
    """2 x 2 workers in the middle of a run that is slow until it is released."""
    started = []

    def start_one(*settings):
        words = ["train", str(paced(tmp_path)), *runs.layout("2x2"), "--steps", str(STEPS)]
        words += ["--microbatches", str(MICROBATCHES)]
        words += runs.settings("workers.heartbeat_timeout_s=30", *settings)
        started.append(LiveRun(tmp_path, *words))
        started[-1].wait_for_steps(2)
        return started[-1]

    yield start_one
    for run in started:
        run.close()


def assert_resumes(live, undisturbed, kind=runs.threads):
    """From its last checkpoint, in place, to the undisturbed result."""
    saved = live.all_of(CheckpointSaved)[-1].step
    live.release()
    words = [*runs.layout("2x2"), "--resume", str(live.run_dir)]
    job = live.run_dir.parent / "paced.py"
    run = runs.finished(kind(job, live.run_dir, *words, **NUMBERS))
    assert run.summary["first_step"] == saved
    runs.assert_same_result(run, undisturbed)


@pytest.mark.wide
def test_a_killed_launcher_leaves_nobody_behind_and_its_run_can_be_resumed(start, undisturbed):
    live = start("checkpoint.every_steps=1", "workers.orphan_limit_s=0")
    live.kill("1.0")
    live.wait_for(WorkerLost, worker="1.0")
    by_hand = live.join()
    live.wait_for(WorkerJoined, worker="1.0")
    pids = [live.agent, *live.workers.values()]
    assert by_hand.process.pid in pids
    assert all(map(is_running, pids))
    live.launcher.kill()
    live.launcher.wait()
    wait_until(lambda: not any(map(is_running, pids)), "all others to end", END_LIMIT_S)
    wait_until(lambda: not processes_of(live.address), "all others to end", END_LIMIT_S)
    assert "Traceback" not in live.stderr + by_hand.stderr
    assert_resumes(live, undisturbed, runs.processes)


@pytest.mark.wide
@pytest.mark.parametrize("whom", ["every process", "the launcher"])
def test_r5_an_interrupt_of_it_writes_a_checkpoint_and_ends(start, undisturbed, whom):
    """A scheduler signals all of a control group, and ``timeout`` the group after its child."""
    live = start()
    num_done = len(live.all_of(StepFinished))
    if whom == "the launcher":
        os.kill(live.launcher.pid, signal.SIGINT)
    else:
        for pid in processes_of(live.address):
            os.kill(pid, signal.SIGTERM)
        os.kill(live.launcher.pid, signal.SIGTERM)
        os.killpg(live.launcher.pid, signal.SIGTERM)
    assert live.wait_for_end(INTERRUPT_LIMIT_S) == 1
    assert live.not_reaped() == []
    [line] = live.stderr.splitlines()
    assert line.startswith("holdfast: interrupted; all workers were stopped. ")
    assert f"--resume {live.run_dir}" in line
    [early, saved] = live.all_of(CheckpointSaved)
    assert early.step == 1
    assert num_done <= saved.step < STEPS
    assert saved.step == len(live.all_of(StepFinished))
    assert_resumes(live, undisturbed)


@pytest.mark.wide
def test_a_second_interrupt_ends_the_run_at_once(start):
    """One worker stands still, so that the first interrupt cannot end the step."""
    live = start("checkpoint.every_steps=0")
    pid = live.kill("1.0", signal.SIGSTOP)
    wait_until(lambda: process_state(pid) == "T", "the worker to stop")
    os.kill(live.launcher.pid, signal.SIGINT)
    live.wait_for(Interrupted)  # two that come at once are one
    with pytest.raises(TimeoutExpired):
        live.wait_for_end(2.0)
    os.kill(live.launcher.pid, signal.SIGINT)
    assert live.wait_for_end(END_LIMIT_S) == 1
    assert live.not_reaped() == []
    assert live.all_of(CheckpointSaved) == []
    assert live.stderr.startswith("holdfast: interrupted; all workers were stopped. No checkpoint")


@pytest.mark.wide
def test_r8_a_run_whose_output_nobody_reads_ends_all_the_same(tmp_path):
    """The pipe is full before it begins, as that of a pager that waits."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write_end, bytes(1 << 16))
    os.set_blocking(write_end, True)
    words = runs.arguments(jobs.small(tmp_path), tmp_path / "run", steps=5)
    process = Popen(
        runs.command(*words, *runs.settings("workers.kind=threads")),
        stdout=write_end,
        env=runs.environment(),
    )
    try:
        assert process.wait(runs.LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(read_end)
        os.close(write_end)
    assert runs.Outcome(tmp_path / "run", 0, "", "").summary["outcome"] == "finished"
