"""A worker's connection to the coordinator: a thread that reads, and one that sends heartbeats.

The reading thread ends every wait of the worker's own thread the moment it is told to stop or to
halt. Decides nothing itself.
"""

import queue
import threading
from collections.abc import Callable

from holdfast.errors import EpochPast, HoldfastError, PeerLost
from holdfast.host.scarce import patiently
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.transport.base import Transport

_JOIN_LIMIT_S = 10.0


class Stopped(Exception):
    """The coordinator said stop, or is gone."""

    def __init__(self, reason: str, *, cut_off: bool = False, is_over: bool = False) -> None:
        super().__init__(reason)
        self.is_over = is_over  # the whole run
        self.cut_off = cut_off  # it did not say so: the connection is closed


class ControlLink:
    """``on_aside``: what does not wait for the worker's own thread; called from the reading one."""

    def __init__(
        self,
        connection: Connection,
        transport: Transport,
        on_aside: Callable[[messages.Message], None],
        on_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_stopped`` is called once, when the worker is to end and may not be able to."""
        self._connection = connection
        self._transport = transport
        self._on_aside, self._on_stopped = on_aside, on_stopped
        self._inbox: queue.Queue[messages.Message] = queue.Queue()
        self._lock = threading.Lock()  # heartbeats and the checkpoint thread send too
        self._stopped: Stopped | None = None
        self.failure: Exception | None = None  # of something aside: it ends the worker
        self._halted_before = 0  # epoch
        self._thread = threading.Thread(target=self._read, name="control", daemon=True)

    def start(self) -> None:
        patiently(self._thread.start)

    @property
    def is_cut_off(self) -> bool:
        """Whether the connection was closed without a word."""
        return self._stopped is not None and self._stopped.cut_off

    @property
    def is_over(self) -> bool:
        """Whether it was said that the run is."""
        return self._stopped is not None and self._stopped.is_over

    def send(self, message: messages.Message) -> None:
        if self._stopped is not None:  # a run of one worker waits for nobody: it hears it here
            raise self._stopped
        with self._lock:
            self._connection.send(message)

    def check(self, epoch: int) -> None:
        """Raises if ``epoch`` is over, or the run is."""
        if self._stopped is not None:
            raise self._stopped
        if self.failure is not None:
            raise Stopped(str(self.failure))
        if epoch < self._halted_before:
            raise EpochPast(f"epoch {epoch} is over: {self._halted_before} begins")

    def next(self, timeout_s: float) -> messages.Message:
        """The next message; Stopped if it is a stop."""
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise HoldfastError(f"no word from the launcher in {timeout_s:g} s") from None
        if isinstance(message, messages.Stop):
            self._inbox.put(message)  # whoever asks next hears it too
            raise self._stopped or Stopped(message.reason)
        return message

    def drop(self) -> None:
        """As a process that dies: without a word."""
        self._connection.shutdown()

    def close(self) -> None:
        self._connection.shutdown()
        self._thread.join(_JOIN_LIMIT_S)
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                for message in self._connection.read():
                    self._take(message)
        except HoldfastError as why:  # the launcher is gone, or speaks nonsense
            self._stop(Stopped(str(why), cut_off=isinstance(why, PeerLost)))

    def _take(self, message: messages.Message) -> None:
        match message:
            case messages.Stop():
                self._stop(Stopped(message.reason, is_over=message.is_over))
            case (
                messages.ShareState()
                | messages.SaveAt()
                | messages.SaveOnce()
                | messages.LogBoundaries()
                | messages.Sealed()
                | messages.TidyLogs()
                | messages.Probe()
                | messages.ClockAsk()
                | messages.Renewal()
                | messages.ShowStack()
                | messages.Offer()
                | messages.Adopt()
            ):
                self._do_aside(message)
            case messages.Halt():
                self._halted_before = max(self._halted_before, message.epoch)
                self._transport.interrupt(message.epoch)
                self._inbox.put(message)
            case _:
                self._inbox.put(message)

    def _do_aside(self, message: messages.Message) -> None:
        """What goes wrong here is told by the worker's own thread, which may still send."""
        try:
            self._on_aside(message)
        except Stopped:
            return  # it wanted to answer, and the run is over
        except Exception as why:
            if isinstance(why, PeerLost) and not why.worker:
                raise  # the launcher is gone
            self.failure = self.failure or why
            self._wake(str(why))

    def _stop(self, stopped: Stopped) -> None:
        is_first, self._stopped = self._stopped is None, self._stopped or stopped
        self._wake(str(stopped))
        if is_first:
            self._on_stopped()

    def _wake(self, reason: str) -> None:
        self._inbox.put(messages.Stop(reason=reason))
        self._transport.close()


class HeartbeatSender:
    """Tells the coordinator that this process runs, every ``beat_s``."""

    def __init__(self, send: Callable[[messages.Message], None]) -> None:
        self._send = send
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, beat_s: float, beat: Callable[[], messages.Heartbeat | None]) -> None:
        """``beat`` makes the message; None: be silent. Starting again changes nothing."""
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, args=(beat_s, beat), name="heartbeats", daemon=True
            )
            patiently(thread.start)
            self._thread = thread

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOIN_LIMIT_S)

    def _run(self, beat_s: float, beat: Callable[[], messages.Heartbeat | None]) -> None:
        try:
            while not self._ended.wait(beat_s):
                message = beat()
                if message is not None:
                    self._send(message)
        except (PeerLost, Stopped):
            return  # the reading thread has noticed too
