"""Who may connect to the port for tensors, and what those who may not can do: nothing."""

import os
import resource
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from helpers.harness.transport_harness import (
    ALICE,
    BOB,
    CAROL,
    LIMIT_S,
    SECRET,
    Caller,
    TcpCluster,
    activation,
    frame,
    wait_until,
    worker,
)
from holdfast.auth import handshake
from holdfast.errors import HandshakeFailed, PeerLost
from holdfast.transport.base import Limits
from holdfast.transport.tcp import transport
from holdfast.transport.tcp.gate import MOST_WAITING, Visitor
from holdfast.transport.tcp.greeting import SessionHello, encode_hello
from holdfast.transport.tcp.incoming import Incoming
from holdfast.transport.tcp.transport import TcpTransport

OTHER_SECRET = bytes(32)


@pytest.fixture
def cluster() -> Iterator[TcpCluster]:
    torch.set_num_threads(1)
    started = TcpCluster()
    yield started
    started.close()


def check_works(alice: TcpTransport, bob: TcpTransport, step: int) -> None:
    alice.send(BOB, activation(step), torch.tensor(step))
    assert bob.receive(ALICE, activation(step), LIMIT_S) == step


# --- who is at the other end ---


def test_s5_who_does_not_know_the_secret_is_turned_away(cluster):
    [bob] = cluster.start(BOB)
    with Caller(cluster.addresses[BOB]) as stranger, pytest.raises(HandshakeFailed):
        handshake.call(stranger.socket, OTHER_SECRET, worker(ALICE), "worker", LIMIT_S)
    wait_until(lambda: bob.statistics.refused_connections == 1)


def test_s5_what_was_recorded_proves_nothing_the_next_time(cluster):
    [bob] = cluster.start(BOB)
    side = handshake.Caller(SECRET, worker(ALICE), "worker")
    with Caller(cluster.addresses[BOB]) as first:
        first.say(side.hello)
        proof = side.feed(first.socket.recv(side.wanted, socket.MSG_WAITALL))
        first.stamps = side.stamps
        first.say(proof).hello()
        assert first.answer() == 0
    with Caller(cluster.addresses[BOB]) as again:
        again.say(side.hello + proof + side.stamps.stamped(encode_hello(SessionHello(1, 0, False))))
        assert again.is_hung_up()
    wait_until(lambda: bob.statistics.refused_connections == 1)


@pytest.mark.parametrize("role", [handshake.AGENT, handshake.COORDINATOR, handshake.JOINER])
def test_s5_only_workers_send_tensors(cluster, role):
    cluster.start(BOB)
    with Caller(cluster.addresses[BOB]) as caller:
        caller.introduce_as(handshake.Identity(role)).hello()
        assert caller.is_hung_up()


def test_s5_a_worker_of_another_launch_of_the_run_is_turned_away(cluster):
    cluster.start(BOB)
    for generation, is_refused in ((0, False), (7, True)):  # the cluster's own, and another
        with Caller(cluster.addresses[BOB]) as caller:
            me = handshake.Identity(handshake.WORKER_ROLE, str(CAROL), generation)
            caller.introduce_as(me).hello()
            assert caller.is_hung_up() if is_refused else caller.answer() == 0


@pytest.mark.parametrize("who", ["another worker", "a stranger"])
def test_s5_nothing_is_sent_to_whoever_has_taken_the_address_of_a_peer(cluster, who):
    """The one who calls is careful too."""
    limits = Limits(reconnect_limit_s=0.2)
    [alice] = cluster.start(ALICE, limits=limits)
    secret = SECRET if who == "another worker" else OTHER_SECRET
    impostor = TcpTransport(CAROL, secret)
    alice.connect({BOB: impostor.listen()})

    def send_until_lost() -> None:
        while True:
            alice.send(BOB, activation(2), torch.ones(1))
            alice.flush(LIMIT_S)

    with pytest.raises(PeerLost, match="should be" if who == "another worker" else "secret|closed"):
        send_until_lost()
    assert impostor.statistics.received_messages == 0
    impostor.close()


def test_a_connection_speaks_only_for_the_name_that_it_proved(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    check_works(alice, bob, 0)
    with Caller(cluster.addresses[BOB]).introduce(CAROL).hello() as carol:
        carol.answer()
        carol.say(frame(activation(1), torch.ones(1)))
        assert bob.receive(CAROL, activation(1), LIMIT_S) == 1
    check_works(alice, bob, 1)
    assert alice.statistics.reconnections == 0


# --- floods and slow talkers ---


def test_s4_a_slow_talker_gains_nothing_by_a_byte_now_and_then(cluster):
    """The limit is one for the whole handshake."""
    limits = Limits(connect_limit_s=0.3, reconnect_limit_s=LIMIT_S)
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    hello = handshake.Caller(SECRET, worker(ALICE), "worker").hello
    with Caller(cluster.addresses[BOB]) as slow:
        slow.socket.settimeout(0.25)
        for byte in hello:
            slow.say(bytes([byte]))
            try:
                if slow.socket.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
        else:
            pytest.fail("it was listened to for longer than the limit")
    check_works(alice, bob, 1)


def is_open(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_s4_strangers_cost_no_threads_and_push_nobody_out(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    check_works(alice, bob, 0)
    threads = threading.active_count()
    strangers = [socket.create_connection(cluster.addresses[BOB]) for _ in range(300)]
    try:
        wait_until(lambda: bob.statistics.refused_connections >= 300 - MOST_WAITING)
        assert threading.active_count() <= threads
        wait_until(lambda: sum(map(is_open, strangers)) <= MOST_WAITING)
        check_works(alice, bob, 1)
        cluster.cut()  # and one that has to come in again finds the way
        check_works(alice, bob, 2)
        assert alice.statistics.reconnections >= 1
        carol = cluster.start(CAROL)[0]
        carol.send(BOB, activation(3), torch.tensor(3))
        assert bob.receive(CAROL, activation(3), LIMIT_S) == 3
    finally:
        for stranger in strangers:
            stranger.close()


def test_s4_who_has_proven_itself_is_not_pushed_out_by_who_has_not(cluster, monkeypatch):
    visitors = []

    def noted(*given: Any) -> Visitor:
        visitors.append(Visitor(*given))
        return visitors[-1]

    monkeypatch.setattr(transport, "Visitor", noted)
    [bob] = cluster.start(BOB, limits=Limits(connect_limit_s=2 * LIMIT_S))
    with Caller(cluster.addresses[BOB]).introduce(ALICE) as alice:
        wait_until(lambda: [visitor.rank for visitor in visitors] == [2])
        strangers = [socket.create_connection(cluster.addresses[BOB]) for _ in range(200)]
        wait_until(lambda: bob.statistics.refused_connections >= 50)
        assert alice.hello().answer() == 0
        for stranger in strangers:
            stranger.close()


def test_s4_out_of_descriptors_the_gate_waits_and_goes_on(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=Limits(connect_limit_s=2 * LIMIT_S))
    check_works(alice, bob, 0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    strangers = [socket.socket() for _ in range(20)]
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] < highest:  # the limit is one of numbers: no hole may be left below it
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(highest, fillers[-1]) + 3, before[1]))
        for stranger in strangers:
            stranger.connect(cluster.addresses[BOB])
        # They are few, and have time: one has to go only where no descriptor is left.
        wait_until(lambda: bob.statistics.refused_connections > 0)
        check_works(alice, bob, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for filler in fillers:
            os.close(filler)
        for stranger in strangers:
            stranger.close()
    cluster.cut()
    check_works(alice, bob, 2)


def test_s4_without_a_thread_to_spare_a_member_calls_again(cluster, monkeypatch):
    """The interpreter says so by a RuntimeError, which is no OSError."""
    alice, bob = cluster.start(ALICE, BOB)
    refused = []
    start = Incoming.start

    def no_thread(incoming: Incoming) -> None:
        if len(refused) < 3:
            refused.append(incoming)
            raise RuntimeError("can't start new thread")
        start(incoming)

    monkeypatch.setattr(Incoming, "start", no_thread)
    check_works(alice, bob, 1)
    assert len(refused) == 3
    assert bob.statistics.refused_connections == 3


def test_a_visitor_is_done_when_it_has_said_its_hello():
    side = handshake.Caller(SECRET, worker(ALICE), "worker")
    visitor = Visitor(SECRET, worker(BOB))
    assert visitor.rank == 0
    answer = visitor.feed(side.hello)
    assert visitor.rank == 1
    visitor.feed(side.feed(answer))
    assert visitor.rank == 2
    data = side.stamps.stamped(encode_hello(SessionHello(5, 3, True)))
    assert visitor.wanted == len(data)
    visitor.feed(data)
    assert visitor.wanted == 0
    assert visitor.admitted()[:2] == (ALICE, SessionHello(5, 3, True))
