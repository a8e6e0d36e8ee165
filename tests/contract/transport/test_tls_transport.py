"""Tensors that nobody on the way can read; who is there is said by the secret alone."""

import socket
import sys
from collections.abc import Iterator

import pytest
import torch

from helpers.certificates import tls_key
from helpers.harness.transport_harness import (
    ALICE,
    BOB,
    CAROL,
    LIMIT_S,
    SECRET,
    Background,
    Caller,
    TlsCluster,
    activation,
    running,
    wait_until,
    worker,
)
from holdfast.auth import handshake
from holdfast.auth.tls import calling, greet
from holdfast.errors import ConfigError, HandshakeFailed, PeerLost
from holdfast.transport.base import Limits
from holdfast.transport.tcp.transport import TcpTransport


@pytest.fixture
def cluster() -> Iterator[TlsCluster]:
    with running(TlsCluster) as started:
        yield started


def test_small_and_large_tensors_arrive_both_ways_at_once(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    sizes = [0, 1, 4095, 4096, 1 << 14, (1 << 20) + 3, 1 << 22]
    given = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes]

    def send(sender: TcpTransport, to: object) -> None:
        for step, tensor in enumerate(given):
            sender.send(to, activation(step), tensor)
        sender.flush(LIMIT_S)

    sending = [Background(send, alice, BOB), Background(send, bob, ALICE)]
    for step, tensor in enumerate(given):
        assert bob.receive(ALICE, activation(step), LIMIT_S).equal(tensor)
        assert alice.receive(BOB, activation(step), LIMIT_S).equal(tensor)
    for one in sending:
        one.result()
    assert (alice.statistics.reconnections, bob.statistics.reconnections) == (0, 0)


def test_a_connection_that_breaks_is_made_anew_and_nothing_is_lost(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    block = torch.arange(1 << 18)
    for step in range(6):
        alice.send(BOB, activation(step), block + step)
        if step % 2:
            wait_until(lambda: cluster.cut() >= 1)
    for step in range(6):
        assert bob.receive(ALICE, activation(step), LIMIT_S).equal(block + step)


def test_a_transport_that_is_closed_in_the_middle_of_a_handshake_ends(cluster):
    """Whoever was called says nothing."""
    [alice] = cluster.start(ALICE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alice.connect({BOB: silent.getsockname()})
        alice.send(BOB, activation(0), torch.ones(1))
        called, _ = silent.accept()
        called.settimeout(LIMIT_S)
        assert called.recv(1) == b"\x16"
        alice.close()
        called.close()


@pytest.mark.parametrize("secret", [SECRET, bytes(32)], ids=["its-own", "another"])
def test_the_secret_counts_and_not_the_certificate(cluster, secret):
    [bob] = cluster.start(BOB)
    with socket.create_connection(cluster.addresses[BOB], LIMIT_S) as sock:
        tls = calling(sock)
        binding = greet(tls, "", LIMIT_S)
        if secret == SECRET:
            found, _ = handshake.call(tls, secret, worker(ALICE), "worker", LIMIT_S, binding)
            assert found == worker(BOB)
        else:
            with pytest.raises(HandshakeFailed, match="does not know the secret"):
                handshake.call(tls, secret, worker(ALICE), "worker", LIMIT_S, binding)
            wait_until(lambda: bob.statistics.refused_connections == 1)
        tls.close()


def test_a_worker_without_tls_is_refused_and_the_others_go_on(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    with Caller(cluster.addresses[BOB]) as plain:
        plain.say(handshake.Caller(SECRET, worker(CAROL), "worker").hello)
        assert plain.is_hung_up()
    wait_until(lambda: bob.statistics.refused_connections == 1)
    alice.send(BOB, activation(0), torch.ones(3))
    assert bob.receive(ALICE, activation(0), LIMIT_S).equal(torch.ones(3))


def test_a_peer_without_tls_is_lost_and_gets_no_tensor(cluster):
    plain = TcpTransport(BOB, SECRET)
    [alice] = cluster.start(ALICE, limits=Limits(reconnect_limit_s=0.2))
    alice.connect({BOB: plain.listen()})

    def send_until_lost() -> None:
        while True:
            alice.send(BOB, activation(2), torch.ones(1))
            alice.flush(LIMIT_S)

    with pytest.raises(PeerLost):
        send_until_lost()
    assert plain.statistics.received_messages == 0
    plain.close()


def test_what_is_missing_is_said_when_it_listens(monkeypatch):
    tls_key()
    monkeypatch.setitem(sys.modules, "cryptography", None)
    transport = TcpTransport(ALICE, SECRET, encrypts=True)
    with pytest.raises(ConfigError, match=r"network.tensor_tls=true: TLS needs the package"):
        transport.listen()
    transport.close()
