"""Real runs whose agents gather heartbeats and reports: nobody is lost for it, nor missed."""

import os
import signal
import time

import pytest

from helpers import jobs, runs
from helpers.live import LiveRun, paced, process_state, wait_until
from holdfast.observability.events import WorkerLost

pytestmark = [pytest.mark.multiprocess, pytest.mark.wide, pytest.mark.timeout(300)]
STEPS, MICROBATCHES = 60, 6
GATHERED = ("workers.gathered_from=1", "checkpoint.every_steps=7")
TIMEOUT_S = 10.0  # nobody looks at the workers of an agent that stands still


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    numbers = {"steps": STEPS, "microbatches": MICROBATCHES}
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **numbers))


@pytest.fixture
def live(tmp_path):
    """2 x 2 workers in the middle of a run that is slow until it is released."""
    words = ["train", str(paced(tmp_path)), *runs.layout("2x2"), "--steps", str(STEPS)]
    words += ["--microbatches", str(MICROBATCHES)]
    words += runs.settings(*GATHERED, f"workers.heartbeat_timeout_s={TIMEOUT_S}")
    run = LiveRun(tmp_path, *words)
    try:
        run.wait_for_steps(1)
        yield run
    finally:
        run.close()


def test_an_agent_that_falls_silent_costs_no_worker_and_no_step(live, undisturbed):
    os.kill(live.agent, signal.SIGSTOP)
    wait_until(lambda: process_state(live.agent) == "T", "the agent to stop")
    until_s = time.monotonic() + 2 * TIMEOUT_S
    while time.monotonic() < until_s:
        live.wait_for_more_steps(1)  # workers tell of them by themselves
    os.kill(live.agent, signal.SIGCONT)
    live.wait_for_more_steps(1)
    live.release()
    outcome = runs.finished(live.outcome())
    assert not [event for event in outcome.events if isinstance(event, WorkerLost)]
    runs.assert_same_result(outcome, undisturbed)


def test_a_worker_that_hangs_behind_a_live_agent_is_found(live, undisturbed):
    live.kill("1.0", signal.SIGSTOP)
    live.wait_for(WorkerLost, worker="1.0")
    live.release()
    outcome = runs.finished(live.outcome())
    [lost] = [event for event in outcome.events if isinstance(event, WorkerLost)]
    assert lost.cause.startswith("no heartbeat for")
    runs.assert_same_result(outcome, undisturbed)
