"""A run directory is for its user only, and everybody in the run means the same one."""

import os
import stat
from pathlib import Path

import pytest

from helpers import jobs, runs
from holdfast.auth.secret import read_secret
from holdfast.control.io import server
from holdfast.protocol import messages
from holdfast.runtime.worker.threads import WorkerThreads

LOGS = runs.settings("recovery.log=boundary", "checkpoint.every_steps=2")


def modes(folder: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {"files": set(), "directories": set()}
    for path in (folder, *folder.rglob("*")):
        kind = "directories" if path.is_dir() else "files"
        found[kind].add(stat.S_IMODE(path.stat().st_mode))
    return found


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    assert os.umask(before) == 0o022, "the run has left its umask behind"


@pytest.mark.usefixtures("usual_umask")
def test_s5_a_run_directory_is_private_whatever_the_umask(tmp_path, monkeypatch):
    seen = []  # logs are gone at the end
    open_run = server.Server.wait_for_workers

    def look(self):
        seen.append(modes(tmp_path / "above" / "run"))
        open_run(self)

    monkeypatch.setattr(server.Server, "wait_for_workers", look)
    run_dir = tmp_path / "above" / "run"
    runs.finished(runs.threads(jobs.small(tmp_path), run_dir, *runs.layout("1x2"), *LOGS, steps=4))
    for found in (*seen, modes(run_dir)):
        assert found == {"files": {0o600}, "directories": {0o700}}
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o755  # as the user's umask has it


def test_s5_a_directory_that_was_there_before_becomes_private(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o755)
    runs.finished(runs.threads(jobs.small(tmp_path), run_dir, steps=1))
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700


def test_s2_a_run_that_is_resumed_keeps_its_secret_and_counts_its_launches(tmp_path):
    job, run_dir = jobs.small(tmp_path), tmp_path / "run"
    runs.finished(runs.threads(job, run_dir, steps=2))
    secret = read_secret(run_dir / "secret", "")
    assert (run_dir / "generation").read_text() == "1\n"
    runs.finished(runs.threads(job, run_dir, "--resume", str(run_dir), steps=4))
    assert (run_dir / "generation").read_text() == "2\n"
    assert read_secret(run_dir / "secret", "") == secret
    other = tmp_path / "other"
    runs.finished(runs.threads(job, other, "--resume", str(run_dir), steps=6))
    assert (other / "generation").read_text() == "1\n"
    assert read_secret(other / "secret", "") != secret


def test_a_secret_of_the_users_own_is_used_and_not_copied(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.write_text("12" * 32)
    own.chmod(0o600)
    job = jobs.small(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = runs.threads(job, tmp_path / "a", "--secret-file", "own", steps=1)
    assert f" --secret-file {own}\n" in runs.finished(run).stdout
    assert not (tmp_path / "a" / "secret").exists()
    monkeypatch.setenv("HOLDFAST_SECRET", "34" * 32)
    run = runs.finished(runs.threads(job, tmp_path / "b", steps=1))
    assert "(with HOLDFAST_SECRET set)\n" in run.stdout
    assert "HOLDFAST_SECRET" not in os.environ  # the job's code ran in this process
    assert "34" * 32 not in run.stdout
    own.chmod(0o640)
    run = runs.threads(job, tmp_path / "c", "--secret-file", str(own), steps=1)
    assert (run.exit_code, len(run.stderr.splitlines())) == (2, 1)
    assert f"--secret-file {own}: others may read it (mode 0640)" in run.stderr


def test_r3_whatever_the_workers_are_told_of_is_absolute(tmp_path, monkeypatch):
    """One that joins may have another working directory."""
    told: list[messages.Message] = []
    orders: list[messages.StartWorkers] = []
    encode, start = server.encode, WorkerThreads.start

    def started(threads, access, order) -> None:
        orders.append(order)
        start(threads, access, order)

    monkeypatch.setattr(WorkerThreads, "start", started)
    monkeypatch.setattr(server, "encode", lambda message: told.append(message) or encode(message))
    job = jobs.small(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = [*runs.layout("1x2"), *LOGS, *runs.settings("recovery.log_dir=logs")]
    first = runs.threads(Path(job.name), Path("run"), *words, steps=4)
    runs.finished(first)
    words += ["--resume", "run"]
    runs.finished(runs.threads(Path(job.name), Path("run"), *words, steps=6))
    checkpoint = str(tmp_path / "run" / "checkpoints" / "step-00000004")
    assert [(order.run_dir, order.resumed) for order in orders] == [
        (str(tmp_path / "run"), ""),
        (str(tmp_path / "run"), checkpoint),
    ]
    assert {order.config.recovery.log_dir for order in orders} == {str(tmp_path / "logs")}
    assigned = [message for message in told if isinstance(message, messages.Assign)]
    assert {message.checkpoint for message in assigned} == {"", "step-00000004"}
    assert "join with: holdfast worker --join 127.0.0.1:" in first.stdout
    assert f" --run-dir {tmp_path / 'run'}\n" in first.stdout
