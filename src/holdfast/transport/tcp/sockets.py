"""What the transport asks of a TCP socket: exact reads, and settings for large tensors."""

import contextlib
import socket
import struct
from time import monotonic

from holdfast.host.network import bear_silence

BUFFER_BYTES = 4 << 20
LOOK_S = 1.0  # from one look at what was acknowledged to the next
_LOOK_EVERY = struct.pack("ll", int(LOOK_S), 0)
_INFO_BYTES, _RETRANSMITS, _PROBES = 8, 2, 3  # of struct tcp_info


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


def shut(connection: socket.socket) -> None:
    """End all reads and writes of other threads on ``connection``, whose owner will close it."""
    with contextlib.suppress(OSError):  # the other side was first
        connection.shutdown(socket.SHUT_RDWR)


class Acknowledgements:
    """Whether the machine at the other end still answers for what it is sent.

    Its kernel does, also for a process that does not read for a while. Without an answer a link
    that was cut, in one direction or both, would look like a peer that takes its time.
    """

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        self._connection, self._limit_s = connection, limit_s
        self._missing_s: float | None = None  # since when
        if type(connection) is socket.socket:  # a blocked send returns now and then
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _LOOK_EVERY)

    def look(self) -> None:
        """ConnectionError: nothing was acknowledged for too long."""
        now_s = monotonic()
        info = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        num_again = info[_RETRANSMITS] + info[_PROBES]  # in a row, without an answer
        self._missing_s = (self._missing_s or now_s) if num_again else None
        if self._missing_s is not None and now_s - self._missing_s > self._limit_s:
            raise ConnectionError(f"nothing was acknowledged for {self._limit_s:g} s")
