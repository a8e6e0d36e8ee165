"""What waits to leave for one peer: in order, bounded, and on a shaped link not before its time.

Knows nothing of how a message travels: a thread of whoever builds on it takes the first one
that is due. Made broken or closed, it stays so.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, PeerLost, TransportClosed
from holdfast.transport.base import Limits
from holdfast.transport.link_shaping import UNSHAPED, LinkShaping
from holdfast.transport.timed_wait import wait_until


class Waiting:
    """One message that waits. ``epoch`` is None if it is true in every one."""

    __slots__ = ("due_s", "epoch", "num_bytes")

    def __init__(self, epoch: int | None, num_bytes: int) -> None:
        self.epoch = epoch
        self.num_bytes = num_bytes  # left to send
        self.due_s = 0.0

    def is_needed_in(self, epoch: int) -> bool:
        return self.epoch is None or self.epoch >= epoch


class OutboxRules(NamedTuple):
    """When a send waits for room."""

    may_wait_in: Callable[[int], bool]  # an epoch; ``Outbox.wake`` when that has changed
    while_held_up: Callable[[], AbstractContextManager[None]]  # entered while it waits
    limits: Limits


_Message = TypeVar("_Message", bound=Waiting)


class Outbox(Generic[_Message]):
    def __init__(
        self, me: WorkerId, peer: WorkerId, rules: OutboxRules, shaping: LinkShaping
    ) -> None:
        self.peer = peer
        self._me = me
        self._may_wait_in, self._while_held_up, self._limits = rules
        self._shaping = shaping
        self._narrow_until_s = 0.0  # a link of limited rate is busy with earlier messages
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[_Message] = deque()
        self._queued_bytes = 0  # the one being sent included
        self._broken: str | None = None
        self._closed = False

    @property
    def holds_up(self) -> bool:
        """Whether a message sent now could not leave at once."""
        return self._queued_bytes > 0 or self._shaping != UNSHAPED

    def shape_link(self, shaping: LinkShaping) -> None:
        with self._changed:
            self._shaping = shaping

    def drop_before(self, epoch: int) -> None:
        """What waits of earlier epochs would be refused: do not send it."""
        with self._changed:
            kept = deque(message for message in self._queue if message.is_needed_in(epoch))
            self._queued_bytes -= sum(m.num_bytes for m in self._queue)
            self._queued_bytes += sum(m.num_bytes for m in kept)
            self._queue = kept
            if not kept:
                self._narrow_until_s = 0.0
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

    # --- with the lock held ---

    def _check(self) -> None:
        if self._closed:
            raise TransportClosed(f"worker {self._me} closed its transport")
        if self._broken is not None:
            raise PeerLost(
                f"worker {self._me} cannot send to worker {self.peer}: {self._broken}",
                str(self.peer),
            )

    def _wait_for_room(self, epoch: int) -> None:
        """At once, if there is room."""
        if self._queued_bytes <= self._limits.outbox_bytes:
            return
        deadline_s = monotonic() + self._limits.send_limit_s
        with self._while_held_up():
            while self._queued_bytes > self._limits.outbox_bytes and self._may_wait_in(epoch):
                self._wait_until(deadline_s, f"{self._limits.send_limit_s} s for room")
                self._check()
        if not self._may_wait_in(epoch):  # a new epoch also makes room, but not for this message
            raise EpochPast(f"worker {self._me} waited for room in epoch {epoch}, which ended")

    def _wait_until(self, deadline_s: float, what_for: str) -> None:
        wait_until(
            deadline_s,
            self._changed,
            lambda: (
                f"worker {self._me} waited {what_for}: {self._queued_bytes} bytes "
                f"still wait to leave for worker {self.peer}"
            ),
        )

    def _enqueue(self, message: _Message) -> None:
        if self._shaping != UNSHAPED:
            message.due_s = self._when_due_s(message.num_bytes)
        self._queue.append(message)
        self._queued_bytes += message.num_bytes
        self._changed.notify_all()

    def _when_due_s(self, num_bytes: int) -> float:
        """A narrow link takes one message after the other, a long one takes them side by side."""
        delay_s, bytes_s = self._shaping
        self._narrow_until_s = max(self._narrow_until_s, monotonic()) + num_bytes / bytes_s
        return self._narrow_until_s + delay_s

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._queue.clear()
        self._queued_bytes = 0
        self._changed.notify_all()

    # --- the thread that sees them off ---

    def _next(self) -> _Message | None:
        """The first one, as soon as it is due; None at the end. Say when it ``_has_left``."""
        with self._changed:
            while not self._closed and self._broken is None:
                wait_s = None if not self._queue else self._queue[0].due_s - monotonic()
                if wait_s is not None and wait_s <= 0:
                    return self._queue.popleft()
                self._changed.wait(wait_s and min(wait_s, threading.TIMEOUT_MAX))
            return None

    def _has_left(self, queued_bytes: int) -> None:
        with self._changed:
            if self._broken is None:  # else none is counted any more
                self._queued_bytes -= queued_bytes
            self._changed.notify_all()
