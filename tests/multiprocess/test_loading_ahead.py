"""Real workers with processes that load ahead of them: a kill changes no bit."""

import pytest

from helpers import jobs, runs
from helpers.live import assert_nothing_left

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
NUMBERS = {"steps": 6, "microbatches": 6}
KILL = "kill 1.1 @ 3"  # pipeline 1, last stage, which loads targets
AHEAD = runs.settings("data.workers=2", "workers.heartbeat_timeout_s=30")


@pytest.mark.wide
def test_a_killed_worker_with_loaders_of_its_own_changes_nothing(tmp_path):
    job = jobs.mixed(tmp_path)
    undisturbed = runs.finished(runs.threads(job, tmp_path / "calm", **NUMBERS))
    words = [*runs.layout("2x2"), "--fault", KILL, *AHEAD]
    run = runs.finished(runs.processes(job, tmp_path / "run", *words, **NUMBERS))
    assert run.summary["faults_fired"] == [KILL]
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses
    assert_nothing_left(run)
