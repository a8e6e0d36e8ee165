"""A training over several hosts of a test: the launcher on one, joiners from others."""

import json
import sys
from pathlib import Path

from helpers import runs
from helpers.hosts import Host, Program
from helpers.live import pace, paced, wait_until
from holdfast.auth.certificate import kept_key
from holdfast.observability.events import Event, RunStarted, WorkerLost, WorkerReady
from holdfast.observability.log import EVENTS_FILE, read_events
from holdfast.observability.summary import SUMMARY_FILE

LIMIT_S = 300.0  # of one wait: five processes load torch at once
STEPS, MICROBATCHES = 40, 6
HOLDFAST = [sys.executable, "-m", "holdfast"]
JOB, RUN_DIR, SECRET = "/tmp/job/paced.py", "/tmp/run", "/tmp/secret"


class RunOnHost:
    """A ``holdfast train`` of 2 x 2 workers on one host, slow until it is released."""

    def __init__(self, host: Host, folder: Path, *assignments: str, more: str = "") -> None:
        """``more``: lines of the job file."""
        self._host = host
        self._paced: list[Host] = []  # where the job is
        self._put_job(host, paced(folder).read_text() + more)
        self.set_pace(0.03)
        words = ["train", JOB, "--run-dir", RUN_DIR, *runs.layout("2x2"), "--steps", str(STEPS)]
        words += ["--microbatches", str(MICROBATCHES)]
        words += runs.settings(runs.STAYS_AWAY, *assignments)
        self._folder = folder
        self.program = host.start([*HOLDFAST, *words], folder, "train")

    def _put_job(self, host: Host, text: str) -> None:
        host.file("/tmp/job").mkdir(exist_ok=True)
        host.file(JOB).write_text(text)
        self._paced.append(host)

    def all_of(self, kind: type[Event]) -> list[Event]:
        path = self._host.file(f"{RUN_DIR}/{EVENTS_FILE}")
        found = read_events(path) if path.exists() else []
        return [event for event in found if isinstance(event, kind)]

    def wait_for(self, kind: type[Event], number: int = 1) -> None:
        def is_there() -> bool:
            ended = self.program.process.poll() is not None  # before the look: all events count
            there = len(self.all_of(kind)) >= number
            assert there or not ended, self.program.stderr
            return there

        wait_until(is_there, kind.__name__, LIMIT_S)

    def kill(self, *workers: str) -> None:
        """At once, on the launcher's host."""
        pids = [str(event.pid) for event in self.all_of(WorkerReady) if event.worker in workers]
        number = len(self.all_of(WorkerLost))
        self._host.run(["kill", "-9", *pids])
        self.wait_for(WorkerLost, number + len(workers))

    def set_pace(self, item_s: float) -> None:
        for path in self._slow_files():
            pace(path.parent, item_s)

    def _slow_files(self) -> list[Path]:
        return [host.file("/tmp/job/slow") for host in self._paced if host.is_on]

    def join_from(self, host: Host, *words: str, with_job: bool = True) -> Program:
        """With its own copy of the job or without one; somebody has brought the secret there."""
        if with_job:
            self._put_job(host, self._host.file(JOB).read_text())
            words = ("--job", JOB, *words)
        self.set_pace(0.3)  # it must not end before
        secret = host.file(SECRET)
        secret.write_text(self._host.file(f"{RUN_DIR}/secret").read_text())
        secret.chmod(0o600)
        [started] = self.all_of(RunStarted)
        certificate = kept_key(self._host.file(RUN_DIR)).fingerprint
        own = ["worker", "--join", started.address, "--secret-file", SECRET, *words]
        own += ["--certificate", certificate]
        return host.start([*HOLDFAST, *own], self._folder)

    def sha256(self) -> str:
        """Of its result; it goes on at full speed."""
        for path in self._slow_files():
            path.unlink(missing_ok=True)
        assert self.program.wait(LIMIT_S) == 0, self.program.stderr
        summary = json.loads(self._host.file(f"{RUN_DIR}/{SUMMARY_FILE}").read_text())
        assert summary["outcome"] == "finished"
        return summary["parameters_sha256"]
