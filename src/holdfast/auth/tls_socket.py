"""A socket that speaks TLS 1.3, used by several threads at once as a plain one is.

OpenSSL does not allow two threads in one TLS connection. So all that touches it goes under a lock
and never waits there: the kernel's socket does not block, and whoever has to wait does so outside,
for the descriptor.
"""

import errno
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_RECORD_BYTES = 1 << 14
_PIECE_BYTES = 1 << 18  # encrypted while nobody else has a turn
_VERSION = "TLSv1.3"


class TlsSocket(ssl.SSLSocket):
    """Made by :func:`secured`. Timeouts are those of a plain socket; of flags, MSG_DONTWAIT and
    MSG_WAITALL count.

    TLS comes in records. ``recv`` waits for something to come and raises BlockingIOError if that
    is not a whole record yet: whoever was woken by a selector must not wait here for the rest.
    Ask for as much as a record holds (16 KB): a selector does not see what is left of one.
    """

    _lock: threading.Lock  # of the connection; held for moments
    _sending: threading.Lock  # held until a message is on its way: none gets into another
    _sslobj: object | None  # of Python; None: it is being made, or was closed
    _limit_s: float | None = None
    _left: bytes | memoryview = (
        b""  # what the kernel has not taken; OpenSSL wants to be given the same again
    )

    # --- as of a plain socket, which itself never blocks ---

    def settimeout(self, value: float | None) -> None:
        self._limit_s = value
        super().settimeout(0.0)

    def gettimeout(self) -> float | None:
        return self._limit_s

    def setblocking(self, flag: bool) -> None:
        self.settimeout(None if flag else 0.0)

    def shutdown(self, how: int) -> None:
        """Ends all waits of other threads. The usual one would go on in plain text."""
        socket.socket.shutdown(self, how)

    def shake(self) -> bool:
        """One turn of the handshake of TLS; whether it is over. OSError: so is the connection."""
        try:
            self._locked(super().do_handshake)
        except BlockingIOError:
            return False
        if self.version() != _VERSION:
            raise ConnectionError(f"{self.version()}: expected {_VERSION}")
        return True

    def wait(self, limit_s: float | None, event: int = select.POLLIN) -> None:
        """For the kernel. TimeoutError: nothing came, or nothing was taken."""
        if self.fileno() < 0:
            raise OSError(errno.EBADF, "the connection was closed")
        poll = select.poll()
        poll.register(self.fileno(), event)
        if not poll.poll(None if limit_s is None else max(0.0, limit_s) * 1000):
            raise TimeoutError("timed out") if limit_s else BlockingIOError()

    # --- reading ---

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        if self._sslobj is None:  # asked by Python itself while it is made, of a reset connection
            return socket.socket.recv(self, buflen, flags)
        if not self._locked(self.pending):
            self.wait(0.0 if flags & socket.MSG_DONTWAIT else self._limit_s)
        return self._locked(super().recv, buflen)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """With MSG_WAITALL all of it, unless the connection ends before."""
        view = memoryview(buffer)[:nbytes]
        num_read = 0
        while num_read < len(view):
            try:
                num_more = self._locked(super().recv_into, view[num_read:], len(view) - num_read)
            except BlockingIOError:
                self.wait(self._limit_s)
                continue
            num_read += num_more
            if not num_more or not flags & socket.MSG_WAITALL:
                break
        return num_read

    # --- writing ---

    def send(self, data: Any, flags: int = 0) -> int:
        """Never waits, and takes all or nothing: what the kernel leaves goes before the next."""
        if not self._sending.acquire(blocking=False):
            raise BlockingIOError
        try:
            self._send_left()
            try:
                return self._locked(super().send, data)
            except BlockingIOError:
                self._left = bytes(data)
                return len(self._left)
        finally:
            self._sending.release()

    def sendall(self, data: Any, flags: int = 0) -> None:
        limit_s = self._limit_s
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        with self._sending, memoryview(data) as whole, whole.cast("B") as view:
            self._patiently(self._send_left, deadline_s)
            for start in range(0, len(view), _PIECE_BYTES):
                self._left = view[start : start + _PIECE_BYTES]
                self._patiently(self._send_left, deadline_s)

    def sendmsg(self, buffers: Any, ancdata: Any = (), flags: int = 0) -> int:  # type: ignore[override]
        """All of it. With MSG_DONTWAIT only what fits into one record."""
        num_bytes = sum(len(buffer) for buffer in buffers)
        if not flags & socket.MSG_DONTWAIT:
            for buffer in buffers:
                self.sendall(buffer)
            return num_bytes
        if num_bytes > _RECORD_BYTES:
            raise BlockingIOError
        self.wait(0.0, select.POLLOUT)  # a third of the kernel's buffer is free, if not more
        self.send(b"".join(buffers))
        if self._left:
            raise ConnectionError("the kernel had room, and has taken half a record")
        return num_bytes

    def _send_left(self) -> None:
        while self._left:
            num_sent = self._locked(super().send, self._left)
            self._left = self._left[num_sent:]

    def _patiently(self, attempt: Callable[[], None], deadline_s: float | None) -> None:
        while True:
            try:
                attempt()
                return
            except BlockingIOError:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                self.wait(left_s, select.POLLOUT)

    def _locked(self, operation: Callable[..., _Result], *arguments: Any) -> _Result:
        """BlockingIOError: it has to wait for the other side."""
        with self._lock:
            try:
                return operation(*arguments)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None


def secured(context: ssl.SSLContext, sock: socket.socket, *, is_server: bool) -> TlsSocket:
    """It has the descriptor now; ``sock`` is as good as closed. Then :meth:`TlsSocket.shake`."""
    # What each side says last in the handshake and first after it would wait for 40 ms in between.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.getpeername()  # OSError: it was reset already
    made = context.wrap_socket(sock, server_side=is_server, do_handshake_on_connect=False)
    assert isinstance(made, TlsSocket)
    made._lock, made._sending = threading.Lock(), threading.Lock()
    return made
