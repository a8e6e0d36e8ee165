"""Checkpoints and logs of runs over machines that share no directory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import jobs, runs
from helpers.hosts import Host, hosts, why_not
from helpers.run_on_host import HOLDFAST, LIMIT_S, MICROBATCHES, RUN_DIR, STEPS, RunOnHost
from holdfast.observability.events import (
    CheckpointFailed,
    CheckpointSaved,
    StageRebuilt,
    StepFinished,
    WentBack,
    WorkerJoined,
)
from holdfast.observability.summary import SUMMARY_FILE
from holdfast.storage.manifest import load_manifest

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.multiprocess,
    pytest.mark.cluster,
    pytest.mark.timeout(900),
]
SETTINGS = ["network.listen=0.0.0.0", "checkpoint.every_steps=4", "checkpoint.keep=20"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """On one machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    numbers = {"steps": STEPS, "microbatches": MICROBATCHES}
    done = runs.threads(jobs.mixed(folder), folder / "run", *runs.layout("2x2"), **numbers)
    return runs.finished(done).sha256


@pytest.fixture
def two() -> Iterator[tuple[Host, ...]]:
    with hosts(2) as machines:
        yield machines


def with_joiner(here: Host, there: Host, folder: Path, *settings: str) -> RunOnHost:
    """Whose 0.1, the writer of the parts of stage 1, is on another machine."""
    run = RunOnHost(here, folder, *SETTINGS, *settings)
    run.wait_for(StepFinished)
    run.kill("0.1")
    run.join_from(there, "--as", "0.1")
    run.wait_for(WorkerJoined)
    run.set_pace(0.03)
    run.wait_for(CheckpointSaved, len(run.all_of(CheckpointSaved)) + 2)
    assert run.all_of(CheckpointFailed) == []
    return run


def leaves_nothing(host: Host) -> bool:
    found = [path.name for path in host.file("/tmp").iterdir()]
    return "run" not in found and not any(name.startswith("holdfast-") for name in found)


def test_a_worker_of_another_machine_writes_its_part_of_checkpoints(two, undisturbed, tmp_path):
    here, there = two
    run = with_joiner(here, there, tmp_path)
    newest = run.all_of(CheckpointSaved)[-1]
    assert run.sha256() == undisturbed
    assert leaves_nothing(there)
    assert len(load_manifest(here.file(newest.path)).parts) == 2
    words = ["train", "--resume", newest.path, "--run-dir", "/tmp/again"]
    again = here.start([*HOLDFAST, *words], tmp_path, "again")
    assert again.wait(LIMIT_S) == 0, again.stderr
    summary = json.loads(here.file(f"/tmp/again/{SUMMARY_FILE}").read_text())
    assert summary["parameters_sha256"] == undisturbed


def test_a_worker_of_another_machine_loads_a_checkpoint(two, undisturbed, tmp_path):
    here, there = two
    run = with_joiner(here, there, tmp_path)
    run.kill("0.0", "1.0")
    run.wait_for(WentBack)
    assert run.all_of(WentBack)[0].to_step > 0
    assert run.sha256() == undisturbed
    assert leaves_nothing(there)
    assert not here.file(f"{RUN_DIR}/log").exists()


def test_a_lost_stage_is_replayed_from_the_logs_of_two_machines(two, undisturbed, tmp_path):
    here, there = two
    run = with_joiner(here, there, tmp_path, "recovery.log=boundary", "workers.restarts=0")
    run.wait_for(StepFinished, len(run.all_of(StepFinished)) + 2)  # past the checkpoint
    run.kill("0.0", "1.0")
    run.wait_for(StageRebuilt)
    [rebuilt] = run.all_of(StageRebuilt)
    assert rebuilt.stages == (0,)
    assert rebuilt.workers[0] == "0.1"  # it writes the state, and sees no run directory
    assert rebuilt.read_bytes > 0
    assert run.sha256() == undisturbed
    assert run.all_of(WentBack) == []
    assert leaves_nothing(there)
    assert not here.file(f"{RUN_DIR}/log").exists()
    assert not here.file(f"{RUN_DIR}/rebuilt").exists()
