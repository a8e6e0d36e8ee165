"""The coordinator's machine is another one than those of the workers, and it dies: a standby, which
has never seen the run directory, goes on in the same step."""

import importlib.util
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from helpers import runs
from helpers.cluster_run import HOLDFAST, JOB_TEXT, LIMIT_S, PORT, RUN_DIR, TICKET, ClusterRun
from helpers.etcd_server import words_at
from helpers.hosts import Host, Program, hosts, why_not
from helpers.live import wait_until
from helpers.s3_server import S3Server, skip_without_packages, use
from helpers.seed import SEED
from holdfast.errors import Deposed
from holdfast.observability.events import (
    CheckpointSaved,
    Recovered,
    StepFinished,
    TookOver,
    WentBack,
    WorkerLost,
)
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.observability.summary import SUMMARY_FILE

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.multiprocess,
    pytest.mark.cluster,
    pytest.mark.timeout(900),
]
STEPS = 40
CUT = ["--pipelines", "1", "--stages", "2", "--microbatches", "4", "--steps", str(STEPS)]
LAYOUT = ["--pipelines", "2", "--stages", "1", "--microbatches", "4", "--steps", str(STEPS)]
STANDS = "/tmp/stands"  # run directory of the standby


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> runs.Outcome:
    """On one machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = folder / "paced_gpt.py"
    job.write_text(JOB_TEXT)
    numbers = {"steps": None, "microbatches": None}
    return runs.finished(runs.threads(job, folder / "run", *LAYOUT, **numbers))


@pytest.fixture
def three() -> Iterator[tuple[Host, ...]]:
    """The first coordinates, the others train; the second stands by, the third has etcd."""
    with hosts(3) as machines:
        yield machines


class Watched(ClusterRun):
    """A run with etcd, and whoever stands by for it."""

    def __init__(
        self,
        machines: Sequence[Host],
        folder: Path,
        *words: str,
        first: int = 1,
        start_with: int = 0,
    ) -> None:
        etcd = machines[2]
        etcd.start(words_at(etcd.ipv4, "/tmp/etcd"), folder, "etcd")
        self.control = f"etcd://{etcd.ipv4}:2379/run"
        self.at = f"{machines[1].ipv4}:{PORT + 1}"
        own = ["--control", self.control, "--standby", self.at, *(words or LAYOUT)]
        super().__init__(machines, folder, *own, machines=2, first=first, start_with=start_with)
        self.pace(0.03)

    def stand_by(self) -> Program:
        return self._stand_by(self.hosts[1], self.at, "/tmp/ticket")

    def stand_by_again(self) -> Program:
        """Where the first coordinator was, at its old address."""
        return self._stand_by(self.hosts[0], f"{self.hosts[0].ipv4}:{PORT}", TICKET)

    def _stand_by(self, host: Host, at: str, ticket: str) -> Program:
        words = ["standby", "--control", self.control, "--ticket", ticket]
        words += ["--listen", at, "--run-dir", STANDS]
        standby = host.start([*HOLDFAST, *words], self._folder, f"standby-{host.name}")
        wait_until(lambda: "leads the run" in standby.stdout, "the standby", LIMIT_S)
        return standby


def events_of(host: Host, kind):
    path = host.file(f"{STANDS}/{EVENTS_FILE}")
    found = read_events(path) if path.exists() else []
    return [event for event in found if isinstance(event, kind)]


def assert_went_on(
    run: Watched, by: Program, undisturbed: runs.Outcome, at: int = 1, num_taken_over: int = 1
) -> None:
    """In the same step, to the same bits. ``at``: on which host."""
    host = run.hosts[at]
    wait_until(lambda: events_of(host, TookOver) or by.process.poll() is not None, "it", LIMIT_S)
    run.pace(0)
    assert by.wait(LIMIT_S) == 0, by.stdout + by.stderr + run.told
    summary = json.loads(host.file(f"{STANDS}/{SUMMARY_FILE}").read_text())
    assert summary["parameters_sha256"] == undisturbed.sha256
    assert summary["went_back"] == []
    taken_over = events_of(host, TookOver)
    assert [event.workers for event in taken_over] == [("0.0", "1.0")] * num_taken_over
    assert sum(event.redone for event in events_of(host, Recovered)) == 0
    assert not events_of(host, WorkerLost)
    assert {agent.wait(LIMIT_S) for agent in run.agents.values()} == {0}


@pytest.mark.parametrize("number", range(2))
def test_a_killed_coordinator_is_taken_over_from_by_another_machine(
    three, undisturbed, tmp_path, number
):
    run = Watched(three, tmp_path)
    standby = run.stand_by()
    run.wait_for(StepFinished, 3)
    time.sleep(random.Random(f"{SEED}-{number}").uniform(0.0, 2.0))
    run.program.signal(signal.SIGKILL)
    killed_s = time.monotonic()
    wait_until(lambda: "taking over" in standby.stdout, "the standby to lead", LIMIT_S)
    took_s = time.monotonic() - killed_s
    sys.stdout.write(f"it leads {took_s:.2f} s after the coordinator was killed\n")  # pytest -s
    assert_went_on(run, standby, undisturbed)
    losses = [event.loss for event in events_of(three[1], StepFinished)]
    assert losses == undisturbed.losses


def test_it_goes_back_to_the_machine_where_it_began(three, undisturbed, tmp_path):
    run = Watched(three, tmp_path)
    standby = run.stand_by()
    run.wait_for(StepFinished, 3)
    run.program.signal(signal.SIGKILL)
    wait_until(lambda: events_of(three[1], Recovered), "the first take-over", LIMIT_S)
    again = run.stand_by_again()
    told = len(events_of(three[1], StepFinished))
    wait_until(lambda: len(events_of(three[1], StepFinished)) > told, "a step", LIMIT_S)
    standby.signal(signal.SIGKILL)
    assert_went_on(run, again, undisturbed, at=0, num_taken_over=2)


def test_a_suspended_coordinator_wakes_and_changes_nothing(three, undisturbed, tmp_path):
    run = Watched(three, tmp_path)
    standby = run.stand_by()
    run.wait_for(CheckpointSaved)
    run.program.signal(signal.SIGSTOP)
    wait_until(lambda: events_of(three[1], Recovered), "the take-over", LIMIT_S)
    sealed = sorted(three[0].file(f"{RUN_DIR}/checkpoints").iterdir())
    run.program.signal(signal.SIGCONT)
    assert run.program.wait(LIMIT_S) == Deposed.exit_code, run.told
    [line] = run.program.stderr.splitlines()
    assert f"{run.control}: " in line
    assert line.endswith(("this is 1", "does not lead the run"))
    assert sorted(three[0].file(f"{RUN_DIR}/checkpoints").iterdir()) == sealed
    assert_went_on(run, standby, undisturbed)


def test_whoever_resumes_on_another_machine_goes_on_in_the_same_step(three, undisturbed, tmp_path):
    run = Watched(three, tmp_path)
    run.wait_for(StepFinished, 3)
    run.program.signal(signal.SIGKILL)
    words = ["train", "--resume", STANDS, "--control", run.control, "--listen", run.at]
    words += ["--ticket", "/tmp/ticket"]
    resumed = three[1].start([*HOLDFAST, *words], tmp_path, "resumed")
    assert_went_on(run, resumed, undisturbed)
    assert "it goes on where they are" in resumed.stderr


@pytest.fixture(scope="module")
def cut_in_two(tmp_path_factory: pytest.TempPathFactory) -> runs.Outcome:
    folder = tmp_path_factory.mktemp("cut")
    job = folder / "paced_gpt.py"
    job.write_text(JOB_TEXT)
    numbers = {"steps": None, "microbatches": None}
    return runs.finished(runs.threads(job, folder / "run", *CUT, **numbers))


def test_the_machine_of_the_coordinator_is_lost_with_its_workers_and_checkpoints_are_in_s3(
    cut_in_two, tmp_path, monkeypatch
):
    skip_without_packages()
    spec = importlib.util.find_spec("moto")
    with hosts(3, share=[Path(spec.origin).parents[1]]) as machines:
        lost, takes_over, stays = machines
        bucket_on(stays, tmp_path, monkeypatch)
        s3 = runs.settings("checkpoint.dir=s3://bucket/run", "checkpoint.every_steps=3")
        run = Watched(machines, tmp_path, *CUT, *s3, first=0, start_with=1)
        run.wait_for(StepFinished)  # both workers are on the machine that is lost
        run.add(takes_over)
        standby = run.stand_by()
        run.wait_for(CheckpointSaved, 2)
        lost.power_off(silently=True)
        wait_until(lambda: events_of(takes_over, WentBack), "going back", LIMIT_S)
        run.pace(0)
        assert standby.wait(LIMIT_S) == 0, standby.stdout + standby.stderr
        summary = json.loads(takes_over.file(f"{STANDS}/{SUMMARY_FILE}").read_text())
        losses = {event.step: event.loss for event in events_of(takes_over, StepFinished)}
    assert summary["parameters_sha256"] == cut_in_two.sha256
    # Of a step that was not copied in time, and whose workers are lost too, nobody knows the loss.
    assert losses == {step: cut_in_two.losses[step] for step in losses}
    assert len(losses) >= STEPS - 4
    [went_back] = summary["went_back"]
    assert went_back["to_step"] > 0


def bucket_on(host: Host, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = S3Server(host.ipv4, 5000)
    use(server, monkeypatch)
    host.start(server.words, folder, "s3")
    make = f"import urllib.request as u; u.urlopen(u.Request('{server.url}/bucket', method='PUT'))"

    def is_made() -> bool:
        try:
            host.run([sys.executable, "-c", make])
        except subprocess.CalledProcessError:
            return False
        return True

    wait_until(is_made, "the bucket", LIMIT_S)
