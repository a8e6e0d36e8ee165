"""A shaped link of the in-memory twin: a thread that delivers each message when it is due.

Serves one sender and one life of its receiver. Knows nothing of greetings: ``deliver`` does.
"""

import threading
from collections.abc import Callable

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import PeerLost, TransportClosed
from holdfast.transport.base import Tag
from holdfast.transport.frame import FRAME_HEADER_BYTES
from holdfast.transport.link_shaping import LinkShaping
from holdfast.transport.mailbox import Mailbox
from holdfast.transport.outbox import Outbox, OutboxRules, Waiting


class InFlight(Waiting):
    """One message on its way. As long as over TCP, and so never of no bytes at all."""

    __slots__ = ("bundle_size", "sent_in", "sent_ns", "tag", "tensor")

    def __init__(
        self, epoch: int, tag: Tag, tensor: Tensor, sent_ns: int, bundle_size: int = 1
    ) -> None:
        super().__init__(
            None if tag.channel.is_timeless else epoch, FRAME_HEADER_BYTES + tensor.nbytes
        )
        self.sent_in, self.sent_ns = epoch, sent_ns
        self.tag, self.tensor, self.bundle_size = tag, tensor, bundle_size


class DelayedLink(Outbox[InFlight]):
    def __init__(
        self,
        me: WorkerId,
        inbox: Mailbox,
        *,
        deliver: Callable[[Mailbox, int, Tag, Tensor, int, int], None],
        rules: OutboxRules,
        shaping: LinkShaping,
    ) -> None:
        super().__init__(me, inbox.me, rules, shaping)
        self._inbox, self._deliver = inbox, deliver
        name = f"holdfast-{me}-line-{inbox.me}"
        self._carrier = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._carrier.start()

    def send(self, message: InFlight) -> None:
        with self._changed:
            self._check()
            self._wait_for_room(message.sent_in)
            self._enqueue(message)

    def abandon(self, reason: str) -> None:
        with self._changed:
            self._break(reason)
        self._inbox.wake()  # the thread may wait for room there

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._inbox.wake()

    def join(self, timeout_s: float) -> None:
        self._carrier.join(timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether the peer ended, or refused what was delivered."""
        return self._broken is not None or self._inbox.closed

    @property
    def is_alive(self) -> bool:
        return self._carrier.is_alive()

    # --- the carrier thread ---

    def _run(self) -> None:
        try:
            while self._carry_next():
                pass
        except TransportClosed:
            pass
        except PeerLost as error:
            with self._changed:
                self._break(str(error))

    def _carry_next(self) -> bool:
        """False at its end. The message is a local: its tensor is let go when it has left."""
        message = self._next()
        if message is None:
            return False
        self._inbox.room.wait(self._me, threading.TIMEOUT_MAX, self._check)
        self._deliver(
            self._inbox,
            message.sent_in,
            message.tag,
            message.tensor,
            message.sent_ns,
            message.bundle_size,
        )
        self._has_left(message.num_bytes)
        return True
