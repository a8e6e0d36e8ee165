"""Four machines whose network falls apart: no part ever trains alone, and the bits stay the same.

What a worker commits it also writes down on its own machine, by the job's own optimizer. With
``optimizer.mode=global`` that is called for a commit and for nothing else.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from helpers import runs
from helpers.cluster_run import JOB_TEXT, ClusterRun
from helpers.hosts import Host, hosts, why_not
from helpers.live import wait_until
from holdfast.observability.events import (
    MachineCame,
    MachineLost,
    Recovered,
    StepFinished,
    Warned,
    WorkerLost,
)

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.multiprocess,
    pytest.mark.cluster,
    pytest.mark.timeout(1500),
]
LIMIT_S = 300.0
STEPS, MEMBERS = 60, 8
WORDS = ["--steps", str(STEPS), "--microbatches", "8"]
LAYOUT = ["--pipelines", "4", "--stages", "2"]
PACE_S = 0.05  # of a sample: a step takes some seconds, and longer the fewer are here
TIMEOUT_S = 3.0  # of heartbeats: a lease is a little shorter
QUICK = runs.settings(
    f"workers.heartbeat_timeout_s={TIMEOUT_S:g}",
    "workers.replace=50",
    "checkpoint.at_end=false",
    "checkpoint.first_step=0",
    "optimizer.mode=global",
    "mitigation.mode=off",
)
SLACK_S = 0.5  # for a machine with fewer cores than processes
_COMMITTED = "/tmp/committed"
RECORDED_JOB = JOB_TEXT.replace(
    "return dataclasses.replace(tiny_gpt.job(), data=Paced(tiny_gpt.CONTEXT))",
    "made = lambda parameters: Recorded(parameters, lr=3e-3)\n"
    "    data = Paced(tiny_gpt.CONTEXT)\n"
    "    return dataclasses.replace(tiny_gpt.job(), data=data, optimizer=made)",
).replace(
    "def job():",
    f"""\
class Recorded(torch.optim.AdamW):
    def step(self, closure=None):
        folder = pathlib.Path("{_COMMITTED}")
        if folder.is_dir():
            with open(folder / str(os.getpid()), "a") as file:
                file.write(f"{{time.monotonic()}}\\n")
        return super().step(closure)


def job():""",
)
RECORDED_JOB = RECORDED_JOB.replace(
    "import dataclasses\n", "import dataclasses\nimport os\n"
).replace("import time\n", "import time\n\nimport torch\n")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One worker on one machine: the bits do not depend on the layout."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = folder / "paced_gpt.py"
    job.write_text(RECORDED_JOB)
    numbers = {"steps": None, "microbatches": None}
    return runs.finished(runs.threads(job, folder / "run", *WORDS, **numbers)).sha256


@pytest.fixture
def four() -> Iterator[tuple[Host, ...]]:
    with hosts(4) as machines:
        yield machines


class Disturbed(ClusterRun):
    """Met in the middle of its training; with the commits of its workers by our own clock."""

    def __init__(self, four: Sequence[Host], folder: Path, *settings: str) -> None:
        for host in four:
            host.file(_COMMITTED).mkdir()
        words = [*LAYOUT, *WORDS, *QUICK, *runs.settings(*settings)]
        super().__init__(four, folder, *words, machines=4, slots=MEMBERS // 4, job=RECORDED_JOB)
        self.pace(PACE_S)
        self.wait_for(StepFinished, 3)

    def commits(self, machines: Sequence[Host]) -> list[float]:
        found = []
        for host in machines:
            ahead_s = 1000 * (self.hosts.index(host) + 1)
            for path in host.file(_COMMITTED).iterdir():
                found += [float(line) - ahead_s for line in path.read_text().split()]
        return sorted(found)

    def assert_stopped(self, machines: Sequence[Host], since_s: float, until_s: float) -> None:
        """After a lease nothing was committed there, and until then they did train."""
        commits = self.commits(machines)
        assert [at_s for at_s in commits if since_s - 30 < at_s <= since_s]
        late = [at_s for at_s in commits if since_s + TIMEOUT_S + SLACK_S < at_s < until_s]
        assert not late, (since_s, until_s, commits)

    def lost_machines(self) -> list[str]:
        return [event.machine for event in self.all_of(MachineLost)]

    def is_refused(self) -> bool:
        return any("cannot reach" in event.reason for event in self.all_of(Warned))

    def wait_for_steps(self, num: int) -> None:
        self.wait_for(StepFinished, len(self.all_of(StepFinished)) + num)

    def wait_for_all(self) -> None:
        """Every machine is here, and every worker a member."""

        def are_here() -> bool:
            assert self.program.process.poll() is None, self.told
            changes = self.all_of(Recovered)
            return not changes or changes[-1].members == MEMBERS

        wait_until(are_here, "all workers", LIMIT_S)

    def wait_for_return(self) -> None:
        """Of all machines that were lost; in few steps, however long that takes."""
        self.pace(4 * PACE_S)
        self.wait_for(MachineCame, 4 + len(self.lost_machines()))
        self.pace(PACE_S)
        self.wait_for_all()

    def split(self, *groups: Sequence[Host]) -> None:
        """Until the coordinator, which is in the first group, goes on without the others; then
        healed. All come back."""
        gone = sorted(host.name for group in groups[1:] for host in group)
        num_lost = len(self.lost_machines())
        self.hosts[0].network.partition(*groups)
        cut_s = time.monotonic()
        wait_until(
            lambda: len(self.lost_machines()) >= num_lost + len(gone), "lost machines", LIMIT_S
        )
        self.wait_for_steps(2)
        healed_s = time.monotonic()
        self.hosts[0].network.heal()
        assert sorted(set(self.lost_machines()[num_lost:])) == gone
        for group in groups[1:]:
            self.assert_stopped(group, cut_s, healed_s)
        self.wait_for_return()

    def ends_as(self, sha256: str) -> None:
        self.pace(0)
        assert self.sha256() == sha256
        steps = [event.step for event in self.all_of(StepFinished)]
        assert steps == list(range(STEPS)), "each ends once"


@pytest.mark.parametrize("gathered_from", [65, 1], ids=["each for itself", "by agents"])
def test_while_the_coordinator_stands_still_nobody_commits_and_nobody_is_lost(
    four, undisturbed, tmp_path, gathered_from
):
    """Whoever renews the leases."""
    run = Disturbed(four, tmp_path, f"workers.gathered_from={gathered_from}")
    stopped_s = time.monotonic()
    run.program.signal(signal.SIGSTOP)
    time.sleep(3 * TIMEOUT_S)
    woken_s = time.monotonic()
    run.program.signal(signal.SIGCONT)
    run.assert_stopped(four, stopped_s, woken_s)
    run.wait_for_steps(2)
    assert not run.all_of(WorkerLost), "all were there"
    run.ends_as(undisturbed)


def test_a_cable_that_is_out_for_three_seconds(four, undisturbed, tmp_path):
    run = Disturbed(four, tmp_path)
    four[3].cut(3.0)
    run.wait_for_steps(2)
    assert run.lost_machines() in ([], ["h3"])
    run.wait_for_return()
    run.ends_as(undisturbed)


def test_halves_and_a_coordinator_that_is_left_alone(four, undisturbed, tmp_path):
    run = Disturbed(four, tmp_path)
    run.split(four[:2], four[2:])
    run.split(four[:1], four[1:])
    run.ends_as(undisturbed)


def test_a_machine_that_is_cut_off_comes_back_and_then_stays_away(four, undisturbed, tmp_path):
    run = Disturbed(four, tmp_path)
    run.split(four[:3], four[3:])
    num_lost = len(run.lost_machines())
    four[3].cut()
    wait_until(lambda: len(run.lost_machines()) > num_lost, "the lost machine", LIMIT_S)
    run.wait_for_steps(2)
    run.ends_as(undisturbed)
    assert run.lost_machines()[num_lost:] == ["h3"]


def test_a_link_that_is_blocked_one_way_costs_one_machine(four, undisturbed, tmp_path):
    """The coordinator hears both of its ends, and neither is ill."""
    run = Disturbed(four, tmp_path)
    four[1].block(four[2])
    wait_until(run.lost_machines, "the one that is left out", LIMIT_S)
    [lost] = run.all_of(MachineLost)
    assert lost.machine in ("h1", "h2")
    assert "again and again" in lost.cause
    run.pace(4 * PACE_S)
    wait_until(run.is_refused, "it to come back and to find its link broken", LIMIT_S)
    run.pace(PACE_S)
    run.wait_for_steps(3)
    assert len(run.lost_machines()) == 1, "it does not stop the run again"
    four[1].unblock(four[2])
    run.wait_for_all()
    run.ends_as(undisturbed)
    assert len(run.lost_machines()) == 1
