"""Runs over several machines that share nothing but a network."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import jobs, runs
from helpers.hosts import Host, Program, hosts, why_not
from helpers.live import paced, wait_until
from holdfast.observability.events import (
    EVENTS_FILE,
    Event,
    RunStarted,
    StepFinished,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    read_events,
)
from holdfast.observability.summary import SUMMARY_FILE

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.multiprocess,
    pytest.mark.wide,
    pytest.mark.timeout(900),
]
LIMIT_S = 300.0  # of one wait: five processes load torch at once
STEPS, MICROBATCHES = 40, 6
HOLDFAST = [sys.executable, "-m", "holdfast"]
JOB, RUN_DIR, SECRET = "/tmp/job/paced.py", "/tmp/run", "/tmp/secret"


class RunOnHost:
    """A ``holdfast train`` of 2 x 2 workers on one host, slow until it is released."""

    def __init__(self, host: Host, folder: Path, *assignments: str) -> None:
        self._host = host
        self._put_job(host, paced(folder).read_text())
        host.file("/tmp/job/slow").write_text("0.03")
        words = ["train", JOB, "--run-dir", RUN_DIR, *runs.layout("2x2"), "--steps", str(STEPS)]
        words += ["--microbatches", str(MICROBATCHES)]
        words += runs.settings(runs.STAYS_AWAY, *assignments)
        self._folder = folder
        self.program = host.start([*HOLDFAST, *words], folder, "train")

    @staticmethod
    def _put_job(host: Host, text: str) -> None:
        host.file("/tmp/job").mkdir()
        host.file(JOB).write_text(text)

    def all_of(self, kind: type[Event]) -> list[Event]:
        path = self._host.file(f"{RUN_DIR}/{EVENTS_FILE}")
        found = read_events(path) if path.exists() else []
        return [event for event in found if isinstance(event, kind)]

    def wait_for(self, kind: type[Event]) -> None:
        def is_there() -> bool:
            assert self.program.process.poll() is None, self.program.stderr
            return bool(self.all_of(kind))

        wait_until(is_there, kind.__name__, LIMIT_S)

    def kill(self, worker: str) -> None:
        [pid] = [event.pid for event in self.all_of(WorkerReady) if event.worker == worker]
        self._host.run(["kill", "-9", str(pid)])
        self.wait_for(WorkerLost)

    def join_from(self, host: Host, *words: str) -> Program:
        """With its own copy of the job, and a secret that somebody has brought there."""
        self._host.file("/tmp/job/slow").write_text("0.3")  # it must not end before
        self._put_job(host, self._host.file(JOB).read_text())
        secret = host.file(SECRET)
        secret.write_text(self._host.file(f"{RUN_DIR}/secret").read_text())
        secret.chmod(0o600)
        [started] = self.all_of(RunStarted)
        own = ["worker", "--join", started.address, "--secret-file", SECRET, "--job", JOB, *words]
        return host.start([*HOLDFAST, *own], self._folder, "join")

    def sha256(self) -> str:
        """Of its result; it goes on at full speed."""
        self._host.file("/tmp/job/slow").unlink()
        assert self.program.wait(LIMIT_S) == 0, self.program.stderr
        summary = json.loads(self._host.file(f"{RUN_DIR}/{SUMMARY_FILE}").read_text())
        assert summary["outcome"] == "finished"
        return summary["parameters_sha256"]


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


@pytest.mark.parametrize(
    ("listen", "advertise", "own_words"),
    [
        ("0.0.0.0", "", []),
        # Each name has an IPv4 address, too: there nobody listens on the first.
        ("fd77::1", "h0", ["--listen", "::", "--advertise", "h1"]),
    ],
    ids=["all-addresses", "ipv6-and-names"],
)
def test_a_worker_of_another_machine_takes_the_place_of_a_lost_one(
    two, undisturbed, tmp_path, listen, advertise, own_words
):
    here, there = two
    settings = [f"network.listen={listen}", f"network.advertise={advertise}"]
    run = RunOnHost(here, tmp_path, *settings)
    run.wait_for(StepFinished)
    run.kill("1.1")
    joiner = run.join_from(there, *own_words)
    run.wait_for(WorkerJoined)
    assert run.all_of(WorkerJoined)[0].worker == "1.1"
    assert run.sha256() == undisturbed
    assert joiner.wait(30) == 0
    assert joiner.stdout.startswith("joining as worker 1.1")
