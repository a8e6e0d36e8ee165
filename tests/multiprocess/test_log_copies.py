"""A machine dies with the only holder of a stage and with logs that its replay needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import jobs, runs
from helpers.hosts import Host, hosts, why_not
from helpers.live import wait_until
from helpers.run_on_host import LIMIT_S, MICROBATCHES, RUN_DIR, STEPS, RunOnHost
from holdfast.observability.events import (
    CheckpointSaved,
    StageRebuilt,
    StepFinished,
    WentBack,
    WorkerJoined,
    WorkerLost,
)

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.multiprocess,
    pytest.mark.cluster,
    pytest.mark.timeout(900),
]
SETTINGS = [
    "network.listen=0.0.0.0",
    "recovery.log=boundary",
    "checkpoint.every_steps=8",
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """On one machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    numbers = {"steps": STEPS, "microbatches": MICROBATCHES}
    done = runs.threads(jobs.mixed(folder), folder / "run", *runs.layout("2x2"), **numbers)
    return runs.finished(done).sha256


@pytest.fixture
def three() -> Iterator[tuple[Host, ...]]:
    with hosts(3) as machines:
        yield machines


def logs(host: Host, below: str = "") -> dict[str, bytes]:
    """Of a host that does not see the run directory, or the copy there of another one's."""
    found = host.file("/tmp").glob(f"holdfast-*/*/log/{below}[0-9].[0-9]/segment-*.log")
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in found}


def on_three(here: Host, dies: Host, third: Host, folder: Path, *settings: str) -> RunOnHost:
    """Stage 1 is held on ``dies`` only, which has logged half of what that stage was sent."""
    run = RunOnHost(here, folder, *SETTINGS, *settings)
    run.wait_for(StepFinished)
    run.kill("0.0", "0.1")
    run.join_from(dies, "--as", "0.0")
    run.join_from(dies, "--as", "0.1")
    run.wait_for(WorkerJoined, 2)
    run.kill("1.0")
    run.join_from(third, "--as", "1.0")
    run.wait_for(WorkerJoined, 3)
    assert sorted(event.stage for event in run.all_of(WorkerJoined)[:2]) == [0, 1]
    assert run.all_of(WorkerJoined)[2].stage == 0
    run.set_pace(0.03)
    run.wait_for(CheckpointSaved, len(run.all_of(CheckpointSaved)) + 1)
    run.set_pace(0.1)  # whoever copies is behind by less than a step
    run.wait_for(StepFinished, len(run.all_of(StepFinished)) + 2)
    run.kill("1.1")
    assert logs(dies)
    return run


def test_a_lost_stage_is_replayed_from_the_copy_of_a_dead_machines_logs(
    three, undisturbed, tmp_path
):
    here, dies, third = three
    run = on_three(*three, tmp_path, "recovery.log_copies=1")
    copy = f"holdfast-copies/{dies.ipv4}/"
    wait_until(lambda: logs(third, copy) == logs(dies), "a copy of all logs", LIMIT_S)
    dies.power_off()
    run.wait_for(WorkerLost, 6)
    run.wait_for(StageRebuilt)
    [rebuilt] = run.all_of(StageRebuilt)
    assert rebuilt.stages == (1,)
    assert run.sha256() == undisturbed
    assert run.all_of(WentBack) == []
    tidy = "the agent of the third machine has removed its directory"
    wait_until(lambda: not any(third.file("/tmp").glob("holdfast-*")), tidy)
    assert not here.file(f"{RUN_DIR}/log").exists()


def test_without_a_copy_all_go_back(three, undisturbed, tmp_path):
    dies = three[1]
    run = on_three(*three, tmp_path)
    dies.power_off()
    run.wait_for(WentBack)
    assert run.sha256() == undisturbed
    assert run.all_of(StageRebuilt) == []
