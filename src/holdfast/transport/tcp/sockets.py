"""What the transport asks of a TCP socket: exact reads, and settings for large tensors."""

import contextlib
import select
import socket
import struct

from holdfast.host.network import bear_silence

BUFFER_BYTES = 4 << 20


def tune_outgoing(connection: socket.socket, silence_limit_s: float) -> None:
    bear_silence(connection, silence_limit_s)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def tune_incoming(connection: socket.socket, silence_limit_s: float) -> None:
    bear_silence(connection, silence_limit_s)  # confirmations are sent, too
    # Close with a reset. After an orderly end, Linux leaves a sender whose window was full to
    # probe for a minute: its probes are answered as if the receiver were still there.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


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
