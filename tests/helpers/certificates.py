"""Keys for tests, and both ends of a connection that speaks TLS."""

import socket
from functools import cache

import pytest

from holdfast.auth.certificate import TlsKey, new_key
from holdfast.auth.tls import TlsServer, calling, greet
from holdfast.auth.tls_socket import TlsSocket

LIMIT_S = 60.0


@cache
def tls_key(number: int = 0) -> TlsKey:
    """Always the same for a number."""
    pytest.importorskip("cryptography")  # pip install 'holdfast[tls]'
    return new_key(f"test {number}")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), timeout=LIMIT_S)
        return one, listener.accept()[0]


def secured_by(server: TlsServer, sock: socket.socket) -> TlsSocket:
    """As who was called does it, in a thread that may wait."""
    made = server.secured(sock)
    made.settimeout(LIMIT_S)
    while not made.shake():
        made.wait(LIMIT_S)
    return made


def tls_pair() -> tuple[TlsSocket, TlsSocket]:
    """Who has called, and who was called; their handshake is over, and they wait as usual."""
    caller, called = tcp_pair()
    answering = TlsServer(tls_key()).secured(called)
    answering.settimeout(0.0)
    making = calling(caller)
    assert not making.shake()
    while not answering.shake():
        if making.shake():
            continue
    assert greet(making, tls_key().fingerprint, LIMIT_S) == tls_key().binding
    for end in (making, answering):
        end.settimeout(LIMIT_S)
    return making, answering
