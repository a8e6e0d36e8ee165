"""The launcher's port: a run goes on whoever else knocks, and ends when those who matter go."""

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from transport_harness import LIMIT_S, Background

from holdfast.config import config_from
from holdfast.control.coordinator import Coordinator, Emit, OpenRun, Phase
from holdfast.control.server import Server, listen
from holdfast.errors import ConfigError, PeerLost
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.codec import MAX_MESSAGE_BYTES, encode
from holdfast.protocol.connection import Connection, connect

TOKEN = "right"
ORDER = messages.StartWorkers(workers=["0.0"], job="job.py", config={})


def hello(token: str = TOKEN) -> messages.Hello:
    return messages.Hello(
        token=token,
        worker="0.0",
        pid=1,
        fingerprint={},
        num_layers=2,
        cut=[],
        host="127.0.0.1",
        port=1,
    )


def failed(token: str) -> messages.Failed:
    return messages.Failed(
        token=token, worker="0.0", lost="", exit_code=2, reason="made up", details=""
    )


class Run:
    """A server with a real coordinator in a thread; workers and strangers are scripted."""

    def __init__(self, start_limit_s: float = 60.0) -> None:
        config = config_from({"train": {"steps": 1}})
        listener = listen(config)
        self.address: tuple[str, int] = listener.getsockname()
        self.coordinator = Coordinator(config, "runs/x", None)
        self.effects: list[object] = []
        self.server = Server(listener, TOKEN, self.coordinator, self.effects.append, ORDER)
        self.serving = Background(self.server.run, start_limit_s)
        self.opened: list[Connection | socket.socket] = []

    def connection(self) -> Connection:
        self.opened.append(connect(*self.address, 10.0))
        return self.opened[-1]

    def knock(self, data: bytes = b"") -> socket.socket:
        stranger = socket.create_connection(self.address, timeout=20.0)
        self.opened.append(stranger)
        stranger.sendall(data)
        return stranger

    def close(self) -> None:
        self.server.interrupt()
        for opened in self.opened:
            opened.close()
        self.serving.join(20.0)
        self.server.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr("holdfast.control.coordinator.SUSPICION_S", 0.05)
    monkeypatch.setattr("holdfast.control.server.STOP_LIMIT_S", 0.5)
    made = Run()
    yield made
    made.close()


class Worker:
    """Plays a worker's whole life, message by message."""

    def __init__(self, run: Run) -> None:
        self.connection = run.connection()
        self._unread: list[messages.Message] = []

    def expect(self, kind: type) -> messages.Message:
        deadline_s = time.monotonic() + LIMIT_S
        while not self._unread:
            assert time.monotonic() < deadline_s, "the server says nothing"
            self._unread += self.connection.read()
        message = self._unread.pop(0)
        assert isinstance(message, kind)
        return message

    def begin(self) -> None:
        self.connection.send(hello())
        self.expect(messages.Assign)
        self.connection.send(messages.Ready(worker="0.0"))
        self.expect(messages.Go)

    def finish(self) -> None:
        done = messages.Finished(worker="0.0", digests={"0": "a", "1": "b"}, peak_memory_bytes=1)
        self.connection.send(done)
        self.expect(messages.Stop)
        self.connection.close()


def assert_finished(run: Run) -> None:
    run.serving.result()
    assert run.coordinator.phase is Phase.FINISHED
    assert run.coordinator.failure is None
    assert sum(isinstance(effect, OpenRun) for effect in run.effects) == 1
    emitted = [effect.event for effect in run.effects if isinstance(effect, Emit)]
    assert isinstance(emitted[-1], events.RunFinished)


def was_closed(stranger: socket.socket) -> bool:
    """By the server; waits for it."""
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


REFUSED: dict[str, bytes] = {
    "wrong token": encode(hello("wrong")),
    "empty token": encode(hello("")),
    "agent with a wrong token": encode(messages.AgentHello(token="wrong", pid=1)),
    "failure with a wrong token": encode(failed("wrong")),
    "two messages at once": encode(hello("wrong")) + encode(messages.Ready(worker="0.0")),
    "wrong, then right": encode(hello("wrong")) + encode(hello()),
    "no hello": encode(messages.Ready(worker="0.0")),
    "finished without hello": encode(
        messages.Finished(worker="0.0", digests={}, peak_memory_bytes=1)
    ),
    "garbage": bytes(range(255, -1, -1)) * 40,
    "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a length over the limit": struct.pack("<I", MAX_MESSAGE_BYTES + 1),
    "no JSON": struct.pack("<I", 4) + b"\xff\x00{[",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_a_stranger_is_sent_away_before_and_during_a_run_and_disturbs_nothing(run, data):
    assert was_closed(run.knock(data))
    worker = Worker(run)
    worker.begin()
    assert was_closed(run.knock(data))
    assert run.coordinator.phase is Phase.TRAINING
    worker.finish()
    assert_finished(run)


def silent(run: Run) -> None:
    run.knock()


def half_a_message(run: Run) -> None:
    run.knock(encode(hello())[:-1])


def garbage_that_looks_like_a_beginning(run: Run) -> None:
    run.knock(bytes(range(256)))


def half_a_message_and_gone(run: Run) -> None:
    run.knock(encode(hello())[:-1]).close()


def gone_at_once(run: Run) -> None:
    run.knock().close()


def reset(run: Run) -> None:
    stranger = run.knock(b"x")
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()


@pytest.mark.parametrize(
    "visit",
    [
        silent,
        half_a_message,
        garbage_that_looks_like_a_beginning,
        half_a_message_and_gone,
        gone_at_once,
        reset,
    ],
)
def test_a_visitor_that_never_says_who_it_is_disturbs_nothing(run, visit):
    visit(run)
    worker = Worker(run)
    worker.begin()
    visit(run)
    worker.finish()
    assert_finished(run)


def test_many_silent_visitors_do_not_keep_workers_out(run):
    for _ in range(50):
        run.knock()
    worker = Worker(run)
    worker.begin()
    worker.finish()
    assert_finished(run)


def test_an_agent_with_the_token_is_told_what_to_start_and_later_to_stop(run):
    agent = run.connection()
    agent.send(messages.AgentHello(token=TOKEN, pid=5))
    assert agent.read() == [ORDER]
    agent.send(messages.WorkerStarted(worker="0.0", pid=6))
    worker = Worker(run)
    worker.begin()
    worker.finish()
    agent.send(messages.WorkerExited(worker="0.0", pid=6, how="exit code 0"))
    assert_finished(run)
    run.server.close()
    assert agent.read() == [messages.Stop(reason="the run is over")]
    with pytest.raises(PeerLost):
        agent.read()


def failure_of(run: Run) -> str:
    run.serving.result()
    assert run.coordinator.phase is Phase.FAILED
    return str(run.coordinator.failure)


def test_losing_the_agent_ends_the_run(run):
    agent = run.connection()
    agent.send(messages.AgentHello(token=TOKEN, pid=5))
    assert agent.read() == [ORDER]
    worker = Worker(run)
    worker.begin()
    agent.close()
    assert isinstance(worker.expect(messages.Stop), messages.Stop)
    assert "the agent that starts the workers is gone" in failure_of(run)


@pytest.mark.parametrize("last_words", [b"", b"\x00" * 64], ids=["closes", "speaks nonsense"])
def test_a_worker_that_closes_or_speaks_nonsense_ends_the_run(run, last_words):
    worker = Worker(run)
    worker.begin()
    if last_words:
        worker.connection._sock.sendall(last_words)
    else:
        worker.connection.close()
    assert failure_of(run) == "worker 0.0 closed its connection"


def test_a_worker_that_fails_before_its_hello_says_why(run):
    connection = run.connection()
    connection.send(failed(TOKEN))
    assert failure_of(run) == "made up"
    assert isinstance(run.coordinator.failure, ConfigError)


def test_an_interrupt_stops_the_workers(run):
    worker = Worker(run)
    worker.begin()
    run.server.interrupt()
    told = worker.expect(messages.Stop)
    assert told.reason.startswith("interrupted; all workers were stopped. No checkpoint")
    assert failure_of(run) == told.reason


def test_workers_that_never_come_end_the_run_by_name():
    made = Run(start_limit_s=0.01)
    try:
        assert failure_of(made) == (
            "workers.start_limit_s=0.01 reached while starting: no answer from worker 0.0"
        )
    finally:
        made.close()


def test_what_cannot_be_carried_out_ends_the_run(run):
    def refuse(effect: object) -> None:
        if isinstance(effect, OpenRun):
            raise ConfigError("the disk is full")

    run.server._perform = refuse
    worker = Worker(run)
    worker.connection.send(hello())
    worker.expect(messages.Assign)
    worker.connection.send(messages.Ready(worker="0.0"))
    assert failure_of(run) == "the disk is full"


def test_a_port_in_use_is_refused_with_a_cure():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"control\.port={port}.*or 0 for any free one"):
            listen(config_from({"control": {"port": port}}))
