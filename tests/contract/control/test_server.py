"""The launcher's port: a run goes on whoever else knocks, and ends when those who matter go."""

import contextlib
import errno
import json
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.agents import agent_hello
from helpers.fired import fired
from helpers.harness.transport_harness import LIMIT_S, Background
from helpers.live import wait_until
from helpers.scarce import refuse_threads
from holdfast.api.job_source import job_source
from holdfast.auth.certificate import TlsKey
from holdfast.auth.handshake import AGENT, COORDINATOR, JOINER, WORKER_ROLE, Caller, Identity, call
from holdfast.bundle.fetching import fetch
from holdfast.bundle.packing import JobBundle, pack
from holdfast.bundle.serving import BundleServer
from holdfast.cluster import WorkerId
from holdfast.config import MOST_TIMEOUT_S, RunConfig, config_from
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Emit, OpenRun
from holdfast.control.io import server
from holdfast.control.io.entry import entrance
from holdfast.control.io.entry.listening import listen, whereabouts
from holdfast.control.io.entry.strangers import Strangers
from holdfast.control.io.server import Server
from holdfast.control.state.lifecycle import RunPhase
from holdfast.errors import ConfigError, HandshakeFailed, PeerLost
from holdfast.faults.fault import parse_fault
from holdfast.observability import events
from holdfast.planner.warm_up import warm_up_beside
from holdfast.protocol import messages
from holdfast.protocol.codec import MAX_MESSAGE_BYTES, VERSION, encode
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.fields import PIECE_BYTES
from holdfast.protocol.spec import Access
from holdfast.runtime.worker.heartbeat import clock_told

SECRET, GENERATION = bytes(range(32)), 2
SHA = "5a" * 32
PLACES = {"job_sha256": SHA, "run_dir": "/runs/x", "resumed": ""}
ORDER = messages.StartWorkers(workers=["0.0"], job="/job.py", config=RunConfig(), **PLACES)


FINISHED = messages.Finished(
    worker="0.0",
    digests={"0": "a" * 64, "1": "b" * 64},
    peak_memory_bytes=1,
    kept_bytes=1,
    log_bytes=0,
    old_bytes=0,
)


def hello(worker: str = "0.0") -> messages.Hello:
    return messages.Hello(
        worker=worker,
        pid=1,
        fingerprint={"holdfast": holdfast.__version__},
        traits={},
        num_layers=2,
        layer_hashes=["a" * 32, "b" * 32],
        cut=[],
        host="127.0.0.1",
        port=1,
        device_index=0,
        device_bytes=0,
    )


FAILED = messages.Failed(worker="0.0", lost="", exit_code=2, reason="made up", details="")


class Listener:
    """As a listening socket; knows what it has accepted, and may run out of descriptors."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.accepted: dict[tuple[str, int], socket.socket] = {}  # by who has called
        self.num_refusals = 0  # to come

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.num_refusals:
            self.num_refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        sock, caller = self._listener.accept()
        self.accepted[caller] = sock
        return sock, caller

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


class Run:
    """A server with a real coordinator in a thread; workers and strangers are scripted."""

    def __init__(
        self,
        start_limit_s: float = 60.0,
        pipelines: int = 1,
        faults=(),
        perform=None,
        start_more=None,
        network=None,
        key: TlsKey | None = None,
        **more: Any,
    ) -> None:
        warm_up_beside(wait=True)  # else the first test waits for it with its limits running
        settings = {"train": {"steps": 1}, "parallel": {"pipelines": pipelines}}
        own = {"workers": {"restarts": 0}, "network": network or {}}
        config = config_from({**settings, **own})
        self.listener = Listener(listen(config)) if key is None else listen(config, key)
        self.address: tuple[str, int] = self.listener.getsockname()[:2]
        certificate = "" if key is None else key.fingerprint
        self.access = Access(*self.address, SECRET, GENERATION, certificate)
        self.coordinator = Coordinator(
            config, "/runs/x", None, faults=[parse_fault(text) for text in faults]
        )
        self.effects: list[object] = []
        self.started: list[messages.StartWorkers] = []
        self.server = Server(
            self.listener,
            self.access,
            self.coordinator,
            perform or self.effects.append,
            ORDER,
            start_more=start_more or self.started.append,
            **more,
        )
        self.serving = Background(self.server.run, start_limit_s)
        self.opened: list[Connection | socket.socket] = []
        self.sockets: dict[Connection, socket.socket] = {}

    @contextlib.contextmanager
    def server_busy(self) -> Iterator[None]:
        """All that is sent meanwhile is there when the server looks again."""
        turn, waits, goes = self.server.turn, threading.Event(), threading.Event()

        def wait(timeout_s: float) -> None:
            waits.set()
            assert goes.wait(LIMIT_S)

        self.server.turn = wait
        assert waits.wait(LIMIT_S)
        yield
        self.server.turn = turn
        goes.set()

    def connection(self, role: str, name: str = "", generation: int = GENERATION) -> Connection:
        """Proven to be somebody."""
        access = replace(self.access, generation=0)
        sock = socket.create_connection(self.address, timeout=LIMIT_S)
        self.opened.append(sock)
        me = Identity(role, name, generation)
        found, stamps = call(sock, access.secret, me, COORDINATOR, LIMIT_S)
        assert found.generation == GENERATION
        made = self.opened[-1] = Connection(sock, stamps)
        self.sockets[made] = sock
        return made

    def knock(self, data: bytes = b"") -> socket.socket:
        stranger = socket.create_connection(self.address, timeout=LIMIT_S)
        self.opened.append(stranger)
        stranger.sendall(data)
        return stranger

    def close(self) -> None:
        self.server.interrupt()
        for opened in self.opened:
            opened.close()
        self.serving.join(LIMIT_S)
        self.server.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr("holdfast.control.join.starting.SUSPICION_S", 0.05)
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    made = Run()
    yield made
    made.close()


class Ahead:
    """The module ``time``, with a clock that tests move: how long they take does not count."""

    by_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.by_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """The clock of servers."""
    made = Ahead()
    monkeypatch.setattr(server, "time", made)
    return made


@pytest.fixture
def bundle(tmp_path: Path) -> JobBundle:
    (tmp_path / "job.py").write_text("import beside\n")
    (tmp_path / "beside.py").write_text(f"TEXT = {'x' * PIECE_BYTES * 3!r}\n")
    made = pack(job_source(tmp_path / "job.py", in_threads=False))
    assert made is not None
    return made


@pytest.mark.parametrize("role", [JOINER, AGENT])
def test_whoever_belongs_to_the_run_gets_its_job_piece_by_piece(tmp_path, bundle, role) -> None:
    run = Run(bundle=BundleServer(bundle))
    try:
        caller = run.connection(role)
        root = fetch(caller, bundle.sha256, tmp_path / "cache", LIMIT_S)
        assert (root / "beside.py").read_bytes() == (tmp_path / "beside.py").read_bytes()
        with pytest.raises(ConfigError, match="the run has no such job bundle"):
            fetch(caller, SHA, tmp_path / "cache", LIMIT_S)
    finally:
        run.close()


def test_a_joiner_may_stay_while_it_takes_pieces_and_no_longer(
    monkeypatch, tmp_path, bundle, ahead
) -> None:
    monkeypatch.setattr(entrance, "ASK_LIMIT_S", 100.0)
    run = Run(start_limit_s=1e9, bundle=BundleServer(bundle))
    try:
        joiner = run.connection(JOINER)
        ask = messages.BundleAsk(sha256=bundle.sha256, file=0, offset=0)
        for _ in range(4):  # in all for longer than the limit
            joiner.send(ask)
            [piece] = joiner.read_within(LIMIT_S)
            assert isinstance(piece, messages.BundlePiece)
            ahead.by_s += 50.0
        ahead.by_s += 100.0
        with pytest.raises(PeerLost):
            joiner.read_within(LIMIT_S)
    finally:
        run.close()


def test_a_worker_may_not_ask_for_the_job(bundle) -> None:
    run = Run(bundle=BundleServer(bundle))
    try:
        worker = run.connection(WORKER_ROLE, "0.0")
        worker.send(messages.BundleAsk(sha256=bundle.sha256, file=0, offset=0))
        with pytest.raises(PeerLost):
            worker.read_within(LIMIT_S)
    finally:
        run.close()


class Worker:
    """Plays a worker's whole life, message by message."""

    def __init__(self, run: Run, name: str = "0.0") -> None:
        self.connection = run.connection(WORKER_ROLE, name)
        self.name = name
        self._unread: list[messages.Message] = []

    def expect(self, kind: type) -> messages.Message:
        deadline_s = time.monotonic() + LIMIT_S
        while not self._unread:
            assert time.monotonic() < deadline_s, "the server says nothing"
            heard = self.connection.read()
            self._unread += [one for one in heard if not isinstance(one, messages.StillHere)]
        message = self._unread.pop(0)
        assert isinstance(message, kind)
        return message

    def begin(self) -> None:
        self.build()
        self.expect(messages.Proceed)

    def build(self) -> None:
        self.connection.send(hello(self.name))
        self.expect(messages.Assign)
        self.connection.send(messages.Ready(worker=self.name))

    def finish(self) -> None:
        self.connection.send(FINISHED)
        self.expect(messages.Stop)
        self.connection.close()


def assert_finished(run: Run) -> None:
    run.serving.result()
    assert run.coordinator.phase is RunPhase.FINISHED
    assert run.coordinator.failure is None
    assert sum(isinstance(effect, OpenRun) for effect in run.effects) == 1
    emitted = [effect.event for effect in run.effects if isinstance(effect, Emit)]
    assert isinstance(emitted[-1], events.RunFinished)


def was_closed(stranger: socket.socket) -> bool:
    """By the server; waits for it."""
    try:
        while stranger.recv(1 << 16):  # it may be told why
            continue
    except ConnectionResetError:
        return True
    return True


def forged(role: str, name: str = "") -> bytes:
    """All that one can say who does not know the secret: a hello, and any proof."""
    caller = Caller(bytes(32), Identity(role, name, GENERATION), COORDINATOR)
    return caller.hello + b"HFpr\x02" + bytes(32)


REFUSED: dict[str, bytes] = {
    "a worker with another secret": forged(WORKER_ROLE, "0.0"),
    "an agent with another secret": forged(AGENT),
    "a joiner with another secret": forged(JOINER),
    "a message at once": encode(hello()),
    "an agent's message at once": encode(agent_hello(1)) + bytes(58),
    "a failure at once": encode(FAILED),
    "a wish to join at once": encode(
        messages.JoinRequest(worker="", pid=9, fingerprint={}, job_sha256="")
    ),
    "garbage": bytes(range(255, -1, -1)) * 40,
    "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(58),
    "a length over the limit": struct.pack("<I", MAX_MESSAGE_BYTES + 1) + bytes(58),
    "no identity": b"HFhs\x01" + b"\xff" * 53,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_a_stranger_is_sent_away_before_and_during_a_run_and_disturbs_nothing(run, data):
    assert was_closed(run.knock(data))
    worker = Worker(run)
    worker.begin()
    assert was_closed(run.knock(data))
    assert run.coordinator.phase is RunPhase.TRAINING
    worker.finish()
    assert_finished(run)


def silent(run: Run) -> None:
    run.knock()


def half_a_message(run: Run) -> None:
    run.knock(Caller(SECRET, Identity(JOINER), COORDINATOR).hello[:-1])


def a_hello_and_no_proof(run: Run) -> None:
    run.knock(Caller(SECRET, Identity(JOINER), COORDINATOR).hello)


def garbage_that_looks_like_a_beginning(run: Run) -> None:
    run.knock(b"HFhs\x01" + bytes(range(40)))


def half_a_message_and_gone(run: Run) -> None:
    run.knock(Caller(SECRET, Identity(JOINER), COORDINATOR).hello[:-1]).close()


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
        a_hello_and_no_proof,
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


def next_order(agent: Connection) -> messages.Message:
    """Signs of life may come before it."""
    while True:
        for message in agent.read_within(LIMIT_S):
            if not isinstance(message, messages.StillHere):
                return message


def test_an_agent_is_told_what_to_start_and_later_to_stop(run):
    agent = run.connection(AGENT)
    agent.send(agent_hello(5))
    assert agent.read() == [ORDER]
    agent.send(messages.WorkerStarted(worker="0.0", pid=6))
    worker = Worker(run)
    worker.begin()
    worker.finish()
    agent.send(messages.WorkerExited(worker="0.0", pid=6, how="exit code 0"))
    assert_finished(run)
    run.server.close()
    assert next_order(agent) == messages.Stop(reason="the run is over")
    with pytest.raises(PeerLost):
        agent.read()


def failure_of(run: Run) -> str:
    run.serving.result()
    assert run.coordinator.phase is RunPhase.FAILED
    return str(run.coordinator.failure)


def test_losing_the_agent_ends_the_run(run):
    agent = run.connection(AGENT)
    agent.send(agent_hello(5))
    assert agent.read() == [ORDER]
    worker = Worker(run)
    worker.begin()
    agent.close()
    assert isinstance(worker.expect(messages.Stop), messages.Stop)
    assert "the agent that starts the workers is gone" in failure_of(run)


@pytest.mark.parametrize("last_words", [b"", b"\x00" * 64], ids=["closes", "speaks nonsense"])
def test_the_last_worker_that_closes_or_speaks_nonsense_ends_the_run(run, last_words):
    worker = Worker(run)
    worker.begin()
    if last_words:
        run.sockets[worker.connection].sendall(last_words)
    else:
        worker.connection.close()
    assert "worker 0.0 (pid 1) was lost in step 1, closed its connection" in failure_of(run)


def test_a_worker_that_fails_before_its_hello_says_why(run):
    connection = run.connection(WORKER_ROLE, "0.0")
    connection.send(FAILED)
    assert failure_of(run) == "made up"
    assert isinstance(run.coordinator.failure, ConfigError)


def test_an_interrupt_asks_the_workers_to_stop_and_a_second_one_stops_them(run):
    worker = Worker(run)
    worker.begin()
    run.server.interrupt()
    assert worker.expect(messages.Halt).epoch == 2
    run.server.interrupt()
    told = worker.expect(messages.Stop)
    assert told.reason.startswith("interrupted; all workers were stopped. No checkpoint")
    assert failure_of(run) == told.reason


# --- more than one worker ---


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Two holders of one stage; a worker that is missing is ordered at once."""
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    made = Run(pipelines=2)
    yield made
    made.close()


def begin(run: Run) -> tuple[Worker, Worker]:
    workers = Worker(run, "0.0"), Worker(run, "1.0")
    for worker in workers:
        worker.connection.send(hello(worker.name))
    for worker in workers:
        worker.expect(messages.Assign)
        worker.connection.send(messages.Ready(worker=worker.name))
    for worker in workers:
        worker.expect(messages.Proceed)
    return workers


def told(worker: Worker, halt: messages.Halt) -> messages.Inventory:
    return messages.Inventory(
        worker=worker.name,
        epoch=halt.epoch,
        reduced=0,
        oldest=0,
        attempt=0,
        progress={},
        kept=[],
        verdicts={},
        kept_bytes=0,
        done=0,
        commits=[],
        saving=0,
    )


def test_a_closed_connection_is_acted_on_at_once_and_the_others_go_on(two):
    stays, goes = begin(two)
    goes.connection.close()
    stays.connection.send(told(stays, stays.expect(messages.Halt)))
    proceed = stays.expect(messages.Proceed)
    assert (proceed.epoch, proceed.stages) == (2, {"0.0": 0})
    stays.finish()
    assert_finished(two)


FIRED = fired("1.0", "kill 1.0 @ 1", step=0, at_s=1.0)


def assert_finished_and_fired(run: Run) -> None:
    assert_finished(run)
    emitted = [effect.event for effect in run.effects if isinstance(effect, Emit)]
    assert [event.fault for event in emitted if isinstance(event, events.FaultFired)]


def test_the_last_words_of_a_lost_worker_are_heard_before_its_connection_is_closed(two):
    agent = two.connection(AGENT)
    agent.send(agent_hello(5))
    agent.send(messages.WorkerStarted(worker="1.0", pid=1))
    stays, goes = begin(two)
    with two.server_busy():
        goes.connection.send(FIRED)
        agent.send(messages.WorkerExited(worker="1.0", pid=1, how="signal SIGKILL"))
    stays.connection.send(told(stays, stays.expect(messages.Halt)))
    stays.expect(messages.Proceed)
    stays.finish()
    assert_finished_and_fired(two)


def test_so_are_those_that_were_read_with_the_word_that_led_to_its_loss(two):
    """A Halt follows from the first, and cannot be sent to it any more."""
    stays, goes = begin(two)
    with two.server_busy():
        goes.connection.send(messages.PeerGone(worker="1.0", epoch=1, lost=""))
        goes.connection.send(FIRED)
        sock = two.sockets[goes.connection]
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()  # by a reset
    halts = [stays.expect(messages.Halt), stays.expect(messages.Halt)]
    stays.connection.send(told(stays, halts[-1]))
    stays.expect(messages.Proceed)
    stays.finish()
    assert_finished_and_fired(two)


def test_a_worker_that_takes_nothing_is_lost_instead_of_holding_up_the_others(two):
    stays, silent = begin(two)
    with two.server_busy():
        sock = two.listener.accepted[two.sockets[silent.connection].getsockname()]
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(1 << 16))  # until its buffers are full
        sock.settimeout(server.SEND_LIMIT_S)
        stays.connection.send(messages.PeerGone(worker="0.0", epoch=1, lost=""))
    stays.expect(messages.Halt)  # to both
    stays.connection.send(told(stays, stays.expect(messages.Halt)))
    assert stays.expect(messages.Proceed).stages == {"0.0": 0}
    stays.finish()
    assert_finished(two)


def test_nobody_takes_the_name_of_a_worker_that_lives(two):
    begin(two)
    thief = two.connection(WORKER_ROLE, "1.0")
    (stop,) = thief.read()
    assert isinstance(stop, messages.Stop)
    assert two.coordinator.phase is RunPhase.TRAINING


def wish(**changes) -> messages.JoinRequest:
    values = {"worker": "", "pid": 9, "fingerprint": {}, "job_sha256": SHA}
    return messages.JoinRequest(**(values | changes))


def test_who_asks_to_join_gets_a_place_and_comes_back_as_the_worker(two):
    stays, goes = begin(two)
    goes.connection.close()
    stays.connection.send(told(stays, stays.expect(messages.Halt)))
    stays.expect(messages.Proceed)
    asking = two.connection(JOINER, generation=0)
    asking.send(wish())
    (granted,) = asking.read()
    assert (granted.worker, granted.job, granted.job_sha256) == ("1.0", ORDER.job, SHA)
    with pytest.raises(PeerLost):
        asking.read()
    joiner = Worker(two, "1.0")
    joiner.build()
    assert joiner.expect(messages.CopyState).source == "0.0"
    assert stays.expect(messages.ShareState).to == "1.0"


@pytest.mark.parametrize(
    ("changes", "words"),
    [({}, "nobody is missing"), ({"job_sha256": "00" * 32}, "differs"), ({"worker": "9.0"}, "9.0")],
)
def test_who_cannot_join_is_told_why_in_one_line(two, changes, words):
    begin(two)
    asking = two.connection(JOINER, changes.get("worker", ""), generation=0)
    asking.send(wish(**changes))
    (stop,) = asking.read()
    assert words in stop.reason
    assert two.coordinator.phase is RunPhase.TRAINING


# --- what each may say ---

FOREIGN_WORDS = {
    "in another's name": (WORKER_ROLE, "1.0", messages.Ready(worker="0.0")),
    "the coordinator's words": (WORKER_ROLE, "1.0", messages.Halt(epoch=7)),
    "an agent's words": (
        WORKER_ROLE,
        "1.0",
        messages.WorkerExited(worker="0.0", pid=1, how="exit code 0"),
    ),
    "a second hello": (WORKER_ROLE, "1.0", hello("1.0")),
    "a worker's words": (AGENT, "", messages.Ready(worker="0.0")),
    "the end of somebody else's child": (
        AGENT,
        "",
        messages.WorkerExited(worker="0.0", pid=77, how="exit code 0"),
    ),
    "the life of somebody else's child": (
        AGENT,
        "",
        messages.WorkerRuns(worker="0.0", pid=77),
    ),
    "a wish under another name": (JOINER, "1.0", wish(worker="0.0")),
    "a grant": (
        JOINER,
        "",
        messages.JoinGranted(worker="0.0", job="/j", config=RunConfig(), **PLACES),
    ),
}


@pytest.mark.parametrize(("role", "name", "message"), FOREIGN_WORDS.values(), ids=FOREIGN_WORDS)
def test_s5_what_a_connection_may_say_is_bound_to_who_it_is(two, role, name, message):
    stays, goes = begin(two)
    if role == WORKER_ROLE:
        goes.connection.send(message)
        stays.connection.send(told(stays, stays.expect(messages.Halt)))
        assert stays.expect(messages.Proceed).stages == {"0.0": 0}
    else:
        other = two.connection(role, name)
        if role == AGENT:
            other.send(agent_hello())
        other.send(message)
        assert_cut_off(other)
    [dropped] = [e.event for e in two.effects if isinstance(e, Emit) and is_dropped(e.event)]
    assert dropped.who == f"{role} {name}".strip()
    if role == AGENT:  # without it no worker can be started again
        assert "the agent that starts the workers is gone" in failure_of(two)
        return
    if role == JOINER:
        goes.connection.send(replace(FINISHED, worker="1.0"))
    stays.finish()
    assert_finished(two)


def assert_cut_off(connection: Connection) -> None:
    """After whatever it has been told before."""

    def hear_all() -> None:
        while connection.read_within(LIMIT_S):
            pass

    with pytest.raises(PeerLost):
        hear_all()


def is_dropped(event: object) -> bool:
    return isinstance(event, events.ConnectionDropped)


@pytest.mark.parametrize("name", ["x", "../0.0", "0.0/..", "", "0.0\n"])
def test_s5_a_name_that_is_none_costs_the_connection_and_not_the_run(two, name):
    stays, goes = begin(two)
    bad = encode(messages.Ready(worker="1.0")).replace(b'"1.0"', json.dumps(name).encode())
    body = bad[4:]
    goes.connection.send_encoded(struct.pack("<I", len(body)) + body)
    stays.connection.send(told(stays, stays.expect(messages.Halt)))
    stays.expect(messages.Proceed)
    stays.finish()
    assert_finished(two)


REPORT = {
    "worker": "1.0",
    "step": 0,
    "losses": [],
    "num_tokens": 0,
    "norm": 1.0,
    "clipped": False,
    "skipped": False,
    "taken_back": False,
    "nonfinite": False,
    "loss_scale": 1.0,
    "lr": 1e-3,
    "operations": [],
    "transfers": [],
}
COSTS = {"worker": "1.0", "forward_s": [1.0, 1.0], "backward_s": [1.0, 1.0], "sizes": []}
LIES = {
    "a row of no form": ("StepReport", REPORT | {"operations": [["x"]]}, "StepReport.operations"),
    "a transfer of no form": ("StepReport", REPORT | {"transfers": [[1]]}, "StepReport.transfers"),
    "no such step": ("StepReport", REPORT | {"step": 77}, "StepReport.step: 77"),
    "what nobody asked for": ("LayerCosts", COSTS, "LayerCosts while training"),
    "what was not given": ("Ready", {"worker": "1.0"}, "Ready: it was given no stage"),
}


@pytest.mark.parametrize(("kind", "values", "reason"), LIES.values(), ids=LIES)
def test_s5_content_that_cannot_be_costs_the_connection_and_not_the_run(two, kind, values, reason):
    stays, goes = begin(two)
    body = json.dumps({"v": VERSION, "kind": kind, **values}).encode()
    goes.connection.send_encoded(struct.pack("<I", len(body)) + body)
    stays.connection.send(told(stays, stays.expect(messages.Halt)))
    assert stays.expect(messages.Proceed).stages == {"0.0": 0}
    [dropped] = [e.event for e in two.effects if isinstance(e, Emit) and is_dropped(e.event)]
    assert dropped.who == "worker 1.0"
    assert dropped.reason.startswith(reason)
    stays.finish()
    assert_finished(two)


@pytest.mark.parametrize("role", [AGENT, WORKER_ROLE, JOINER])
def test_s2_who_belongs_to_an_earlier_launch_is_refused_with_the_reason(run, role):
    name = "0.0" if role == WORKER_ROLE else ""
    late = run.connection(role, name, generation=GENERATION - 1)
    (stop,) = late.read()
    assert stop.reason == "it is of launch 1 of this run, which is at launch 2"
    worker = Worker(run)
    worker.begin()
    worker.finish()
    assert_finished(run)


def test_s5_nobody_becomes_the_agent_of_a_run_that_has_none_or_has_one(run):
    agent = run.connection(AGENT)
    other = run.connection(AGENT)
    assert other.read() == [messages.Stop(reason="nobody waits for an agent")]
    agent.send(agent_hello(5))
    assert agent.read() == [ORDER]
    without = Run(most_agents=0)
    try:
        late = without.connection(AGENT)
        assert late.read() == [messages.Stop(reason="nobody waits for an agent")]
    finally:
        without.close()


def test_an_agent_that_never_says_hello_gives_its_place_back(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.control.io.agents.agent_connections.HELLO_LIMIT_S", 0.1)
        mute = run.connection(AGENT)
        assert_cut_off(mute)
    agent = run.connection(AGENT)
    agent.send(agent_hello(5))
    assert agent.read() == [ORDER]
    [line] = [e.event for e in run.effects if isinstance(e, Emit) and is_dropped(e.event)]
    assert (line.who, line.reason) == ("agent", "did not say what it had come for")


def test_s2_who_belongs_to_a_launch_does_not_talk_to_another_one(run):
    with pytest.raises(HandshakeFailed, match=r"launch 2 of the run .* belongs to launch 3"):
        connect(replace(run.access, generation=3), WORKER_ROLE, "0.0", LIMIT_S)


def test_s1_who_does_not_know_the_secret_gets_no_word_and_no_place(two):
    stays, goes = begin(two)
    goes.connection.close()
    stays.connection.send(told(stays, stays.expect(messages.Halt)))
    stays.expect(messages.Proceed)
    for role, name in ((JOINER, ""), (WORKER_ROLE, "1.0"), (AGENT, "")):
        access = replace(two.access, secret=bytes(32))
        with pytest.raises(HandshakeFailed, match="does not know the secret"):
            connect(access, role, name, LIMIT_S)
        stranger = two.knock(forged(role, name))
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while data := stranger.recv(1 << 16):
                heard += data
        assert len(heard) in (0, 90)  # an answer proves the run; it tells nothing of it
        assert SECRET not in heard
        assert ORDER.job.encode() not in heard
    stays.finish()
    assert_finished(two)


# --- strangers in numbers ---


def test_r1_a_worker_that_loads_for_long_stays_whatever_the_limit_of_a_handshake(monkeypatch):
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    run = Run()
    try:
        worker = Worker(run)  # it has proven who it is, and loads its job
        monkeypatch.setattr("holdfast.control.io.entry.strangers.HANDSHAKE_LIMIT_S", 0.05)
        assert was_closed(run.knock())  # whoever proves nothing is gone after the limit
        assert was_closed(run.knock())
        worker.begin()
        worker.finish()
        assert_finished(run)
    finally:
        run.close()


def test_s4_strangers_push_out_only_strangers(run):
    """80 of them while a worker loads its job, and more than are kept afterwards."""
    worker = Worker(run)
    for _ in range(80):
        run.knock()
    worker.begin()
    for _ in range(80):
        run.knock()
    assert len(run.server.strangers) <= 65
    worker.finish()
    assert_finished(run)


def test_s4_one_that_was_pushed_out_a_moment_ago_is_not_read_any_more():
    """Both are told in one look: that somebody new is there, and that the old one has spoken."""
    selector, me = selectors.DefaultSelector(), Identity(COORDINATOR, "", GENERATION)
    with selector, listen(config_from({})) as listener:
        strangers = Strangers(selector, listener, SECRET, me, most=1)
        strangers.open()
        with socket.create_connection(listener.getsockname(), timeout=20.0) as first:
            selector.select(LIMIT_S)
            strangers.accept()
            first.sendall(b"HFhs")
            [stranger] = [key.fileobj for key, _ in selector.select(LIMIT_S)]
            with socket.create_connection(listener.getsockname(), timeout=20.0):
                wait_until(lambda: len(selector.select(0)) == 2, "the second one to be there")
                strangers.accept()
                assert strangers.read(stranger) is None
                assert was_closed(first)
                strangers.close()


def test_s4_out_of_descriptors_nobody_is_let_in_for_a_moment_and_the_run_goes_on(run):
    worker = Worker(run)
    worker.begin()
    run.listener.num_refusals = 2
    late = run.connection(JOINER, generation=0)  # waits in the queue meanwhile
    assert run.listener.num_refusals == 0
    late.send(wish())
    (stop,) = late.read()
    assert "nobody is missing" in stop.reason
    worker.finish()
    assert_finished(run)


@pytest.mark.parametrize("by", ["agent", "threads"])
def test_a_worker_that_is_to_come_back_is_started_by_who_starts_workers(monkeypatch, by):
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    run = Run(pipelines=2, faults=["join @ 1"])
    try:
        if by == "agent":
            agent = run.connection(AGENT)
            agent.send(agent_hello(5))
            orders = [replace(ORDER, workers=[worker]) for worker in ("0.0", "1.0")]
            told: list[messages.Message] = []
            while len(told) < 2:  # they may come together
                told += agent.read_within(LIMIT_S)
            assert told == orders
        stays, goes = begin(run)
        goes.connection.close()
        stays.expect(messages.Halt)
        order = replace(ORDER, workers=["1.0"])
        if by == "agent":
            assert next_order(agent) == order
        else:
            wait_until(lambda: bool(run.started), "the worker to be started")
        assert run.started == ([] if by == "agent" else [order])
    finally:
        run.close()


def test_a_thread_that_cannot_be_started_is_a_failed_join_and_no_end(monkeypatch):
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)

    def refuse(order: messages.StartWorkers) -> None:
        raise RuntimeError("can't start new thread")

    run = Run(pipelines=2, faults=["join @ 1"], start_more=refuse)

    def failed() -> list[events.JoinFailed]:
        told = [effect.event for effect in run.effects if isinstance(effect, Emit)]
        return [event for event in told if isinstance(event, events.JoinFailed)]

    try:
        stays, goes = begin(run)
        goes.connection.close()
        stays.expect(messages.Halt)
        wait_until(failed, "the join to fail")
        assert [(event.worker, event.reason) for event in failed()] == [
            ("1.0", "could not be started: can't start new thread")
        ]
        assert run.coordinator.failure is None
    finally:
        run.close()


def test_a_planner_that_has_no_thread_to_warm_up_in_is_no_reason_not_to_begin(monkeypatch):
    refused = refuse_threads(monkeypatch, "planner warm-up", 1)
    warm_up_beside.__wrapped__(wait=False)
    assert refused == ["planner warm-up"]


def test_workers_that_never_come_end_the_run_by_name():
    made = Run(start_limit_s=0.01)
    try:
        assert failure_of(made) == (
            "workers.start_limit_s=0.01 reached while starting: no answer from worker 0.0"
        )
    finally:
        made.close()


def test_what_cannot_be_carried_out_ends_the_run(monkeypatch):
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)

    def refuse(effect: object) -> None:
        if isinstance(effect, OpenRun):
            raise ConfigError("the disk is full")

    run = Run(perform=refuse)
    try:
        Worker(run).build()
        assert failure_of(run) == "the disk is full"
    finally:
        run.close()


def test_a_port_in_use_is_refused_with_a_cure():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"control\.port={port}.*or 0 for any free one"):
            listen(config_from({"control": {"port": port}}))


def test_a_worker_of_another_machine_is_asked_for_its_clock_and_its_times_are_translated(run):
    """Its clock is an hour ahead; over TCP, with the worker's own answer."""
    worker, ahead_s = Worker(run), 3600.0
    worker.connection.send(replace(hello(), host="10.0.0.2"))
    others = []
    for _ in range(20):
        message = worker.expect(object)
        if isinstance(message, messages.ClockAsk):
            told = clock_told(WorkerId(0, 0), message)
            worker.connection.send(
                replace(told, heard_s=told.heard_s + ahead_s, sent_s=told.sent_s + ahead_s)
            )
        else:
            others.append(message)
            if isinstance(message, messages.Assign):
                worker.connection.send(messages.Ready(worker="0.0"))
        if len(others) == 2:
            break
    assert [type(message) for message in others] == [messages.Assign, messages.Proceed]
    before_s = time.monotonic()
    fired = messages.FaultReport(
        worker="0.0",
        fault_kind="slow",
        fault="slow",
        step=0,
        attempt=0,
        point="F0",
        done=0,
        at_s=before_s + ahead_s,
    )
    worker.connection.send(fired)
    worker.connection.send(FINISHED)
    run.serving.result()
    emitted = [effect.event for effect in run.effects if isinstance(effect, Emit)]
    (event,) = [event for event in emitted if isinstance(event, events.FaultFired)]
    assert before_s - LIMIT_S < event.at_s <= time.monotonic()


def test_an_address_that_is_not_this_machines_is_refused_with_a_cure():
    for host in ("192.0.2.7", "no-such-host.invalid"):
        with pytest.raises(ConfigError, match=rf"network\.listen={host}: cannot listen there .*0"):
            listen(config_from({"network": {"listen": host}}))


@pytest.mark.parametrize(
    ("settings", "host", "told"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"listen": "::1"}, "::1", "[::1]"),
        ({"listen": "0.0.0.0", "advertise": "a.example"}, "127.0.0.1", "a.example"),
        ({"listen": "::", "advertise": "2001:db8::7"}, "::1", "[2001:db8::7]"),
    ],
)
def test_its_own_processes_call_the_port_where_it_is_and_others_what_is_advertised(
    settings, host, told
):
    config = config_from({"network": settings})
    with listen(config) as listener:
        at = whereabouts(config, listener)
        assert (at.host, at.told) == (host, f"{told}:{at.port}")
        socket.create_connection((at.host, at.port), LIMIT_S).close()


def test_a_worker_over_ipv6_is_served_and_no_peer_is_silent_for_ever():
    run = Run(network={"listen": "::1"})
    try:
        Worker(run).build()
        [served] = run.listener.accepted.values()
        for sock in (served, *run.sockets.values()):
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            limit_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit_ms == 1000 * MOST_TIMEOUT_S
    finally:
        run.close()
