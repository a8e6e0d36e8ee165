"""Ports of this machine that nobody else gets as long as this process lives."""

import socket

_held: list[socket.socket] = []


def held_port() -> int:
    """Nobody answers there. Whoever reuses addresses, as all servers here do, may listen there.

    A port that is only looked for and given back may be somebody else's a moment later: tests run
    side by side, and thousands of connections of theirs have ports of their own.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    _held.append(sock)
    return int(sock.getsockname()[1])
