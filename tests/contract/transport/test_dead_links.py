"""A link that dies: its sender hears of it and tells, whoever waits for what; one that was only
dropped for another stage goes on."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from helpers.harness.transport_harness import (
    ALICE,
    BOB,
    CAROL,
    LIMIT_S,
    TcpCluster,
    activation,
    state,
    wait_until,
)
from helpers.relay import Meddler
from holdfast.cluster import WorkerId
from holdfast.errors import PeerLost
from holdfast.transport.base import Limits
from holdfast.transport.tcp import sockets
from holdfast.transport.tcp.transport import TcpTransport

SEVEN = torch.tensor(7)
QUICK = Limits(connect_limit_s=0.05, reconnect_limit_s=0.1)


@pytest.fixture
def cluster() -> Iterator[TcpCluster]:
    torch.set_num_threads(1)
    started = TcpCluster()
    yield started
    started.close()


class Told(list[WorkerId]):
    """Peers of which a transport has told that they are not reached."""

    def __init__(self, transport: TcpTransport) -> None:
        super().__init__()
        transport.tell_unreached(self.append)


def try_to_send(sender: TcpTransport, to: WorkerId) -> None:
    """Its link may break before it has taken the message."""
    with suppress(PeerLost):
        sender.send(to, activation(1), SEVEN)


@pytest.fixture
def late(cluster) -> Iterator[tuple[TcpTransport, TcpTransport, Meddler]]:
    """Alice and Bob, who have talked; what Bob answers comes late from now on."""
    alice, bob = cluster.start(ALICE, BOB)
    between = Meddler(cluster.addresses[BOB])
    alice.connect({BOB: between.address})
    alice.send(BOB, activation(0), SEVEN)
    alice.flush(LIMIT_S)
    between.answers_pass.clear()
    yield alice, bob, between
    between.close()


def drop_all_and_begin(bob: TcpTransport, cluster: TcpCluster) -> None:
    """As a worker does that is given another stage, and is a member of the next epoch."""
    bob.disconnect([])
    bob.advance(1)
    bob.connect(cluster.addresses)


@pytest.mark.parametrize("num", [1, 100])
def test_a_goodbye_that_comes_after_the_connect_costs_no_message(cluster, late, num):
    alice, bob, between = late
    told = Told(alice)
    drop_all_and_begin(bob, cluster)
    alice.advance(1)
    alice.connect({BOB: between.address})
    for step in range(num):
        alice.send(BOB, activation(step), torch.tensor(step))
    between.answers_pass.set()
    for step in range(num):
        assert bob.receive(ALICE, activation(step), LIMIT_S) == step
    alice.flush(LIMIT_S)
    assert bob.statistics.unread_bytes == 0, "nothing came twice"
    assert not told


def test_what_was_sent_before_the_epoch_of_a_dropped_session_is_not_sent_again(cluster, late):
    alice, bob, between = late
    alice.send(BOB, activation(1), SEVEN)
    wait_until(lambda: bob.has(ALICE, activation(1)))
    drop_all_and_begin(bob, cluster)
    alice.advance(1)
    alice.connect({BOB: between.address})
    alice.send(BOB, activation(2), SEVEN)
    between.answers_pass.set()
    assert bob.receive(ALICE, activation(2), LIMIT_S) == 7
    assert not bob.has(ALICE, activation(1))
    assert bob.statistics.refused_past_epoch == 0


def test_half_a_copy_of_a_state_is_not_sent_on(cluster, late):
    alice, bob, between = late
    told = Told(alice)
    drop_all_and_begin(bob, cluster)
    alice.advance(1)
    alice.connect({BOB: between.address})
    alice.send(BOB, state(1), SEVEN)
    between.answers_pass.set()
    wait_until(lambda: told == [BOB])
    with pytest.raises(PeerLost):
        alice.send(BOB, state(2), SEVEN)
    assert not bob.has(ALICE, state(1))


def test_whoever_is_dropped_in_its_own_epoch_is_meant(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    told = Told(alice)
    alice.send(BOB, activation(1), SEVEN)
    alice.flush(LIMIT_S)
    bob.disconnect([])
    wait_until(lambda: told == [BOB])
    with pytest.raises(PeerLost, match="it closed the connection"):
        alice.send(BOB, activation(2), SEVEN)


def test_a_sender_that_reaches_nobody_tells_although_it_only_waits(cluster, deaf_address):
    [carol] = cluster.start(CAROL, limits=Limits(reconnect_limit_s=LIMIT_S))
    [alice] = cluster.start(ALICE, limits=QUICK)
    # Here, as often as it takes: this machine may be slower than Alice is patient.
    carol.send(ALICE, activation(0), SEVEN)
    assert alice.receive(CAROL, activation(0), LIMIT_S) == 7
    told = Told(alice)
    alice.connect({BOB: deaf_address})
    try_to_send(alice, BOB)
    wait_until(lambda: told == [BOB])
    carol.send(ALICE, activation(1), SEVEN)
    assert alice.receive(CAROL, activation(1), LIMIT_S) == 7, "its own work is not disturbed"


def test_a_peer_whose_port_is_closed_is_told_of(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    told = Told(alice)
    bob.close()
    try_to_send(alice, BOB)
    wait_until(lambda: told == [BOB])


@pytest.mark.parametrize("how", ["disconnect", "close"])
def test_of_a_link_that_is_given_up_nothing_is_told(cluster, deaf_address, how):
    [alice] = cluster.start(ALICE)
    told = Told(alice)
    alice.connect({BOB: deaf_address})
    alice.send(BOB, activation(1), SEVEN)
    if how == "disconnect":
        alice.disconnect([])
    alice.close()  # joins all threads
    assert not told


def test_both_ends_of_a_link_bear_the_silence_of_the_other_machine_for_the_limit(
    cluster, monkeypatch
):
    borne_s = []
    monkeypatch.setattr(sockets, "bear_silence", lambda _, limit_s: borne_s.append(limit_s))
    alice, bob = cluster.start(ALICE, BOB, limits=Limits(silence_limit_s=77.0))
    alice.send(BOB, activation(1), SEVEN)
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 7
    assert borne_s == [77.0, 77.0]
