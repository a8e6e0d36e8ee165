"""One outgoing connection: what waits to leave for one peer, and the thread that sees it off.

The caller's thread writes what the kernel takes at once; only the rest is left to the writer
thread, so small messages need no thread change and large ones never hold up the caller.
"""

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, PeerLost, TransportClosed, WaitTimeout
from holdfast.transport.base import Limits
from holdfast.transport.sockets import Address, is_hung_up, shut, tune_outgoing

_Buffer = bytes | memoryview


class _Message:
    """What is left to write of one message. ``epoch`` is None if it is true in every one."""

    __slots__ = ("buffers", "epoch", "is_begun", "num_bytes")

    def __init__(self, epoch: int | None, buffers: list[_Buffer]) -> None:
        self.epoch = epoch
        self.buffers = buffers
        self.is_begun = False
        self.num_bytes = sum(map(len, buffers))

    def written(self, num_bytes: int) -> None:
        self.is_begun = True
        self.num_bytes -= num_bytes
        buffers = self.buffers
        while buffers and num_bytes >= len(buffers[0]):
            num_bytes -= len(buffers.pop(0))
        if num_bytes:
            buffers[0] = memoryview(buffers[0])[num_bytes:]

    def is_needed_in(self, epoch: int) -> bool:
        return self.is_begun or self.epoch is None or self.epoch >= epoch


class Outgoing:
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
    ) -> None:
        """``while_held_up`` is entered for the time that a send waits for room.

        It waits only while ``may_wait_in`` its epoch; ``wake`` when that has changed.
        """
        self.peer, self.address = peer, address
        self.sent_messages = self.sent_bytes = 0
        self._me, self._hello, self._limits = me, hello, limits
        self._may_wait_in, self._while_held_up = may_wait_in, while_held_up
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[_Message] = deque()
        self._queued_bytes = 0  # the one being written included
        self._socket: socket.socket | None = None
        self._is_ready = False  # connected, and the hello is written
        self._broken: str | None = None
        self._closed = False
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
            if self._is_ready and not self._queued_bytes:
                self._write_at_once(message)
            elif self._queued_bytes > self._limits.outbox_bytes:
                with self._while_held_up():
                    self._wait_for_room(epoch)
            if message.num_bytes:
                self._queue.append(message)
                self._queued_bytes += message.num_bytes
                self._changed.notify_all()
            self.sent_messages += 1
            self.sent_bytes += len(payload)

    def drop_before(self, epoch: int) -> None:
        """What waits of earlier epochs would be refused: do not send it, unless it is half sent."""
        with self._changed:
            kept = deque(message for message in self._queue if message.is_needed_in(epoch))
            self._queued_bytes -= sum(m.num_bytes for m in self._queue)
            self._queued_bytes += sum(m.num_bytes for m in kept)
            self._queue = kept
            self._changed.notify_all()

    def wake(self) -> None:
        """Let everyone who waits check again."""
        with self._changed:
            self._changed.notify_all()

    def flush(self, deadline_s: float) -> None:
        with self._changed:
            while self._queued_bytes and not self._closed:  # none queued once broken
                self._wait_until(deadline_s, "to send the last bytes")
            if self._closed:
                raise TransportClosed(f"closed before all had left for worker {self.peer}")

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

    def _check(self) -> None:
        if self._closed:
            raise TransportClosed(f"worker {self._me} closed its transport")
        if self._broken is not None:
            raise PeerLost(
                f"worker {self._me} cannot send to worker {self.peer}: {self._broken}",
                str(self.peer),
            )

    def _write_at_once(self, message: _Message) -> None:
        assert self._socket is not None
        try:
            message.written(self._socket.sendmsg(message.buffers, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return
        except OSError as error:
            self._break(str(error))
            self._check()

    def _wait_for_room(self, epoch: int) -> None:
        deadline_s = monotonic() + self._limits.send_limit_s
        while self._queued_bytes > self._limits.outbox_bytes and self._may_wait_in(epoch):
            self._wait_until(deadline_s, f"{self._limits.send_limit_s} s for room")
            self._check()
        if not self._may_wait_in(epoch):  # a new epoch also makes room, but not for this message
            raise EpochPast(f"worker {self._me} waited for room in epoch {epoch}, which ended")

    def _wait_until(self, deadline_s: float, what_for: str) -> None:
        left_s = deadline_s - monotonic()
        if left_s <= 0:
            raise WaitTimeout(
                f"worker {self._me} waited {what_for}: {self._queued_bytes} bytes "
                f"still wait to leave for worker {self.peer}"
            )
        self._changed.wait(min(left_s, threading.TIMEOUT_MAX))

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._queue.clear()
        self._queued_bytes = 0
        self._changed.notify_all()

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
        with self._changed:
            while not (self._queue or self._closed or self._broken is not None):
                self._changed.wait()
            if self._closed or self._broken is not None:
                return False
            message = self._queue.popleft()
        queued_bytes = message.num_bytes
        while message.num_bytes:
            message.written(connection.sendmsg(message.buffers))
        with self._changed:
            self._queued_bytes -= queued_bytes
            self._changed.notify_all()
        return True
