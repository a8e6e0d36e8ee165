"""A live run whose port is known to everybody: strangers in numbers, frames that nobody would send.

All of it ends with the parameters of the undisturbed run.
"""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers import jobs, runs
from helpers.fuzz import Fuzzer
from helpers.live import (
    PACE_S,
    LiveRun,
    assert_nothing_left,
    is_running,
    paced,
    resident_bytes,
)
from holdfast.auth.secret import last_generation, read_secret
from holdfast.observability.events import CheckpointSaved, StepFinished, WorkerJoined, WorkerLost
from holdfast.protocol.spec import Access

pytestmark = [pytest.mark.multiprocess, pytest.mark.wide, pytest.mark.timeout(600)]
STEPS, MICROBATCHES = 60, 4
OFTEN = runs.settings("checkpoint.every_steps=5", "workers.heartbeat_timeout_s=30")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    numbers = {"steps": STEPS, "microbatches": MICROBATCHES}
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **numbers))


@contextmanager
def live_run(folder: Path, layout: str = "2x2", cwd: Path | None = None) -> Iterator[LiveRun]:
    words = ["train", str(paced(folder)), *runs.layout(layout), "--steps", str(STEPS)]
    words += ["--microbatches", str(MICROBATCHES), *OFTEN]
    live = LiveRun(folder, *words, cwd=cwd)
    try:
        live.wait_for_steps(1)
        yield live
    finally:
        live.close()


def access_of(live: LiveRun) -> Access:
    host, _, port = live.address.rpartition(":")
    secret = read_secret(live.run_dir / "secret", "")
    return Access(host, int(port), secret, last_generation(live.run_dir))


def assert_as_undisturbed(live: LiveRun, undisturbed: runs.Outcome) -> None:
    live.release()
    run = runs.finished(live.outcome())
    assert run.sha256 == undisturbed.sha256
    assert_nothing_left(run)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_s5_five_thousand_bad_frames_on_a_live_run(tmp_path, undisturbed):
    seed = int(os.environ.get("HOLDFAST_SEED", "20260102"))
    print(f"HOLDFAST_SEED={seed}")  # noqa: T201  to repeat it
    with live_run(tmp_path) as live:
        live.slow_down(0.5)  # all must not be trained before
        fuzzer = Fuzzer(access_of(live), seed)
        try:
            fuzzer.run(500)
            before = resident_bytes(live.launcher.pid), descriptors(live.launcher.pid)
            fuzzer.run(5500)
            after = resident_bytes(live.launcher.pid), descriptors(live.launcher.pid)
        finally:
            fuzzer.close()
        print(f"sent {dict(fuzzer.sent)}, memory and descriptors {before} -> {after}")  # noqa: T201
        assert len(fuzzer.sent) == 5
        assert not fuzzer.let_in
        assert after[0] - before[0] < 32 << 20
        assert after[1] - before[1] < 100
        assert not live.all_of(WorkerLost)
        assert_as_undisturbed(live, undisturbed)


@contextmanager
def few_descriptors(number: int) -> Iterator[None]:
    """For processes started meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_s4_two_thousand_idle_connections_with_1024_descriptors(tmp_path, undisturbed):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4000:
        pytest.skip(f"this process may have only {hard} descriptors")
    with few_descriptors(1024):
        run = live_run(tmp_path)
        live = run.__enter__()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4000), hard))
    idle: list[socket.socket] = []
    try:
        address = access_of(live)
        saved = len(live.all_of(CheckpointSaved))
        live.slow_down(0.5)
        for _ in range(2000):
            idle.append(socket.create_connection((address.host, address.port), timeout=60.0))
        assert descriptors(live.launcher.pid) < 200
        live.slow_down(PACE_S)
        live.wait_for_more_steps(3)
        live.wait_for(CheckpointSaved, saved + 2)
        assert not live.all_of(WorkerLost)
        assert_as_undisturbed(live, undisturbed)
    finally:
        for sock in idle:
            sock.close()
        run.__exit__(None, None, None)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_r3_who_joins_from_elsewhere_writes_into_the_runs_directory(tmp_path, undisturbed):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    with live_run(here, "2x1", cwd=here) as live:
        live.kill("0.0")
        live.wait_for(WorkerLost, worker="0.0")
        live.join("--as", "0.0", cwd=elsewhere)
        live.wait_for(WorkerJoined, worker="0.0")
        saved = len(live.all_of(CheckpointSaved))
        live.wait_for(CheckpointSaved, saved + 2)
        assert list(elsewhere.iterdir()) == []
        assert_as_undisturbed(live, undisturbed)


def test_s5_the_secret_is_on_no_command_line_and_in_no_environment(tmp_path, undisturbed):
    with live_run(tmp_path) as live:
        secret = read_secret(live.run_dir / "secret", "").hex().encode()
        live.kill("1.0")
        live.wait_for(WorkerLost, worker="1.0")
        live.join("--as", "1.0")
        live.wait_for(WorkerJoined, worker="1.0")
        for pid in (live.launcher.pid, *live.pids):
            assert is_running(pid)
            for name in ("cmdline", "environ"):
                assert secret not in Path(f"/proc/{pid}/{name}").read_bytes()
        assert_as_undisturbed(live, undisturbed)


SLOW_JOB = "import time\ntime.sleep(7)\n"  # longer than a handshake may take


def test_r1_a_job_that_takes_long_to_load_starts_and_comes_back(tmp_path, undisturbed):
    job = tmp_path / "slow.py"
    job.write_text(SLOW_JOB + jobs.mixed(tmp_path).read_text())
    words = [*runs.layout("1x2"), "--fault", "kill 0.1 @ 8"]
    run = runs.processes(job, tmp_path / "run", *words, steps=STEPS, microbatches=MICROBATCHES)
    assert runs.finished(run).sha256 == undisturbed.sha256
    assert [event for event in run.events if isinstance(event, WorkerLost)], "no fault happened"
    assert sum(isinstance(event, StepFinished) for event in run.events) >= STEPS
