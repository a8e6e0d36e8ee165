"""What the transport asks of a TCP socket: exact reads, and settings for large tensors."""

import contextlib
import select
import socket
import struct

BUFFER_BYTES = 4 << 20


def tune_outgoing(connection: socket.socket, silence_limit_s: float) -> None:
    probe_when_idle(connection, silence_limit_s)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Linux counts a receiver that is alive but does not read as silent too: this must be
    # longer than any honest pause, and heartbeats, not this, tell of a dead machine quickly.
    limit_ms = int(silence_limit_s * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)


def tune_incoming(connection: socket.socket, silence_limit_s: float) -> None:
    probe_when_idle(connection, silence_limit_s)
    # Close with a reset. After an orderly end, Linux leaves a sender whose window was full to
    # probe for a minute: its probes are answered as if the receiver were still there.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def probe_when_idle(connection: socket.socket, silence_limit_s: float) -> None:
    probe_s = max(1, int(silence_limit_s / 4))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def read_exactly(connection: socket.socket, into: memoryview) -> int:
    """Fill ``into``. Returns how many bytes came: fewer only if the connection ended."""
    size_bytes = len(into)
    # One call of the kernel for the whole message, in the common case.
    num_read = connection.recv_into(into, size_bytes, socket.MSG_WAITALL)
    while 0 < num_read < size_bytes:
        num_more = connection.recv_into(into[num_read:], size_bytes - num_read, socket.MSG_WAITALL)
        if num_more == 0:
            break
        num_read += num_more
    return num_read


def is_hung_up(connection: socket.socket) -> bool:
    """Whether the other side has closed, or the connection is broken. Does not wait."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def shut(connection: socket.socket) -> None:
    """End all reads and writes of other threads on ``connection``, whose owner will close it."""
    with contextlib.suppress(OSError):  # the other side was first
        connection.shutdown(socket.SHUT_RDWR)
