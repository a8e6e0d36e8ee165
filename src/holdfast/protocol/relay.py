"""The line from a worker to the agent that has forked it: a pair of sockets, one end each.

Nobody else has an end of it, so whoever speaks on it is known without any proof.
"""

import socket

from holdfast.auth.stamps import Stamps
from holdfast.protocol.connection import Connection

_SEND_LIMIT_S = 0.5  # whoever reads nothing for so long is not spoken to any more
_NO_SECRET = b"one machine"  # stamps belong to every frame; here they guard nothing


def relay_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def relay_end(sock: socket.socket) -> Connection:
    return Connection(sock, Stamps(_NO_SECRET, _NO_SECRET), _SEND_LIMIT_S)
