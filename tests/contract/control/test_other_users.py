"""Other users of this machine: they get no word out of a run, no place in it, and nobody obeys."""

import hashlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from test_server import GENERATION, SECRET, Run, Worker, assert_finished, begin, told

from helpers import runs
from helpers.harness.transport_harness import LIMIT_S, Background
from helpers.other_user import as_nobody, needs_root
from helpers.relay import pass_on_handshake
from holdfast.auth.handshake import AGENT, COORDINATOR, JOINER, WORKER_ROLE, Answerer, Identity
from holdfast.auth.secret import FD_VARIABLE, hand_over, write_secret
from holdfast.auth.stamps import STAMP_BYTES
from holdfast.cli import worker as worker_command
from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.errors import HandshakeFailed
from holdfast.protocol import messages
from holdfast.protocol.codec import encode
from holdfast.protocol.connection import connect
from holdfast.protocol.spec import REJOIN_VARIABLE, SPEC_VARIABLE, Access, WorkerSpec

# An old way in: no secret, and a connection whose owner /proc/net/tcp does not show.
OLD_WISH = {"v": 1, "kind": "JoinRequest", "worker": "", "pid": 9, "fingerprint": {}}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Run, Worker]]:
    """A run that lacks 1.0."""
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    run = Run(pipelines=2)
    try:
        stays, goes = begin(run)
        goes.connection.close()
        stays.connection.send(told(stays, stays.expect(messages.Halt)))
        stays.expect(messages.Proceed)
        yield run, stays
    finally:
        run.close()


def heard_by(host: str, port: int, data: bytes) -> int:
    """How many bytes the other side says to that."""
    number = 0
    with socket.create_connection((host, port), timeout=LIMIT_S) as sock:
        try:
            sock.sendall(data)
            while found := sock.recv(1 << 16):
                number += len(found)
        except OSError:
            return number
    return number


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_s1_another_user_gets_no_word_and_no_place(two, tmp_path, host):
    run, stays = two
    port = run.address[1]
    tmp_path.chmod(0o755)
    write_secret(tmp_path, SECRET)
    body = json.dumps(OLD_WISH | {"job_sha256": ""}).encode()

    def intrude() -> dict[str, object]:
        try:
            (tmp_path / "secret").read_bytes()
            read = "the secret was read"
        except PermissionError:
            read = ""
        refused = []
        for role, name in ((JOINER, ""), (WORKER_ROLE, "1.0"), (AGENT, "")):
            try:
                connect(Access(host, port, bytes(32), GENERATION), role, name, LIMIT_S)
            except HandshakeFailed:
                refused.append(role)
        said = heard_by(host, port, struct.pack("<I", len(body)) + body + bytes(64))
        return {"user": os.getuid(), "read": read, "refused": refused, "heard": said}

    seen = as_nobody(intrude)
    assert seen == {
        "user": 65534,
        "read": "",
        "refused": [JOINER, WORKER_ROLE, AGENT],
        "heard": 0,
    }
    stays.finish()
    assert_finished(run)


# --- somebody else at the port of a launcher that is gone ---


@contextmanager
def impostor() -> Iterator[tuple[str, int]]:
    """A server of another user: answers as a launcher that has another secret, then grants all."""
    needs_root()
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        _serve(listener)
    try:
        yield listener.getsockname()
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        listener.close()


def _serve(listener: socket.socket) -> None:
    granted = {
        "v": 1,
        "kind": "JoinGranted",
        "worker": "1.0",
        "job": "/tmp/evil.py",
        "job_sha256": "00" * 32,
        "config": {},
    }
    body = json.dumps(granted).encode()
    while True:
        caller = listener.accept()[0]
        hello = caller.recv(1 << 16)
        forged = Answerer(bytes(32), Identity(COORDINATOR, "", GENERATION))
        try:
            caller.sendall(forged.feed(hello) + struct.pack("<I", len(body)) + body)
        except Exception:
            caller.sendall(struct.pack("<I", len(body)) + body)
        caller.close()


@pytest.fixture(autouse=True)
def _nobody_becomes_a_worker(monkeypatch):
    def become(*_):
        pytest.fail("was let in")

    monkeypatch.setattr(worker_command.os, "execve", become)
    monkeypatch.setattr(worker_command, "NUM_TRIES", 2)
    monkeypatch.setattr(worker_command, "PAUSE_S", 0.05)


def spec_at(address: tuple[str, int], job: str) -> WorkerSpec:
    access = Access(*address, SECRET, GENERATION)
    return WorkerSpec(WorkerId(1, 0), access, job, "5a" * 32, RunConfig())


def comes_back(spec: WorkerSpec, monkeypatch: pytest.MonkeyPatch) -> runs.Outcome:
    """As a worker that has lost its launcher."""
    monkeypatch.setenv(SPEC_VARIABLE, spec.to_text())
    monkeypatch.setenv(REJOIN_VARIABLE, "1")
    monkeypatch.setenv(FD_VARIABLE, str(hand_over(spec.access.secret)))
    return runs.holdfast(["worker", "--join", str(spec.access)], None)


def test_s2_a_worker_that_comes_back_obeys_nobody_else(monkeypatch, tmp_path):
    with impostor() as address:
        outcome = comes_back(spec_at(address, str(tmp_path / "job.py")), monkeypatch)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (1, "", "")


def test_s2_who_joins_by_hand_is_told_that_no_run_is_there(tmp_path):
    write_secret(tmp_path, SECRET)
    with impostor() as (host, port):
        words = ["worker", "--join", f"{host}:{port}", "--run-dir", str(tmp_path)]
        outcome = runs.holdfast(words, None)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert f"--join {host}:{port}: no run with this secret is there" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_s2_a_relay_to_the_run_cannot_grant_a_place(two, tmp_path):
    """It passes on the proofs of the run that lives, then speaks itself."""
    run, stays = two
    evil = tmp_path / "evil.py"
    evil.write_text("import os\n")
    write_secret(tmp_path, SECRET)
    granted = messages.JoinGranted(
        worker="1.0",
        job=str(evil),
        job_sha256=hashlib.sha256(evil.read_bytes()).hexdigest(),
        config=RunConfig(),
        run_dir=str(tmp_path),
        resumed="",
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()

        def relay() -> str:
            here = listener.accept()[0]
            with here, socket.create_connection(run.address) as there:
                pass_on_handshake(here, there)
                here.sendall(encode(granted) + bytes(STAMP_BYTES))
                while here.recv(1 << 16):
                    pass
            return "granted"

        relaying = Background(relay)
        words = ["worker", "--join", f"{host}:{port}", "--run-dir", str(tmp_path)]
        outcome = runs.holdfast(words, None)
        assert relaying.result() == "granted"
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "no answer from the run (a frame of" in outcome.stderr
    assert "wrong stamp" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
    stays.finish()
    assert_finished(run)


def test_s2_a_worker_that_comes_back_keeps_its_job(two, monkeypatch, tmp_path):
    """Also if the run, which is the right one, names another."""
    run, stays = two
    other = replace(spec_at(run.address, "/job.py"), job_sha256="77" * 32)
    assert comes_back(other, monkeypatch).exit_code == 1
    became: list[WorkerSpec] = []
    monkeypatch.setattr(worker_command, "become_worker", lambda spec: became.append(spec) or 0)
    spec = spec_at(run.address, str(tmp_path / "mine.py"))
    assert comes_back(spec, monkeypatch).exit_code == 0
    assert became == [spec]
    stays.finish()
    assert_finished(run)


def test_s2_a_secret_that_others_may_read_is_refused(tmp_path):
    write_secret(tmp_path, SECRET)
    (tmp_path / "secret").chmod(0o644)
    outcome = runs.holdfast(["worker", "--join", "127.0.0.1:1", "--run-dir", str(tmp_path)], None)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "others may read it (mode 0644)" in outcome.stderr
    outcome = runs.holdfast(["worker", "--join", "127.0.0.1:1"], None)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "the run's secret is missing; add --run-dir DIR" in outcome.stderr
