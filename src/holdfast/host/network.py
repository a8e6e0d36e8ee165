"""Sockets of this machine: listeners, its own addresses, and how long a silent peer is borne."""

import fcntl
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from holdfast.addresses import LOOPBACK, is_wildcard

_SIOCGIFADDR = 0x8915
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = "00"
# For documentation only, so surely not on this network: the way there is the way to all others.
ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def open_listener(host: str, port: int, *, backlog: int, buffer_bytes: int = 0) -> socket.socket:
    """On the first address of ``host`` that can be had. OSError: on none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found[:-1]:
        with suppress(OSError):
            return _listening(socket.socket(family, kind, protocol), address, backlog, buffer_bytes)
    family, kind, protocol, _, address = found[-1]
    return _listening(socket.socket(family, kind, protocol), address, backlog, buffer_bytes)


def _listening(
    listener: socket.socket, address: object, backlog: int, buffer_bytes: int
) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:  # all addresses: those of IPv4 too
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if buffer_bytes:
            # Accepted sockets inherit it, and it must be set before the connection is made.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def bear_silence(connection: socket.socket, limit_s: float) -> None:
    """A peer whose machine acknowledges nothing for so long is gone, whether we send or wait.

    Linux counts a receiver that is alive but does not read as silent too: this must be longer
    than any honest pause, and heartbeats, not this, tell of a dead machine quickly.
    """
    probe_s = max(1, int(limit_s / 4))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1000))


def unreached(addresses: Mapping[str, tuple[str, int]], limit_s: float) -> list[str]:
    """The names of those that take no connection within the limit, all tried at once.

    A packet has to go each way: one that is lost in one direction only shows as well.
    """
    found: set[str] = set()
    with selectors.DefaultSelector() as selector, ExitStack() as opened:
        for name, (host, port) in addresses.items():
            with suppress(OSError):
                family, kind, protocol, _, address = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                )[0]
                tried = opened.enter_context(socket.socket(family, kind, protocol))
                tried.setblocking(False)
                tried.connect_ex(address)
                selector.register(tried, selectors.EVENT_WRITE, name)
        deadline_s = time.monotonic() + limit_s
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            ready = selector.select(max(0.0, left_s))
            if not ready and left_s <= 0:  # who has answered while we were not on is reached
                break
            for key, _ in ready:
                selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.add(key.data)
    return sorted(addresses.keys() - found)


def told_host(bound: str, advertise: str) -> str:
    """What others are told to call, who are not known yet."""
    if advertise or not is_wildcard(bound):
        return advertise or bound
    return own_address(prefer_ipv6=":" in bound)


def own_address(*, prefer_ipv6: bool = False) -> str:
    """Of the card that leads to other machines; loopback if there is none."""
    families = [socket.AF_INET6, socket.AF_INET] if prefer_ipv6 else [socket.AF_INET]
    for family in families:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((ELSEWHERE[family], 9))  # sends nothing
            return str(probe.getsockname()[0])
    for family in families:
        for address in _addresses(family):
            return address
    return LOOPBACK


def _addresses(family: socket.AddressFamily) -> Iterator[str]:
    """Of this machine's cards in their order, without loopback."""
    if family == socket.AF_INET6:
        with suppress(FileNotFoundError):  # a kernel without IPv6
            for line in _IPV6_ADDRESSES.read_text().splitlines():
                digits, _, _, scope, _, card = line.split()
                if scope == _GLOBAL_SCOPE and card != "lo":
                    yield socket.inet_ntop(family, bytes.fromhex(digits))
        return
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        for _, card in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", card.encode()))
                if card != "lo":
                    yield socket.inet_ntop(family, answer[20:24])
