"""A run with its journal in a real etcd that goes away: changes wait for it, training does not."""

import os
import signal
import time

import pytest

from helpers import live, runs
from helpers.etcd_server import etcd_cluster
from holdfast.observability.events import Recovered, WorkerLost

pytestmark = [pytest.mark.multiprocess, pytest.mark.cluster, pytest.mark.timeout(600)]
AWAY_S = 20.0
LIMIT_S = 300.0
STEPS = 40


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm")
    job = live.paced(folder)
    (folder / "slow").unlink()
    return runs.finished(runs.threads(job, folder / "run", *runs.layout("2x2"), steps=STEPS))


@pytest.fixture
def three(tmp_path):
    with etcd_cluster(tmp_path, 3) as cluster:
        yield cluster


@pytest.fixture
def run(tmp_path, three):
    settings = runs.settings(f"control.journal={three.address('run')}", "mitigation.mode=off")
    numbers = ["--steps", str(STEPS), "--microbatches", str(runs.MICROBATCHES)]
    words = ["train", str(live.paced(tmp_path)), *runs.layout("2x2"), *numbers, *settings]
    started = live.LiveRun(tmp_path, *words)
    yield started
    started.close()


def kill(run, worker):
    run.kill(worker)
    run.wait_for(WorkerLost, worker=worker)


def test_one_of_three_nodes_is_lost_and_a_death_is_survived_as_ever(run, three, calm):
    run.wait_for_steps(3)
    three.nodes[0].kill()
    kill(run, "1.0")
    run.wait_for(Recovered)
    run.release()
    outcome = run.outcome(LIMIT_S)
    assert outcome.exit_code == 0, outcome
    assert outcome.sha256 == calm.sha256
    assert outcome.summary["went_back"] == []


def test_all_nodes_are_away_for_a_while_and_a_death_waits_for_them(run, three, calm):
    run.wait_for_steps(3)
    three.kill()
    away_s = time.monotonic()
    run.wait_for_more_steps(3)  # nobody needs etcd for a step
    os.kill(run.workers["1.0"], signal.SIGKILL)
    live.wait_until(lambda: time.monotonic() - away_s > AWAY_S, "some time", LIMIT_S)
    assert not run.all_of(Recovered), "a change was made that no successor would know of"
    three.start()
    run.wait_for(Recovered)
    run.release()
    outcome = run.outcome(LIMIT_S)
    assert outcome.exit_code == 0, outcome
    assert outcome.sha256 == calm.sha256
    assert outcome.summary["went_back"] == []
    assert outcome.summary["num_lost"] == 1
