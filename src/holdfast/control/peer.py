"""Whose process is at the other end of a loopback connection, as the kernel says. Linux only."""

import socket
import struct
from pathlib import Path

_TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _UID = 1, 2, 7  # columns


def user_of_peer(sock: socket.socket, table: Path = _TABLE) -> int | None:
    """User id; None if it cannot be found out."""
    try:
        here, there = sock.getsockname(), sock.getpeername()
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return None
    # The other end has its own line in the table, with the two addresses the other way round.
    wanted = [_as_in_table(there), _as_in_table(here)]
    for line in lines:
        columns = line.split()
        if [columns[_LOCAL], columns[_REMOTE]] == wanted:
            return int(columns[_UID])
    return None


def _as_in_table(address: tuple[str, int]) -> str:
    """``0100007F:1F90``: the host in the machine's own byte order."""
    host, port = address
    (number,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{number:08X}:{port:04X}"
