"""Ports for programs that must be told one."""

import socket


def reserved_port() -> tuple[socket.socket, int]:
    """Nobody else is given it until the socket is closed; a server may bind it all the same.

    Bound, not listening: whoever calls is refused, and a server that sets SO_REUSEADDR, as nearly
    all do, can have it. A port that is closed again may be anybody's a moment later.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder, holder.getsockname()[1]
