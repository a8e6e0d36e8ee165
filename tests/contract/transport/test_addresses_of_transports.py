"""Tensors over IPv6, over names and over all addresses of a machine."""

import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from time import monotonic

import pytest
import torch

from helpers.harness.transport_harness import ALICE, BOB, LIMIT_S, SECRET, activation
from holdfast.addresses import is_wildcard
from holdfast.errors import PeerLost
from holdfast.transport.base import Limits
from holdfast.transport.tcp import dialing
from holdfast.transport.tcp.transport import TcpTransport

LIMITS = Limits(reconnect_limit_s=LIMIT_S)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    torch.set_num_threads(1)
    with ExitStack() as stack:
        yield stack


def pair(opened: ExitStack, host: str, advertise: str = "") -> tuple[TcpTransport, TcpTransport]:
    """Alice knows where Bob is."""
    made = [
        TcpTransport(me, SECRET, host, advertise_host=advertise, limits=LIMITS)
        for me in (ALICE, BOB)
    ]
    addresses = {one.me: opened.enter_context(closing(one)).listen() for one in made}
    for one in made:
        one.connect({peer: at for peer, at in addresses.items() if peer != one.me})
    return made[0], made[1]


def send_one(alice: TcpTransport, bob: TcpTransport) -> None:
    alice.send(BOB, activation(1), torch.tensor(5))
    assert bob.receive(ALICE, activation(1), LIMIT_S) == 5


@pytest.mark.parametrize("host", ["::1", "localhost", "127.0.0.1", "0.0.0.0", "::"])
def test_tensors_reach_whoever_listens_there(opened, host):
    send_one(*pair(opened, host))


def test_others_are_told_what_is_advertised_and_never_a_wildcard(opened):
    transport = opened.enter_context(closing(TcpTransport(ALICE, SECRET, "::")))
    assert not is_wildcard(transport.listen()[0])
    send_one(*pair(opened, "::", advertise="localhost"))
    named = TcpTransport(BOB, SECRET, advertise_host="a.example")
    assert opened.enter_context(closing(named)).listen()[0] == "a.example"


def send_until_lost(alice: TcpTransport) -> None:
    for step in itertools.count():
        alice.send(BOB, activation(step), torch.tensor(5))
        alice.flush(LIMIT_S)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    def found(name, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in hosts]

    monkeypatch.setattr(dialing.socket, "getaddrinfo", found)


def test_of_a_name_with_several_addresses_the_one_that_answers_is_used(opened, monkeypatch):
    alice, bob = pair(opened, "127.0.0.1")
    resolve_to(monkeypatch, "127.0.0.7", "127.0.0.1")
    send_one(alice, bob)


def test_a_peer_that_refuses_at_all_its_addresses_is_lost_at_once(opened, monkeypatch):
    alice, _ = pair(opened, "127.0.0.1")
    resolve_to(monkeypatch, "127.0.0.7", "127.0.0.8")
    start_s = monotonic()
    with pytest.raises(PeerLost, match="Connection refused"):
        send_until_lost(alice)
    assert monotonic() - start_s < LIMITS.reconnect_limit_s  # else it has tried for as long
