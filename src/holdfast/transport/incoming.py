"""One incoming connection: a thread that reads tensors straight into their memory.

A connection that breaks the rules is closed and counted; nothing else is disturbed by it.
"""

import socket
import threading
from collections.abc import Callable

from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError
from holdfast.transport.base import Limits
from holdfast.transport.frame import (
    FRAME_HEADER_BYTES,
    HELLO_BYTES,
    Hello,
    decode_frame,
    decode_hello,
    empty_tensor,
    payload_view,
)
from holdfast.transport.mailbox import Mailbox
from holdfast.transport.sockets import read_exactly, shut, tune_incoming


class Incoming:
    def __init__(
        self,
        connection: socket.socket,
        mailbox: Mailbox,
        *,
        token: bytes,
        limits: Limits,
        on_end: Callable[["Incoming", bool], None],
    ) -> None:
        """``on_end`` is called once, with True if the connection was refused."""
        self._connection, self._mailbox = connection, mailbox
        self._token, self._limits, self._on_end = token, limits, on_end
        self._is_shut = self._is_replaced = False
        name = f"holdfast-{mailbox.me}-read"
        self._reader = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._reader.start()

    def shut(self) -> None:
        self._is_shut = True
        shut(self._connection)
        self._mailbox.wake()  # the reader may wait for room

    def replace(self) -> None:
        """Another connection speaks for this sender now."""
        self._is_replaced = True
        self.shut()

    def join(self, timeout_s: float) -> None:
        self._reader.join(timeout_s)

    # --- the reader thread ---

    def _run(self) -> None:
        is_refused = False
        try:
            hello = self._read_hello()
            before = self._mailbox.welcome(hello.sender, hello.epoch, self)
            if isinstance(before, Incoming):
                before.replace()
            self._reader.name += f"-{hello.sender}"
            self._read_until_lost(hello.sender)
        except (ProtocolError, OSError):
            # An OSError here comes before the hello: not a worker, or one that ended at once.
            is_refused = True
        finally:
            self._connection.close()
            self._on_end(self, is_refused or self._is_replaced)

    def _read_hello(self) -> Hello:
        hello = bytearray(HELLO_BYTES)
        self._connection.settimeout(self._limits.connect_limit_s)
        if read_exactly(self._connection, memoryview(hello)) < HELLO_BYTES:
            raise ProtocolError("the connection ended before its hello")
        tune_incoming(self._connection, self._limits.silence_limit_s)
        self._connection.settimeout(None)
        return decode_hello(hello, self._token)

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
            self._mailbox.lose(source, self, reason)

    def _read_message(self, source: WorkerId, header: bytearray, view: memoryview) -> bool:
        """False if the connection ended before it."""
        num_read = read_exactly(self._connection, view)
        if num_read == 0:
            return False
        if num_read < FRAME_HEADER_BYTES:
            raise ConnectionError("the connection ended in the middle of a header")
        frame = decode_frame(header, self._limits.payload_bytes)
        tensor = empty_tensor(frame)
        if frame.payload_bytes:
            num_read = read_exactly(self._connection, payload_view(tensor))
            if num_read < frame.payload_bytes:
                raise ConnectionError(
                    f"the connection ended after {num_read} of {frame.payload_bytes} bytes "
                    f"of {frame.tag}"
                )
        if self._mailbox.put(source, self, frame.epoch, frame.tag, tensor, sent_ns=frame.sent_ns):
            self._mailbox.wait_for_room(source, threading.TIMEOUT_MAX, self._check_not_shut)
        return True

    def _check_not_shut(self) -> None:
        if self._is_shut:
            raise ConnectionAbortedError("we closed the connection")
