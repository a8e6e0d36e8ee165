"""One outgoing connection: what waits to leave for one peer, and the thread that sees it off.

The caller's thread writes what the kernel takes at once; only the rest is left to the writer
thread, so small messages need no thread change and large ones never hold up the caller.
"""

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from holdfast.cluster import WorkerId
from holdfast.transport.base import Hindrance, Limits
from holdfast.transport.outbox import Outbox, Waiting
from holdfast.transport.sockets import Address, is_hung_up, shut, tune_outgoing

_Buffer = bytes | memoryview


class _Message(Waiting):
    """What is left to write of one message."""

    __slots__ = ("buffers",)

    def __init__(self, epoch: int | None, buffers: list[_Buffer]) -> None:
        super().__init__(epoch, sum(map(len, buffers)))
        self.buffers = buffers

    def written(self, num_bytes: int) -> None:
        self.is_begun = True
        self.num_bytes -= num_bytes
        buffers = self.buffers
        while buffers and num_bytes >= len(buffers[0]):
            num_bytes -= len(buffers.pop(0))
        if num_bytes:
            buffers[0] = memoryview(buffers[0])[num_bytes:]


class Outgoing(Outbox[_Message]):
    """Made broken or closed, it stays so: a peer that comes back gets a new one."""

    def __init__(
        self,
        me: WorkerId,
        peer: WorkerId,
        address: Address,
        *,
        hello: Callable[[], bytes],
        may_wait_in: Callable[[int], bool],
        while_held_up: Callable[[], AbstractContextManager[None]],
        limits: Limits,
        hindrance: Hindrance,
    ) -> None:
        super().__init__(
            me,
            peer,
            may_wait_in=may_wait_in,
            while_held_up=while_held_up,
            limits=limits,
            hindrance=hindrance,
        )
        self.address = address
        self.sent_messages = self.sent_bytes = 0
        self._hello = hello
        self._socket: socket.socket | None = None
        self._is_ready = False  # connected, and the hello is written
        name = f"holdfast-{me}-write-{peer}"
        self._writer = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._writer.start()

    @property
    def is_broken(self) -> bool:
        with self._changed:
            if self._is_ready and self._socket is not None and is_hung_up(self._socket):
                self._break("it closed the connection")
            return self._broken is not None

    @property
    def is_alive(self) -> bool:
        """Whether it still has a thread and a socket."""
        return self._writer.is_alive()

    def send(
        self, epoch: int, header: bytes, payload: memoryview, *, is_timeless: bool = False
    ) -> None:
        message = _Message(None if is_timeless else epoch, [header, payload])
        with self._changed:
            self._check()
            if self._is_ready and not self.holds_up:
                self._write_at_once(message)
            else:
                self._wait_for_room(epoch)
            if message.num_bytes:
                self._enqueue(message)
            self.sent_messages += 1
            self.sent_bytes += len(payload)

    def abandon(self, reason: str) -> None:
        """The peer is gone, or somewhere else. Its thread and its socket end by themselves."""
        with self._changed:
            self._break(reason)
            if self._socket is not None:
                shut(self._socket)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._socket is not None:
                shut(self._socket)

    def join(self, timeout_s: float) -> None:
        self._writer.join(timeout_s)

    # --- with the lock held ---

    def _write_at_once(self, message: _Message) -> None:
        assert self._socket is not None
        try:
            message.written(self._socket.sendmsg(message.buffers, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return
        except OSError as error:
            self._break(str(error))
            self._check()

    # --- the writer thread ---

    def _run(self) -> None:
        try:
            connection = self._connect()
            while self._write_next(connection):
                pass
        except OSError as error:
            with self._changed:
                self._break(str(error))
        finally:
            with self._changed:
                self._is_ready = False
                if self._socket is not None:
                    shut(self._socket)  # a caller's thread may not write half a message to it
                    self._socket.close()

    def _connect(self) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(
            *self.address, type=socket.SOCK_STREAM
        )[0]
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        with self._changed:
            self._socket = connection
            if self._closed or self._broken is not None:
                raise ConnectionAbortedError("closed before it was connected")
            tune_outgoing(connection, self._limits.silence_limit_s)
            # Begun under the lock, so that close() finds something it can break.
            connection.connect_ex(address)
        self._wait_connected(connection)
        connection.setblocking(True)
        connection.sendall(self._hello())
        with self._changed:
            self._is_ready = True
        return connection

    def _wait_connected(self, connection: socket.socket) -> None:
        poll = select.poll()
        poll.register(connection, select.POLLOUT)
        if not poll.poll(self._limits.connect_limit_s * 1000):
            raise TimeoutError(f"no connection within {self._limits.connect_limit_s} s")
        if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))

    def _write_next(self, connection: socket.socket) -> bool:
        """False at its end. The message is a local: its tensor is let go when it has left."""
        message = self._next()
        if message is None:
            return False
        queued_bytes = message.num_bytes
        while message.num_bytes:
            message.written(connection.sendmsg(message.buffers))
        self._has_left(queued_bytes)
        return True
