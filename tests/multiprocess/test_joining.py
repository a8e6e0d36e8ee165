"""Workers that come by hand: they become members of the run, or hear in one line why not."""

import socket
import threading
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from helpers import jobs, runs
from helpers.live import LIMIT_S, LiveRun, assert_nothing_left, paced
from holdfast.cli import worker as worker_command
from holdfast.observability.events import FaultFired, JoinFailed, WorkerJoined, WorkerLost

pytestmark = pytest.mark.timeout(300)
STEPS, MICROBATCHES = 60, 6
# A busy machine is no fault: nobody but who is killed is ever missing.
PATIENT = ("workers.heartbeat_timeout_s=30", "mitigation.mode=observe")
LONG = ["--steps", "100000", *runs.settings("device.emulate=F=20ms,B=20ms,W=20ms", *PATIENT)]


# --- those who may ---


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    numbers = {"steps": STEPS, "microbatches": MICROBATCHES}
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **numbers))


@pytest.fixture
def live(tmp_path):
    """2 x 2 workers, slow until released; who joins as 0.1 first dies while it copies."""
    words = ["train", str(paced(tmp_path)), *runs.layout("2x2"), "--steps", str(STEPS)]
    words += ["--microbatches", str(MICROBATCHES), "--fault", "kill 0.1 @ 1.copy"]
    run = LiveRun(tmp_path, *words, *runs.settings("workers.heartbeat_timeout_s=30"))
    try:
        run.wait_for_steps(1)
        yield run
    finally:
        run.close()


def lose(live, *workers):
    for name in workers:
        live.kill(name)
    for name in workers:
        live.wait_for(WorkerLost, worker=name)


def assert_as_undisturbed(live, undisturbed):
    live.release()
    run = runs.finished(live.outcome())
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses
    assert_nothing_left(run)


def assert_became(command, worker):
    """It was told its place, and ended with the run, without a complaint."""
    assert command.process.wait(LIMIT_S) == 0
    first, last = command.stdout.splitlines()
    assert first == f"joining as worker {worker} (pid {command.process.pid})"
    assert last.startswith(f"worker {worker}: the run is over")
    assert command.stderr == ""


@pytest.mark.multiprocess
@pytest.mark.wide
def test_a_joiner_killed_while_it_copies_is_forgotten_and_the_next_one_becomes_a_member(
    live, undisturbed
):
    lose(live, "0.1")
    unlucky = live.join()
    live.wait_for(FaultFired, point="copy")
    live.wait_for(JoinFailed, worker="0.1")
    assert unlucky.process.wait(LIMIT_S) == -9
    next_one = live.join("--as", "0.1")
    [joined] = live.wait_for(WorkerJoined)
    assert (joined.worker, joined.copied_bytes > 0) == ("0.1", True)
    assert live.workers["0.1"] == next_one.process.pid
    assert_as_undisturbed(live, undisturbed)
    assert_became(next_one, "0.1")


@pytest.mark.wide
@pytest.mark.multiprocess
def test_two_that_join_at_once_both_become_members(live, undisturbed):
    lose(live, "1.0", "1.1")
    commands = {name: live.join("--as", name) for name in ("1.0", "1.1")}
    live.wait_for(WorkerJoined, 2)
    assert {event.worker for event in live.all_of(WorkerJoined)} == set(commands)
    assert_as_undisturbed(live, undisturbed)
    for name, command in commands.items():
        assert_became(command, name)


# --- those who may not ---


class Lacking(NamedTuple):
    live: LiveRun
    when_complete: runs.Outcome  # what somebody heard who wanted to join before 1.0 was lost


@pytest.fixture(autouse=True)
def _nobody_becomes_a_worker(monkeypatch):
    """Those who may join turn into a worker: this process must not."""

    def become(*_):
        pytest.fail("was let in")

    monkeypatch.setattr(worker_command.os, "execve", become)


@pytest.fixture(autouse=True, scope="module")
def _patient():
    """A launcher that has to wait for its turn answers all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_command, "CONNECT_LIMIT_S", LIMIT_S)
        yield


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """A long run of 2 x 2 workers that lacks worker 1.0."""
    folder = tmp_path_factory.mktemp("lacking")
    live = LiveRun(folder, "train", str(jobs.small(folder)), *runs.layout("2x2"), *LONG)
    try:
        live.wait_for_steps(1)
        complete = join_run(live)
        lose(live, "1.0")
        yield Lacking(live, complete)
        assert live.launcher.poll() is None, live.stderr
    finally:
        live.close()


def join(address, *words):
    return runs.holdfast(["worker", "--join", address, *words], None)


@pytest.fixture
def _some_secret(monkeypatch):
    """For those who get no farther than an address."""
    monkeypatch.setenv("HOLDFAST_SECRET", "00" * 32)


def join_run(live, *words):
    return join(live.address, "--run-dir", str(live.run_dir), *words)


def assert_refused(outcome, *parts):
    assert (outcome.exit_code, outcome.stdout) == (2, ""), outcome
    [line] = outcome.stderr.splitlines()
    assert line.startswith("holdfast: ")
    for part in parts:
        assert part in line


@pytest.mark.multiprocess
def test_nobody_joins_a_run_that_lacks_nobody(lacking):
    address = lacking.live.address
    assert_refused(lacking.when_complete, f"--join {address}: nobody is missing")


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("9.9", "there is no worker 9.9: the run has 2 pipelines x 2 stages"),
        ("0.1", "worker 0.1 is alive: missing is 1.0"),
        ("first", "'first'"),
        ("1.0.0", "'1.0.0'"),
    ],
)
def test_a_place_that_is_not_free_is_refused(lacking, name, part):
    assert_refused(join_run(lacking.live, "--as", name), part)


@pytest.mark.multiprocess
def test_another_job_file_is_refused(lacking, tmp_path):
    other = jobs.small(tmp_path, num_layers=3)
    live = lacking.live
    assert_refused(join_run(live, "--job", str(other)), "job file ", "differs from the run's")
    missing = tmp_path / "missing.py"
    assert_refused(join_run(live, "--job", str(missing)), f"--job {missing}: no such job file")


@pytest.mark.multiprocess
def test_a_job_file_that_has_changed_is_refused_and_the_place_stays_free(lacking):
    job = lacking.live.run_dir.parent / "small.py"
    before = job.read_text()
    job.write_text(before + "\n# changed\n")
    try:
        refused = join_run(lacking.live)
    finally:
        job.write_text(before)
    assert_refused(refused, f"job file {job}: is not the one that the run was started with")
    lacking.live.wait_for(JoinFailed, worker="1.0")
    assert_refused(join_run(lacking.live, "--as", "0.0"), "missing is 1.0")


@pytest.mark.usefixtures("_some_secret")
@pytest.mark.parametrize(
    "address",
    [
        *("nonsense", "", ":", "127.0.0.1", "127.0.0.1:", ":4000", "127.0.0.1:http"),
        *("127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:²", "::1:99999"),
        *("::1:40000", "[127.0.0.1]:4000", "[::1]", "[::1]:", "[fe80::1%eth0]:4000", "1.2.3:4000"),
        *(f"127.0.0.1:{'9' * 5000}", f"{'a' * 300}:4000", "a..b:4000", "ü.invalid:4000"),
    ],
)
def test_what_is_no_address_is_refused(address):
    assert_refused(join(address), f"--join {address}", "expected HOST:PORT")


@pytest.mark.usefixtures("_some_secret")
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "no-such-host.invalid", "a" * 63])
def test_an_address_where_nobody_listens_is_refused(host):
    with socket.socket() as nobody:  # bound, not listening: surely nobody else is there
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        assert_refused(join(f"{host}:{port}"), f"--join {host}:{port}: nobody answers there")


@contextmanager
def listening(says):
    """A server that is no run: sends ``says`` to whoever comes; None: hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        visitors = []

        def serve():
            visitor, _ = server.accept()
            if says is None:
                visitor.close()
            else:
                visitors.append(visitor)
                visitor.sendall(says)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(LIMIT_S)
        for visitor in visitors:
            visitor.close()


FOREIGN = {
    "nothing": b"",
    "a web page": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a length and no more": b"\x00\x00\x00\x10",
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "an end": None,
}


@pytest.mark.usefixtures("_some_secret")
@pytest.mark.parametrize("what", FOREIGN)
def test_something_else_that_listens_there_is_not_waited_for_for_ever(what, monkeypatch):
    monkeypatch.setattr(worker_command, "CONNECT_LIMIT_S", 0.5)
    with listening(FOREIGN[what]) as address:
        assert_refused(join(address), f"--join {address}: no ")


# --- faults that cannot be ---

BAD_FAULTS = [
    ("kill 2.0 @ 2", "there is no worker 2.0; expected pipeline.stage from 0.0 to 1.1"),
    ("kill 0.7 @ 2.B0", "there is no worker 0.7"),
    ("join 5.5 @ 2", "there is no worker 5.5"),
    ("kill 1.0 @ 7", "there is no step 7; expected 1 to 6"),
    ("kill 1.0 @ 0", "there is no step 0"),
    ("kill 1.0 @ -3", "there is no step -3"),
    ("explode 1.0 @ 2", "'explode' is no fault"),
    ("kill @ 2", "kill needs a worker"),
    ("kill 1.0", "it does not say when"),
    ("kill 1.0 @ soon", "'soon' is no step"),
    ("kill 1.0 @ 2.Q9", "'Q9' is no point"),
    ("slow 1.0=2 @ 2", "speed 2.0; expected above 0"),
    ("slow 1.0=nan @ 2", "speed nan; expected above 0"),
    ("", "is no fault"),
]
BAD_CHAOS = [
    ("seed=1", "lacks rate"),
    ("seed=1,rate=2", "rate 2 is no probability"),
    ("seed=x,rate=0.1", "seed 'x' is no whole number"),
    ("seed=1,rate=nan", "rate nan is no probability"),
    ("mayhem", "cannot read 'mayhem'"),
    ("", "cannot read ''"),
]
BAD = [("--fault", *bad) for bad in BAD_FAULTS] + [("--chaos", *bad) for bad in BAD_CHAOS]


@pytest.mark.parametrize(("flag", "text", "part"), BAD, ids=[f"{f} {t}" for f, t, _ in BAD])
def test_a_fault_that_cannot_be_is_refused_before_anything_starts(tmp_path, flag, text, part):
    words = [*runs.layout("2x2"), flag, text]
    run = runs.threads(jobs.small(tmp_path), tmp_path / "run", *words, steps=6)
    assert_refused(run, flag, part)
    assert not run.run_dir.exists()


def test_a_fault_in_a_step_before_the_resume_is_refused(tmp_path):
    job, run_dir = jobs.small(tmp_path), tmp_path / "run"
    runs.finished(runs.threads(job, run_dir, *runs.layout("1x2"), steps=3))
    for fault in ("kill 0.0 @ 3", "join @ 1"):
        words = [*runs.layout("1x2"), "--resume", str(run_dir), "--fault", fault]
        run = runs.threads(job, run_dir, *words, steps=6)
        assert_refused(run, f"--fault '{fault}'", "expected 4 to 6")
