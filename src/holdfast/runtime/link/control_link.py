"""A worker's connection to the coordinator, and the thread that reads it.

The reading thread ends every wait of the worker's own thread the moment it is told to stop or to
halt. Decides nothing itself.
"""

import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import EpochPast, HoldfastError, PeerLost
from holdfast.host.scarce import patiently
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.protocol.spec import Access
from holdfast.protocol.successors import SILENCE_S, Successors
from holdfast.runtime.link.relay import Relay
from holdfast.runtime.link.retained import Retained
from holdfast.transport.base import Transport

_LOOK_S = 1.0
_JOIN_LIMIT_S = 10.0
# Reports that an agent passes on may come before or after these.
_IN_ANY_ORDER = (messages.ClockTold, messages.PeerGone, messages.Probed)


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
        successors: Successors | None = None,
        is_over: Callable[[], bool] = lambda: False,
        relay: socket.socket | None = None,
    ) -> None:
        """``on_stopped`` is called once, when the worker is to end and may not be able to.

        ``successors``: who is looked for when the coordinator is gone; None: nobody. ``is_over``:
        nobody will come any more, whatever was heard. ``relay``: to an agent that gathers.
        """
        self._relay = Relay(relay)
        self._num_said = 0  # on this connection
        self._proceeded = 0  # epoch
        self._connection = connection
        self._successors, self._retained = successors, Retained()
        self._nobody_comes = is_over
        self._is_away = False  # the connection is broken, and there is no other yet
        self._num_builds = 0  # stages that were given, and of which it was not told that they are
        self._was_assigned = self._is_ending = False
        self._newest_epoch = 0
        self._sign_s: float | None = None  # last one of a coordinator that gives some
        self._read_s = self._looked_s = 0.0  # last word of it; last look for another one
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

    def now_at(self) -> Access | None:
        """Of whoever leads by now; None: nobody has looked."""
        return None if self._successors is None else self._successors.access

    def send(self, message: messages.Message) -> None:
        if self._stopped is not None:  # a run of one worker waits for nobody: it hears it here
            raise self._stopped
        with self._lock:
            self._num_builds -= isinstance(message, messages.Ready)
            self._retained.note(message)
            if not self._is_away and not self._is_passed_on(message):
                self._try_to_send(message)

    def tell(self, message: messages.Message) -> None:
        """From a thread that ends nothing: whoever reads hears of it if there is nobody to tell."""
        with suppress(PeerLost, Stopped):
            self.send(message)

    def _is_passed_on(self, message: messages.Message) -> bool:
        """By the agent. What is not comes after all reports before it, as they are told again."""
        match message:
            case messages.Heartbeat():
                passed_on = self._relay.beat(message)
                self._heed(message.worker)
            case messages.StepReport() if self._proceeded >= self._halted_before:
                passed_on = self._relay.report(message, self._proceeded, self._num_said)
                if passed_on:
                    self._retained.passed_on(message.step)
            case _:
                passed_on = False
        if not passed_on and not isinstance(message, _IN_ANY_ORDER):
            for report in self._retained.take_unsure():
                self._try_to_send(report)
        return passed_on

    def _heed(self, worker: str) -> None:
        """What came by the agent, of a coordinator that this worker speaks to as well."""
        for told in self._relay.take_told():
            if (answers := told.answers.get(worker)) is not None:
                number, for_s = told.number, told.for_s
                self._on_aside(messages.Renewal(number=number, answers=answers, for_s=for_s))
            if told.leads and self._sign_s is not None:
                self._sign_s = time.monotonic()
            if told.epoch == self._proceeded:  # else it may be of steps that are run once more
                self._retained.acknowledged(told.next_step, told.heard)

    def _try_to_send(self, message: messages.Message) -> None:
        self._num_said += 1
        try:
            self._connection.send(message)
        except PeerLost:
            if self._successors is None or not self._successors.limit_s:
                raise
            self._is_away = True
            self._connection.shutdown()  # the reading thread looks for another one

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
        self._is_ending = True
        self._connection.shutdown()

    def close(self) -> None:
        self._is_ending = True
        self._connection.shutdown()
        self._thread.join(_JOIN_LIMIT_S)
        self._connection.close()
        with self._lock:
            self._relay.close()

    def _read(self) -> None:
        while True:
            try:
                while True:
                    for message in self._read_some():
                        self._take(message)
            except PeerLost as why:
                try:
                    self._reattach(self._found(why))
                except HoldfastError as last:
                    self._stop(Stopped(str(last), cut_off=True))
                    return
            except HoldfastError as why:  # the launcher speaks nonsense
                self._stop(Stopped(str(why)))
                return

    # --- another coordinator ---

    def _read_some(self) -> list[messages.Message]:
        """One that gives no sign for too long may be stopped, or not know whether it still leads,
        and another one may have its place; it is left only for that one."""
        if self._sign_s is None or self._successors is None:
            return self._connection.read()
        poll = select.poll()  # select knows no descriptor from 1024 on
        poll.register(self._connection.fileno(), select.POLLIN)
        is_read = bool(poll.poll(_LOOK_S * 1000))
        now_s = time.monotonic()
        self._read_s = now_s if is_read else self._read_s
        if now_s - self._sign_s > SILENCE_S and now_s - self._looked_s > _LOOK_S:
            talks = now_s - self._read_s <= SILENCE_S
            found = self._successors.look(is_alive=True, elsewhere=talks)
            self._looked_s = time.monotonic()
            if found is not None:
                self._reattach(found)
                return []
        return self._connection.read() if is_read else []

    def _found(self, why: PeerLost) -> Connection:
        """HoldfastError: there is no other, or this worker is to end."""
        successors = self._successors
        if successors is None or not successors.limit_s or self._has_ended():
            raise why
        with self._lock:
            self._is_away = True
        return successors.find(self._has_ended)

    def _has_ended(self) -> bool:
        return self._is_ending or self._stopped is not None or self._nobody_comes()

    def _reattach(self, connection: Connection) -> None:
        """It hears first who is there; then what the one before may not have heard."""
        with self._lock:
            before, self._connection = self._connection, connection
            self._is_away, self._sign_s, self._num_said = False, None, 0
            before.shutdown()
            if self._is_ending:
                connection.shutdown()
            for message in self._again():
                if not self._is_away:
                    self._try_to_send(message)
        before.close()

    def _again(self) -> list[messages.Message]:
        """Of one that loads nothing: its hello comes as if nothing had been."""
        hello = self._retained.hello
        if hello is None:
            return []
        told = messages.Reattach(
            worker=hello.worker,
            pid=hello.pid,
            host=hello.host,
            port=hello.port,
            epoch=self._newest_epoch,
            building=self._num_builds,
        )
        return [told, *self._retained.all()] if self._was_assigned else [told]

    def _take(self, message: messages.Message) -> None:
        self._newest_epoch = max(self._newest_epoch, getattr(message, "epoch", 0))
        match message:
            case messages.Stop():
                self._stop(Stopped(message.reason, is_over=message.is_over))
            case messages.Begone():
                self._is_ending = True
                self._stop(Stopped(message.reason, cut_off=True))
            case messages.StillHere():
                self._sign_s = time.monotonic()
                with self._lock:
                    self._retained.acknowledged(message.next_step, message.heard)
            case messages.SayHello():
                with self._lock:
                    if self._retained.hello is not None:
                        self._try_to_send(self._retained.hello)
            case (
                messages.ShareState()
                | messages.SaveAt()
                | messages.SaveOnce()
                | messages.LogBoundaries()
                | messages.Sealed()
                | messages.TidyLogs()
                | messages.CopyLogs()
                | messages.Probe()
                | messages.ClockAsk()
                | messages.Renewal()
                | messages.ShowStack()
                | messages.Offer()
                | messages.Adopt()
                | messages.SaveHere()
                | messages.GoOn()
            ):
                self._do_aside(message)
            case messages.Halt():
                self._halted_before = max(self._halted_before, message.epoch)
                self._transport.interrupt(message.epoch)
                self._inbox.put(message)
            case _:
                with self._lock:
                    is_assign = isinstance(message, messages.Assign)
                    self._num_builds += is_assign
                    self._was_assigned = self._was_assigned or is_assign
                    if isinstance(message, messages.Proceed):
                        self._proceeded = message.epoch
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
