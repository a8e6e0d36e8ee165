"""One incoming connection: a thread that reads tensors straight into their memory.

A connection that breaks the rules, or a message that was damaged on its way, closes it: whoever
is honest connects anew and sends again what was not taken. Nothing else is disturbed by it.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from holdfast.auth.stamps import Stamps
from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError
from holdfast.transport.base import Limits
from holdfast.transport.frame import (
    FRAME_HEADER_BYTES,
    FrameHeader,
    Note,
    checksum_of,
    decode_frame,
    decode_note,
    empty_tensor,
    payload_view,
)
from holdfast.transport.mailbox import Mailbox
from holdfast.transport.tcp.greeting import GOODBYE, SessionHello, encode_answer
from holdfast.transport.tcp.sockets import read_exactly, shut, tune_incoming

# Messages are confirmed in batches: a sender holds so much longer than it must, and no more.
_CONFIRM_MESSAGES = 32
_CONFIRM_BYTES = 1 << 22


class Incoming:
    def __init__(
        self,
        connection: socket.socket,
        mailbox: Mailbox,
        source: WorkerId,
        hello: SessionHello,
        stamps: Stamps,
        *,
        limits: Limits,
        on_end: Callable[["Incoming", bool], None],
    ) -> None:
        """``on_end`` is called once, with True if the connection was refused."""
        self._connection, self._mailbox = connection, mailbox
        self._source, self._hello, self._stamps = source, hello, stamps
        self._limits, self._on_end = limits, on_end
        self.num_damaged = 0
        self._is_shut = self._is_replaced = self._has_said_bye = False
        self._unconfirmed_messages = self._unconfirmed_bytes = 0
        self._num_taken = 0
        name = f"holdfast-{mailbox.me}-read-{source}"
        self._reader = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._reader.start()

    def shut(self) -> None:
        """For good: the sender is told that nothing more is taken from it."""
        self._say(GOODBYE)
        self._shut()

    def replace(self, *, by_another: bool) -> None:
        """Another connection speaks for this sender now; maybe of ``another`` session."""
        self._is_replaced = by_another
        if by_another:
            self._say(GOODBYE)
        self._shut()

    def join(self, timeout_s: float) -> None:
        self._reader.join(timeout_s)

    def _shut(self) -> None:
        self._is_shut = True
        shut(self._connection)
        self._mailbox.wake()  # the reader may wait for room

    def _say(self, num_received: int) -> None:
        """Never waits: who does not listen will ask when it connects anew."""
        with suppress(OSError):
            self._connection.send(self._answer(num_received), socket.MSG_DONTWAIT)

    def _answer(self, num_received: int) -> bytes:
        """Not numbered: several threads say one, and counts only grow: an old one says nothing."""
        return self._stamps.stamped_unnumbered(encode_answer(num_received))

    # --- the reader thread ---

    def _run(self) -> None:
        is_refused = False
        try:
            tune_incoming(self._connection, self._limits.silence_limit_s)
            self._welcome(self._source, self._hello)
            self._read_until_lost(self._source)
        except (ProtocolError, OSError):
            # An OSError here comes before the first message: its sender ended at once.
            is_refused = True
        finally:
            self._connection.close()
            self._on_end(self, is_refused or self._is_replaced)

    def _welcome(self, source: WorkerId, hello: SessionHello) -> None:
        session, epoch, resumes = hello
        try:
            self._num_taken, before, is_another = self._mailbox.welcome(
                source, epoch, self, session, resumes=resumes
            )
        except ProtocolError:
            self._say(GOODBYE)
            raise
        self._connection.sendall(self._answer(self._num_taken))
        if isinstance(before, Incoming):
            before.replace(by_another=is_another)
        self._unconfirmed_messages = _CONFIRM_MESSAGES  # the first one shows that it works again

    def _read_until_lost(self, source: WorkerId) -> None:
        reason = "broke the protocol"
        try:
            header = bytearray(FRAME_HEADER_BYTES)
            view = memoryview(header)
            while self._read_message(source, header, view):
                pass
            reason = "closed the connection"
        except OSError as error:
            reason = f"is gone: {error}"
        finally:
            may_return = not self._has_said_bye
            self._mailbox.lose(source, self, reason, may_return=may_return)

    def _read_message(self, source: WorkerId, header: bytearray, view: memoryview) -> bool:
        """False if the connection ended before it."""
        num_read = read_exactly(self._connection, view)
        if num_read == 0:
            return False
        if num_read < FRAME_HEADER_BYTES:
            raise ConnectionError("the connection ended in the middle of a header")
        body = self._stamps.opened(header)
        if note := decode_note(body):
            return self._take_note(note)
        frame = decode_frame(body, self._limits.payload_bytes)
        tensor = empty_tensor(frame)
        payload = payload_view(tensor)
        if frame.payload_bytes:
            num_read = read_exactly(self._connection, payload)
            if num_read < frame.payload_bytes:
                raise ConnectionError(
                    f"the connection ended after {num_read} of {frame.payload_bytes} bytes "
                    f"of {frame.tag}"
                )
        self._check(frame, payload)
        is_full = self._mailbox.put(
            source,
            self,
            frame.epoch,
            frame.tag,
            tensor.requires_grad_() if frame.bundle.requires_grad else tensor,
            sent_ns=frame.sent_ns,
            bundle_size=frame.bundle.size,
            sequence=frame.sequence,
        )
        self._taken(frame)
        if is_full:
            self._mailbox.room.wait(source, threading.TIMEOUT_MAX, self._check_not_shut)
        return True

    def _take_note(self, note: Note) -> bool:
        if note is Note.BYE:
            self._has_said_bye = True
            return False
        self._confirm()
        return True

    def _check(self, frame: FrameHeader, payload: memoryview) -> None:
        if checksum_of(payload) != frame.checksum:
            self.num_damaged += 1
            raise ProtocolError(f"checksum of {frame.tag} does not match")

    def _taken(self, frame: FrameHeader) -> None:
        self._num_taken = max(self._num_taken, frame.sequence)
        self._unconfirmed_messages += 1
        self._unconfirmed_bytes += frame.payload_bytes
        if (
            self._unconfirmed_messages >= _CONFIRM_MESSAGES
            or self._unconfirmed_bytes >= _CONFIRM_BYTES
        ):
            self._confirm()

    def _confirm(self) -> None:
        self._unconfirmed_messages = self._unconfirmed_bytes = 0
        self._say(self._num_taken)

    def _check_not_shut(self) -> None:
        if self._is_shut:
            raise ConnectionAbortedError("we closed the connection")
