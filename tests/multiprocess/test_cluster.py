"""Four machines that share nothing but a network: whatever fails, the result is the same bits."""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from helpers import runs
from helpers.cluster_run import JOB_TEXT, LIMIT_S, ClusterRun
from helpers.hosts import Host, hosts, why_not
from holdfast.observability.events import (
    MachineDrained,
    MachineLost,
    Recovered,
    StageRebuilt,
    StepFinished,
    WentBack,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.multiprocess,
    pytest.mark.cluster,
    pytest.mark.timeout(900),
]
STEPS, MICROBATCHES = 60, 8
WORDS = ["--pipelines", "4", "--stages", "2", "--steps", str(STEPS)]
WORDS += ["--microbatches", str(MICROBATCHES)]
QUICK = runs.settings("workers.heartbeat_timeout_s=3")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """On one machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = folder / "paced_gpt.py"
    job.write_text(JOB_TEXT)
    numbers = {"steps": None, "microbatches": None}
    return runs.finished(runs.threads(job, folder / "run", *WORDS, **numbers)).sha256


@pytest.fixture
def four() -> Iterator[tuple[Host, ...]]:
    with hosts(4) as machines:
        yield machines


def begun(machines: tuple[Host, ...], folder: Path, *words: str) -> ClusterRun:
    """In the middle of its training, and slow enough to be met there."""
    run = ClusterRun(machines, folder, *WORDS, *QUICK, *words, machines=4)
    run.pace(0.02)
    run.wait_for(StepFinished, 3)
    return run


def test_four_machines_lose_a_worker_and_a_machine_and_give_the_bits_of_one(
    four, undisturbed, tmp_path
):
    run = begun(four, tmp_path)
    assert not run.all_of(WorkerLost)
    [ready] = [e for e in run.all_of(WorkerReady) if e.worker == "1.1"]
    there = next(host for host in four if host.ipv4 == ready.machine)
    there.run(["kill", "-9", str(ready.pid)])
    [lost] = run.wait_for(WorkerLost)
    run.wait_for(WorkerJoined)
    run.wait_for(Recovered, 2)  # else the join and the next death are one change
    assert (lost.worker, lost.cause) == ("1.1", "signal SIGKILL")
    assert not run.all_of(MachineLost)
    dies = next(host for host in reversed(four[1:]) if host is not there)
    dies.power_off(silently=True)
    [machine] = run.wait_for(MachineLost)
    run.wait_for(Recovered, 3)
    run.pace(0)
    assert run.sha256() == undisturbed
    assert (machine.machine, len(machine.workers)) == (dies.name, 2)
    assert len(run.all_of(WorkerLost)) == 3
    live = [agent for name, agent in run.agents.items() if name != dies.name]
    assert {agent.wait(LIMIT_S) for agent in live} == {0}


@pytest.mark.parametrize("silently", [True, False], ids=["silently", "with a last word"])
def test_a_machine_that_dies_is_one_event(four, undisturbed, tmp_path, silently):
    run = begun(four, tmp_path)
    four[3].power_off(silently=silently)
    [lost] = run.wait_for(MachineLost)
    [recovered] = run.wait_for(Recovered)
    run.pace(0)
    assert run.sha256() == undisturbed
    assert lost.machine == "h3"
    assert len(lost.workers) == 2
    assert set(recovered.workers) == set(lost.workers)
    assert len(run.all_of(WorkerLost)) == 2
    assert len([e for e in run.all_of(Recovered) if "death" in e.cause]) == 1


def test_a_drained_machine_hands_over_and_another_one_takes_its_place(four, undisturbed, tmp_path):
    run = ClusterRun(four, tmp_path, *WORDS, *QUICK, machines=4, start_with=3)
    run.pace(0.02)
    run.wait_for(StepFinished, 3)
    assert len(run.all_of(WorkerReady)) == 6
    drained = run.agents["h2"]
    drained.signal(signal.SIGTERM)
    run.wait_for(MachineDrained)
    assert drained.wait(LIMIT_S) == 0
    run.add(four[3])
    joined = run.wait_for(WorkerJoined, 2)
    run.pace(0)
    assert run.sha256() == undisturbed
    assert not run.all_of(MachineLost)
    assert {event.worker for event in joined} <= {event.worker for event in run.all_of(WorkerReady)}
    assert sum(event.redone for event in run.all_of(Recovered)) == 0


def lost_in_two_places(
    four: Sequence[Host], folder: Path, *settings: str, same_stage: bool
) -> ClusterRun:
    """A run of 2x2 over IPv6, a worker a machine, that has just lost two of them silently."""
    words = ["--pipelines", "2", "--stages", "2", "--steps", str(STEPS)]
    words += ["--microbatches", str(MICROBATCHES), *QUICK, *runs.settings(*settings)]
    run = ClusterRun(four, folder, *words, machines=4, slots=1, ipv6=True)
    run.pace(0.02)
    run.wait_for(StepFinished, 6)
    stages = {event.machine: event.worker[-1] for event in run.all_of(WorkerReady)}
    assert sorted(stages.values()) == ["0", "0", "1", "1"]
    [beside] = [h for h in four[1:] if stages[h.ipv6] == stages[four[0].ipv6]]
    far = [host for host in four[1:] if host is not beside]
    for host in far if same_stage else (far[0], beside):
        host.power_off(silently=True)
    run.wait_for(MachineLost, 2)
    return run


def test_two_machines_lost_in_different_stages_leave_a_holder_of_each(four, undisturbed, tmp_path):
    run = lost_in_two_places(four, tmp_path, same_stage=False)
    run.wait_for(Recovered)
    run.pace(0)
    assert run.sha256() == undisturbed
    assert {event.worker[-1] for event in run.all_of(WorkerLost)} == {"0", "1"}
    assert not run.all_of(WentBack)


def test_a_stage_whose_machines_are_all_lost_is_replayed_from_logs_over_the_network(
    four, undisturbed, tmp_path
):
    settings = ["recovery.log=boundary", "checkpoint.every_steps=4"]
    run = lost_in_two_places(four, tmp_path, *settings, same_stage=True)
    [rebuilt] = run.wait_for(StageRebuilt)
    run.pace(0)
    assert run.sha256() == undisturbed
    [stage] = {int(event.worker[-1]) for event in run.all_of(WorkerLost)}
    assert rebuilt.stages == (stage,)
    assert rebuilt.read_bytes > 0
    assert not run.all_of(WentBack)
