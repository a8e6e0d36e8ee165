"""Listeners, a machine's own addresses, and limits for peers that are silent."""

import socket
from contextlib import ExitStack
from itertools import count
from types import SimpleNamespace

import pytest

from holdfast.addresses import is_loopback, is_wildcard
from holdfast.host import network
from holdfast.host.network import bear_silence, open_listener, own_address, told_host


def bound_to(host: str) -> str:
    with open_listener(host, 0, backlog=1) as listener:
        return str(listener.getsockname()[0])


@pytest.mark.parametrize(
    ("host", "bound"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("0.0.0.0", "0.0.0.0"), ("::", "::")],
)
def test_a_listener_is_bound_where_it_was_told(host, bound):
    assert bound_to(host) == bound


def test_a_name_is_resolved_and_its_next_address_tried(monkeypatch):
    assert is_loopback(bound_to("localhost"))
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 0))
        for host in ("192.0.2.7", "127.0.0.1")
    ]
    monkeypatch.setattr(network.socket, "getaddrinfo", lambda *_, **__: found)
    assert bound_to("two.example") == "127.0.0.1"
    found.pop()
    with pytest.raises(OSError, match="Cannot assign"):
        bound_to("two.example")


@pytest.mark.parametrize("called", ["127.0.0.1", "::1"])
def test_all_addresses_are_those_of_ipv4_too(called):
    with open_listener("::", 0, backlog=1) as listener:
        socket.create_connection((called, listener.getsockname()[1]), 5).close()


def test_what_others_are_told_is_an_address_they_can_call():
    assert told_host("127.0.0.1", "") == "127.0.0.1"
    assert told_host("127.0.0.1", "a.example") == "a.example"
    assert told_host("::", "a.example") == "a.example"
    for wildcard in ("0.0.0.0", "::"):
        told = told_host(wildcard, "")
        assert not is_wildcard(told)
        with open_listener(told, 0, backlog=1):
            pass  # it is this machine's own


def test_without_another_network_it_is_loopback(monkeypatch):
    monkeypatch.setattr(network, "ELSEWHERE", dict.fromkeys(network.ELSEWHERE, "255.255.255.255"))
    monkeypatch.setattr(network.socket, "if_nameindex", lambda: [(1, "lo")])
    assert own_address() == "127.0.0.1"


def test_a_silent_peer_is_borne_for_the_limit_whether_it_is_sent_to_or_waited_for():
    with socket.socket() as connection:
        bear_silence(connection, 60.0)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        values = [
            connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names
        ]
    assert values == [15, 15, 3, 60_000]


def test_who_does_not_answer_in_time_is_not_reached(monkeypatch) -> None:
    """A listener whose queue is full takes no call: as if its machine said nothing."""
    with ExitStack() as stack:
        here = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        addresses = {"here": here.getsockname(), "silent": full.getsockname()}
        assert network.unreached(addresses, 0.3) == ["silent"]
        assert network.unreached({}, 0.3) == []
        passed_s = count(0.0, 60.0)  # this process was not on
        monkeypatch.setattr(network, "time", SimpleNamespace(monotonic=passed_s.__next__))
        assert network.unreached(addresses, 0.3) == ["silent"]
