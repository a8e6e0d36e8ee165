"""Those who belong to a run get in while strangers crowd its door."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from test_server import GENERATION, ORDER, Run, Worker, assert_finished

from helpers import runs
from helpers.agents import agent_hello
from helpers.harness.transport_harness import LIMIT_S, Background
from helpers.live import wait_until
from holdfast.auth.handshake import AGENT, COORDINATOR, JOINER, Caller, Identity, answer
from holdfast.auth.secret import FD_VARIABLE, hand_over
from holdfast.baselines.worker_registry import keeping_of
from holdfast.cli.cluster import agent as agent_command
from holdfast.cluster import WorkerId
from holdfast.config import config_from
from holdfast.control.io.agents import agent_process
from holdfast.errors import HandshakeBroken
from holdfast.protocol.connection import connect
from holdfast.protocol.spec import Access, WorkerSpec
from holdfast.runtime.worker import process
from holdfast.transport.local.transport import LocalHub, LocalTransport

SECRET = bytes(range(32))
CONFIG = config_from({"workers": {"start_limit_s": 77.0}})


@contextlib.contextmanager
def flood(address: tuple[str, int]) -> Iterator[None]:
    """Hellos of somebody who does not know the secret, one after the other, all kept open."""
    over = threading.Event()
    hello = Caller(bytes(32), Identity(JOINER), COORDINATOR).hello

    def pour() -> None:
        kept: list[socket.socket] = []
        while not over.is_set():
            kept.append(socket.create_connection(address, timeout=LIMIT_S))
            with contextlib.suppress(OSError):
                kept[-1].sendall(hello)
            if len(kept) > 200:
                kept.pop(0).close()
        for sock in kept:
            sock.close()

    pouring = [Background(pour) for _ in range(3)]
    try:
        yield
    finally:
        over.set()
        for one in pouring:
            one.result()


def test_an_agent_and_a_worker_get_in_during_a_flood_of_hellos(monkeypatch):
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    # who counts them sets them to 0
    monkeypatch.setattr("holdfast.control.io.entry.strangers.COUNT_S", 1e9)
    run = Run()
    # As processes of the run do it: who is pushed out calls again.
    run.connection = lambda role, name="": connect(run.access, role, name, LIMIT_S)[0]
    try:
        with flood(run.address):
            refused = run.server.strangers
            wait_until(lambda: refused.num_refused > 100, "strangers to push each other out", 60.0)
            agent = run.connection(AGENT)
            agent.send(agent_hello(1))
            assert agent.read_within(LIMIT_S) == [ORDER]
            worker = Worker(run)
            worker.begin()
        worker.finish()
        assert_finished(run)
        agent.close()
    finally:
        run.close()


def test_who_is_pushed_out_calls_again_until_it_gets_in():
    me, num_pushed_out = Identity(COORDINATOR, "", GENERATION), 3
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> Identity:
            for _ in range(num_pushed_out):
                listener.accept()[0].close()
            with listener.accept()[0] as sock:
                return answer(sock, SECRET, me, LIMIT_S)[0]

        serving = Background(serve)
        access = Access(*listener.getsockname(), SECRET, GENERATION)
        connection, _ = connect(access, AGENT, "", LIMIT_S)
        assert serving.result() == Identity(AGENT, "", GENERATION)
        connection.close()


@pytest.fixture
def limits(monkeypatch) -> list[float]:
    """How long somebody has tried to get in. Nobody does."""
    found: list[float] = []

    def crowded(access: Access, role: str, name: str, limit_s: float, **_: float) -> None:
        found.append(limit_s)
        raise HandshakeBroken("pushed out")

    monkeypatch.setattr(agent_command, "connect", crowded)
    monkeypatch.setattr(process, "connect", crowded)
    return found


def test_a_worker_of_the_run_tries_for_as_long_as_a_start_may_take(limits):
    spec = WorkerSpec(WorkerId(0, 0), Access("h", 1, SECRET, 1), "/job.py", "5a" * 32, CONFIG)
    transport = LocalTransport(spec.worker, LocalHub())
    assert process.run_worker(spec, transport, keeping_of) == 1
    assert limits == [77.0]
    transport.close()


def test_the_agent_tries_for_as_long_as_a_start_may_take(limits, monkeypatch):
    """The words are those with which the launcher starts it."""
    started: list[list[str]] = []
    monkeypatch.setattr(agent_process.subprocess, "Popen", lambda words, **_: started.append(words))
    access = Access("127.0.0.1", 1, SECRET, 1)
    agent_process.AgentProcess(CONFIG).start(access, ORDER)
    [[_, _, _, *words]] = started
    monkeypatch.setattr(agent_command.signals, "ignore", lambda: None)
    monkeypatch.setattr(agent_command.os, "umask", lambda mask: 0)
    monkeypatch.setenv(FD_VARIABLE, str(hand_over(SECRET)))
    assert runs.holdfast(words, None).exit_code == 1
    assert limits == [77.0]
