"""One link to one peer: what waits to leave, and the thread that sees it off.

The caller's thread writes what the kernel takes at once, the writer thread the rest: small messages
need no thread change, large ones never hold up the caller. The writer also hears what has arrived,
and connects anew when a connection breaks.
"""

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from holdfast.auth.stamps import Stamps
from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError, TransportClosed
from holdfast.transport.frame import Note, encode_note
from holdfast.transport.link_shaping import LinkShaping
from holdfast.transport.outbox import Outbox, OutboxRules
from holdfast.transport.tcp.departing import Departing, Trouble
from holdfast.transport.tcp.dialing import Dialer
from holdfast.transport.tcp.greeting import ANSWER_BYTES, GOODBYE
from holdfast.transport.tcp.session import Session
from holdfast.transport.tcp.sockets import LOOK_S, Acknowledgements, shut

_BYE = encode_note(Note.BYE)
_ANSWERS_AT_ONCE = 512
_GOODBYE = "it closed the connection"


class _Over(Exception):
    """The peer does not want this session, or is not there any more."""


class Outgoing(Outbox[Departing]):
    """Made broken or closed, it stays so: a peer that comes back gets a new one."""

    def __init__(
        self,
        me: WorkerId,
        peer: WorkerId,
        dialer: Dialer,
        *,
        epoch: Callable[[], int],
        rules: OutboxRules,
        shaping: LinkShaping,
        on_lost: Callable[[WorkerId], None],
    ) -> None:
        """``on_lost`` is called, by its own thread, if it breaks and nobody has abandoned it."""
        super().__init__(me, peer, rules, shaping)
        self.sent_messages = self.sent_bytes = self.reconnections = 0
        self._dialer, self._epoch, self._on_lost = dialer, epoch, on_lost
        self._session, self._is_abandoned = Session(epoch()), False
        self._socket: socket.socket | None = None
        self._connection: socket.socket | None = None  # the same, once it was answered
        self._stamps: Stamps | None = None  # of that connection
        self._trouble = Trouble(rules.limits.reconnect_limit_s)
        self._begun: deque[Departing] = deque()  # numbered, not yet written: before the queue
        self._asked: tuple[socket.socket | None, int] = (None, 0)  # to confirm so many
        self._rouser = -1
        name = f"holdfast-{me}-write-{peer}"
        self._writer = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._rouser = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._writer.start()
        except RuntimeError:
            os.close(self._rouser)
            raise

    @property
    def is_broken(self) -> bool:
        """Not while it may connect anew."""
        with self._changed:
            if self._connection is not None:
                try:
                    self._hear(self._connection)
                except (_Over, OSError, ProtocolError):
                    shut(self._connection)  # the writer finds out, and hears nothing more
                    self._connection = None
            return self._broken is not None

    @property
    def is_alive(self) -> bool:
        """Whether it still has a thread and a socket."""
        return self._writer.is_alive()

    def send(
        self, epoch: int, header: bytes, payload: memoryview, *, is_timeless: bool = False
    ) -> None:
        message = Departing(None if is_timeless else epoch, header, payload)
        with self._changed:
            self._check()
            if self._connection is not None and not self.holds_up:
                self._write_at_once(message, self._connection)
            else:
                self._wait_for_room(epoch)
                self._enqueue(message)
                self._rouse()
            self.sent_messages += 1
            self.sent_bytes += len(payload)

    def flush(self, deadline_s: float) -> None:
        with self._changed:
            while (self._queued_bytes or self._session) and not self._ended:
                self._ask_to_confirm()
                self._wait_until(deadline_s, "for the last messages to arrive")
            if self._closed:
                raise TransportClosed(f"closed before all had reached worker {self.peer}")

    def abandon(self, reason: str) -> None:
        """The peer is gone, or somewhere else. Its thread and its socket end by themselves."""
        with self._changed:
            self._is_abandoned = True
            self._say_bye()
            self._break(reason)

    def close(self) -> None:
        with self._changed:
            self._say_bye()
            self._closed = True
            self._end()

    def join(self, timeout_s: float) -> None:
        if self._writer.ident is not None:
            self._writer.join(timeout_s)

    # --- with the lock held ---

    @property
    def _ended(self) -> bool:
        return self._closed or self._broken is not None

    def _break(self, reason: str) -> None:
        super()._break(reason)
        self._begun.clear()
        self._session.clear()
        self._end()

    def _end(self) -> None:
        self._changed.notify_all()
        self._rouse()
        if self._socket is not None:
            shut(self._socket)

    def _rouse(self) -> None:
        """The writer waits for the kernel, not for the lock."""
        if self._rouser >= 0:
            with suppress(BlockingIOError):  # it was roused often enough
                os.eventfd_write(self._rouser, 1)

    def _say_bye(self) -> None:
        """Unless a message is half sent: then its receiver waits whether we come back."""
        if self._connection is not None and self._stamps is not None and not self._begun:
            with suppress(OSError):
                self._connection.send(self._stamps.stamped(_BYE), socket.MSG_DONTWAIT)

    def _begin(self, message: Departing) -> None:
        assert self._stamps is not None
        message.begin(0 if message.is_note else self._session.add(message), self._stamps)

    def _write_at_once(self, message: Departing, connection: socket.socket) -> None:
        self._begin(message)
        try:
            message.written(connection.sendmsg(message.buffers, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except OSError:  # it will be sent again
            self._connection = None
            shut(connection)
            return
        if message.num_bytes:
            self._begun.append(message)
            self._queued_bytes += message.num_bytes
            self._rouse()

    def _ask_to_confirm(self) -> None:
        wanted = (self._connection, self._session.num_sent)
        if self._connection is not None and not self._queued_bytes and self._asked != wanted:
            self._asked = wanted
            note = Departing(None, None, memoryview(b""))  # no shaping holds it up
            self._queue.append(note)
            self._queued_bytes += note.num_bytes
            self._rouse()

    def _hear(self, connection: socket.socket) -> None:
        """Read what the peer has confirmed, without waiting."""
        if connection is not self._connection:
            raise ConnectionError("it was found to be broken")
        try:
            news = connection.recv(_ANSWERS_AT_ONCE * ANSWER_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        assert self._stamps is not None
        counts = self._session.heard(news, self._stamps)
        if GOODBYE in counts:
            self._take_goodbye()
        if any([self._session.confirm(num_received) for num_received in counts]):
            self._trouble.is_over()
            self._changed.notify_all()
        if not news:
            raise ConnectionError(_GOODBYE)

    def _take_goodbye(self) -> None:
        """Always raises. Nobody may find the link well from here on, or the session."""
        another = self._session.another(self._epoch(), self._queue)
        if another is None:
            self._break(_GOODBYE)
            raise _Over(_GOODBYE)
        self._session = another
        raise ConnectionError(f"{_GOODBYE}; another session begins")

    def _resume(self, connection: socket.socket, stamps: Stamps, num_received: int) -> None:
        """What has not come goes first."""
        self.reconnections += self._session.was_answered
        self._begun = deque(self._session.resumed(num_received, stamps))
        self._queued_bytes += sum(message.num_bytes for message in self._begun)
        self._connection, self._stamps = connection, stamps
        if not self._begun:
            self._trouble.is_over()
        self._changed.notify_all()

    def _interrupted(self, connection: socket.socket) -> None:
        """The connection has broken; nothing that was sent on it counts as written."""
        self._connection = self._socket = None
        connection.close()
        self._begun.clear()
        self._queue = deque(message for message in self._queue if not message.is_note)
        self._queued_bytes = sum(message.num_bytes for message in self._queue)
        self._trouble.begins()
        self._changed.notify_all()

    # --- the writer thread ---

    def _run(self) -> None:
        try:
            while not self._ended:
                self._serve_once()
        except (_Over, OSError) as why:
            with self._changed:
                self._break(str(why))
        finally:
            with self._changed:
                os.close(self._rouser)
                self._rouser = -1
        if not (self._closed or self._is_abandoned):
            self._on_lost(self.peer)

    def _serve_once(self) -> None:
        """Connect, and work until that breaks."""
        try:
            self._keep_up(self._dial())
        except ConnectionRefusedError:
            raise  # nobody listens there: that process is gone
        except (OSError, ProtocolError) as why:
            self._pause(why)

    def _pause(self, why: Exception) -> None:
        with self._changed:
            deadline_s = self._trouble.next_attempt_s()
            if deadline_s is None:
                raise _Over(str(why))
            while not self._ended and monotonic() < deadline_s:
                self._changed.wait(deadline_s - monotonic())

    def _dial(self) -> socket.socket:
        connection, resolved = self._dialer.new_socket()
        try:
            with self._changed:
                if self._ended:
                    raise ConnectionAbortedError("closed before it was connected")
                self._socket = connection
                # Begun under the lock, so that close() finds something it can break.
                self._dialer.begin(connection, resolved)
            self._dialer.wait_connected(connection)
            with self._changed:
                connection = self._socket = self._dialer.secured(connection)
            hello = self._session.hello(self._epoch())
            num_received, stamps = self._dialer.finish(connection, hello)
            with self._changed:
                if num_received == GOODBYE:
                    self._take_goodbye()
                self._resume(connection, stamps, num_received)
        except BaseException:
            with self._changed:
                self._interrupted(connection)
            raise
        return connection

    def _keep_up(self, connection: socket.socket) -> None:
        """Write, and hear what has come, until the connection breaks."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.register(self._rouser, select.POLLIN)
        acknowledged = Acknowledgements(connection, self._trouble.limit_s)
        try:
            while not self._ended:
                message, wait_s = self._next_begun()
                if message is not None:
                    self._write(message, connection, acknowledged)
                elif self._session:
                    acknowledged.look()
                # What the caller's thread has written rouses nobody here.
                ready = poll.poll(1000 * (LOOK_S if wait_s is None else min(wait_s, LOOK_S)))
                self._take_news(connection, {descriptor for descriptor, _ in ready})
        finally:
            with self._changed:
                self._interrupted(connection)

    def _take_news(self, connection: socket.socket, ready: set[int]) -> None:
        if self._rouser in ready:
            os.eventfd_read(self._rouser)
        if connection.fileno() in ready:
            with self._changed:
                if not self._ended:
                    self._hear(connection)

    def _next_begun(self) -> tuple[Departing | None, float | None]:
        """What is to be written now, and how long may be waited after it (None: for ever)."""
        with self._changed:
            if self._begun:
                return self._begun[0], 0
            if not self._queue:
                return None, None
            wait_s = self._queue[0].due_s - monotonic()
            if wait_s > 0:
                return None, min(wait_s, threading.TIMEOUT_MAX)
            message = self._queue.popleft()
            self._begin(message)
            self._begun.append(message)
            return message, 0

    def _write(
        self, message: Departing, connection: socket.socket, acknowledged: Acknowledgements
    ) -> None:
        queued_bytes = message.num_bytes
        while message.num_bytes:
            try:
                message.written(connection.sendmsg(message.buffers))
            except BlockingIOError:
                acknowledged.look()
        with self._changed:
            if self._begun and self._begun[0] is message:
                self._begun.popleft()
        self._has_left(queued_bytes)
