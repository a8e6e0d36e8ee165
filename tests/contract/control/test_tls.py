"""A port that speaks TLS: who gets in, who does not, and what it costs to try."""

import contextlib
import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from test_server import GENERATION, ORDER, SECRET, Run, Worker, ahead, assert_finished

from helpers.agents import agent_hello
from helpers.certificates import LIMIT_S, tls_key
from helpers.harness.transport_harness import Background
from helpers.live import wait_until
from holdfast.auth.handshake import AGENT, COORDINATOR, Caller, Identity, answer, call
from holdfast.auth.tls import TlsListener, TlsServer, calling, greet
from holdfast.config import RunConfig
from holdfast.control.io.entry.listening import listen
from holdfast.control.io.entry.strangers import Strangers
from holdfast.errors import HandshakeBroken, HandshakeFailed
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.spec import Access

ME, RUN = Identity(AGENT, "", GENERATION), Identity(COORDINATOR, "", GENERATION)
__all__ = ["ahead"]  # a fixture


class TlsRun(Run):
    """As processes of a run do it: whoever is pushed out calls again."""

    def __init__(self) -> None:
        super().__init__(key=tls_key())

    def connection(self, role, name="", generation=GENERATION):
        access = replace(self.access, generation=generation)
        self.opened.append(connect(access, role, name, LIMIT_S)[0])
        return self.opened[-1]


@pytest.fixture
def run(monkeypatch) -> Iterator[TlsRun]:
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    # who counts them sets them to 0
    monkeypatch.setattr("holdfast.control.io.entry.strangers.COUNT_S", 1e9)
    made = TlsRun()
    yield made
    made.close()


@pytest.fixture
def plain(monkeypatch) -> Iterator[Run]:
    monkeypatch.setattr("holdfast.control.io.server.STOP_LIMIT_S", 0.5)
    made = Run()
    yield made
    made.close()


def refused(run: Run, number: int = 1) -> None:
    wait_until(lambda: run.server.strangers.num_refused >= number, "a refusal", LIMIT_S)


def assert_still_serves(run: Run) -> None:
    agent = run.connection(AGENT)
    agent.send(agent_hello(1))
    assert agent.read_within(LIMIT_S) == [ORDER]
    worker = Worker(run)
    worker.begin()
    worker.finish()
    assert_finished(run)
    agent.close()


def test_a_run_is_served_over_tls_from_its_start_to_its_end(run):
    assert run.access.certificate == tls_key().fingerprint
    assert_still_serves(run)
    assert run.server.strangers.num_refused == 0


# --- who is called has the wrong certificate, or none ---


def test_another_certificate_than_expected_is_not_talked_to(run):
    access = replace(run.access, certificate=tls_key(1).fingerprint)
    with pytest.raises(HandshakeFailed, match="another certificate is shown there") as failed:
        connect(access, AGENT, "", LIMIT_S)
    assert not isinstance(failed.value, HandshakeBroken)  # it is not called again
    assert tls_key().fingerprint[:16] in str(failed.value)
    refused(run)


@contextlib.contextmanager
def relay_to(address: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Somebody in between with a certificate of its own, who passes on all that is said."""
    tls = TlsServer(tls_key(1))
    ended = threading.Event()

    def pass_on(source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not ended.is_set():
                with contextlib.suppress(BlockingIOError):
                    data = source.recv(1 << 14)
                    if not data:
                        break
                    to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)

    def serve(listener: socket.socket) -> None:
        caller = tls.secured(listener.accept()[0])
        caller.settimeout(LIMIT_S)
        while not caller.shake():
            caller.wait(LIMIT_S)
        onwards = calling(socket.create_connection(address, LIMIT_S))
        greet(onwards, "", LIMIT_S)
        for end in (caller, onwards):
            end.settimeout(LIMIT_S)
        both = [Background(pass_on, caller, onwards), Background(pass_on, onwards, caller)]
        for one in both:
            one.result()
        caller.close()
        onwards.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = Background(serve, listener)
        yield listener.getsockname()
        ended.set()
        serving.result()


def test_a_relay_with_another_certificate_is_seen_also_by_who_expects_none(run):
    """Both proofs are there, but they are bound to two certificates."""
    with relay_to(run.address) as between:
        sock = calling(socket.create_connection(between, LIMIT_S))
        binding = greet(sock, "", LIMIT_S)
        assert binding == tls_key(1).binding
        with pytest.raises(HandshakeFailed, match="does not know the secret of this run"):
            call(sock, SECRET, ME, COORDINATOR, LIMIT_S, binding)
        sock.close()
    refused(run)


def test_a_proof_that_is_bound_to_nothing_is_none_inside_of_tls(run):
    """Nobody talks TLS away: not who calls, not who answers."""
    sock = calling(socket.create_connection(run.address, LIMIT_S))
    greet(sock, run.access.certificate, LIMIT_S)
    with pytest.raises(HandshakeFailed, match="does not know the secret of this run"):
        call(sock, SECRET, ME, COORDINATOR, LIMIT_S)
    sock.close()
    refused(run)


def test_whoever_has_the_certificate_and_not_the_secret_is_refused(run):
    access = replace(run.access, secret=bytes(32))
    with pytest.raises(HandshakeFailed, match="does not know the secret of this run"):
        connect(access, AGENT, "", LIMIT_S)
    refused(run)


# --- one side speaks TLS, the other does not ---


def test_who_calls_a_tls_port_without_tls_is_told_what_to_do(run):
    with pytest.raises(HandshakeFailed, match="TLS is spoken there; give the fingerprint") as why:
        connect(replace(run.access, certificate=""), AGENT, "", LIMIT_S)
    assert not isinstance(why.value, HandshakeBroken)
    refused(run)
    assert_still_serves(run)


def test_who_calls_a_plain_port_with_tls_is_told_what_to_do(plain):
    access = replace(plain.access, certificate=tls_key().fingerprint)
    with pytest.raises(HandshakeFailed, match="if the run there is without TLS, leave out") as why:
        connect(access, AGENT, "", LIMIT_S)
    assert not isinstance(why.value, HandshakeBroken)
    refused(plain)
    assert_still_serves(plain)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0",
        b"\x16",
        b"\x16\x03\x01\xff\xff" + b"\xff" * 40,
        b"\x80" * 99,
    ],
    ids=["http", "zero", "one-byte", "no-hello", "old-ssl"],
)
def test_garbage_is_refused_and_counted(run, data):
    stranger = run.knock(data)
    with contextlib.suppress(OSError):  # it is refused already
        stranger.shutdown(socket.SHUT_WR)
    refused(run)
    assert_still_serves(run)


def test_who_resets_the_connection_before_tls_begins_ends_nothing():
    """Python reads from such a socket while it is made: that was the end of the whole loop."""
    with TlsListener.of(socket.create_server(("127.0.0.1", 0)), tls_key()) as listener:
        selector = selectors.DefaultSelector()
        me = Identity(COORDINATOR, "", 1)
        strangers = Strangers(selector, listener, bytes(32), me, 10)
        strangers.open()
        caller = socket.create_connection(listener.getsockname())
        caller.send(b"\x16\x03\x01")
        knocks = selector.select(LIMIT_S)
        assert [key.fileobj for key, _ in knocks] == [listener]
        strangers.accept()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()
        [(key, _)] = selector.select(LIMIT_S)
        assert strangers.read(key.fileobj) is None
        assert (len(strangers), strangers.num_refused) == (0, 1)
        strangers.close()
        selector.close()


def test_tls_1_2_is_refused(run):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(run.address, LIMIT_S) as sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock)
    refused(run)


# --- what it costs ---


def tls_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def test_a_slow_handshake_is_given_up(run, monkeypatch, ahead):
    monkeypatch.setattr("holdfast.control.io.entry.strangers.HANDSHAKE_LIMIT_S", LIMIT_S)
    silent, half = run.knock(), run.knock(tls_hello())
    proven = calling(socket.create_connection(run.address, LIMIT_S))
    greet(proven, run.access.certificate, LIMIT_S)  # and then nothing
    assert run.server.strangers.num_refused == 0
    ahead.by_s += LIMIT_S
    refused(run, 3)
    assert silent.recv(1) == b""
    while half.recv(1 << 14):  # the server's hello
        pass
    proven.close()


def test_a_slow_handshake_holds_up_nobody(run):
    """Its bytes come one at a time, while others get in."""
    hello = tls_hello()
    slow = [run.knock(hello[:size]) for size in (1, 4, 6, len(hello) - 1, len(hello))]
    assert_still_serves(run)
    for sock in slow:
        sock.close()


def test_an_agent_and_a_worker_get_in_during_a_flood_of_half_open_handshakes(run):
    over, hello = threading.Event(), tls_hello()

    def pour() -> None:
        kept: list[socket.socket] = []
        while not over.is_set():
            kept.append(socket.create_connection(run.address, LIMIT_S))
            with contextlib.suppress(OSError):
                kept[-1].sendall(hello)
            if len(kept) > 100:
                kept.pop(0).close()
        for sock in kept:
            sock.close()

    pouring = [Background(pour) for _ in range(2)]
    try:
        refused(run, 100)
        assert len(run.server.strangers) <= 65
        agent = run.connection(AGENT)
        agent.send(agent_hello(1))
        assert agent.read_within(LIMIT_S) == [ORDER]
        worker = Worker(run)
        worker.begin()
    finally:
        over.set()
        for one in pouring:
            one.result()
    worker.finish()
    assert_finished(run)


def test_who_is_pushed_out_during_tls_calls_again_until_it_gets_in():
    tls = TlsServer(tls_key())
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> Identity:
            for _ in range(3):
                listener.accept()[0].close()
            with tls.secured(listener.accept()[0]) as sock:
                sock.settimeout(LIMIT_S)
                while not sock.shake():
                    sock.wait(LIMIT_S)
                return answer(sock, SECRET, RUN, LIMIT_S, tls_key().binding)[0]

        serving = Background(serve)
        access = Access(*listener.getsockname(), SECRET, GENERATION, tls_key().fingerprint)
        connection, _ = connect(access, AGENT, "", LIMIT_S)
        assert serving.result() == ME
        connection.close()


def test_what_follows_a_proof_at_once_is_heard(run):
    """Proof and first word come together: what the server has read of one is not lost of both."""
    sock = calling(socket.create_connection(run.address, LIMIT_S))
    binding = greet(sock, run.access.certificate, LIMIT_S)
    side = Caller(SECRET, ME, COORDINATOR, binding)
    sock.sendall(side.hello)
    sock.settimeout(LIMIT_S)
    proof = b""
    while side.wanted:
        with contextlib.suppress(BlockingIOError):
            proof = side.feed(sock.recv(side.wanted))
    with run.server_busy():
        sock.sendall(proof)
        agent = Connection(sock, side.stamps)
        agent.send(agent_hello(1))
    assert agent.read_within(LIMIT_S) == [ORDER]
    agent.close()


def test_a_port_of_a_run_without_a_key_is_plain():
    with listen(RunConfig()) as listener:
        assert type(listener) is socket.socket
