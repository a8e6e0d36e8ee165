"""The in-memory twin: workers are threads of one process, a closed transport is a dead worker.

Same promises as over TCP. Tensors are handed over by reference: no copy is made
of what neither side may change.
"""

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from time import monotonic, monotonic_ns

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, PeerLost, ProtocolError, TransportClosed
from holdfast.transport.base import ALONE, Bundle, Limits, SocketAddress, Statistics, Tag
from holdfast.transport.frame import encode_frame, wire_form
from holdfast.transport.link_shaping import UNSHAPED, LinkShaping
from holdfast.transport.local.delayed_link import DelayedLink, InFlight
from holdfast.transport.mailbox import Mailbox
from holdfast.transport.receiving import MailboxTransport

_JOIN_LIMIT_S = 5.0
_NOWHERE: SocketAddress = ("", 0)


class LocalHub:
    """Where the workers of one process find each other's mailboxes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held until all others know who has come or gone
        self._mailboxes: dict[WorkerId, Mailbox] = {}

    def join(self, mailbox: Mailbox) -> None:
        """Take the place of an earlier worker of the same name, if there was one."""
        with self._lock:
            self._mailboxes[mailbox.me] = mailbox
            for other in self.mailboxes():
                other.expect(mailbox.me)

    def leave(self, mailbox: Mailbox) -> None:
        with self._lock:
            if self._mailboxes.get(mailbox.me) is not mailbox:
                return  # it has left already, and another may have taken its place since
            del self._mailboxes[mailbox.me]
            for other in self.mailboxes():
                other.lose(mailbox.me, mailbox, "closed its transport")

    def find(self, worker: WorkerId) -> Mailbox | None:
        return self._mailboxes.get(worker)

    def mailboxes(self) -> list[Mailbox]:
        with self._lock:
            return list(self._mailboxes.values())


class LocalTransport(MailboxTransport):
    def __init__(
        self, me: WorkerId, hub: LocalHub, *, epoch: int = 0, limits: Limits | None = None
    ) -> None:
        super().__init__(me, epoch=epoch, limits=limits)
        self._hub = hub
        self._greeted: set[Mailbox] = set()
        self._lines_lock = threading.Lock()  # for the three below
        self._shapings: dict[WorkerId, LinkShaping] = {}
        # to peers to whom the link is, or was, shaped
        self._delayed: dict[Mailbox, DelayedLink] = {}
        self._past_links: list[DelayedLink] = []  # kept until their threads have ended
        self._sent_lock = threading.Lock()
        self._sent_messages = self._sent_bytes = 0
        hub.join(self._mailbox)

    def listen(self) -> SocketAddress:
        """The hub knows where everyone is."""
        return _NOWHERE

    def connect(self, addresses: Mapping[WorkerId, SocketAddress]) -> None:
        """Whoever joins the hub is known to all, and is taken to be alive."""

    def send(self, to: WorkerId, tag: Tag, tensor: Tensor, bundle: Bundle = ALONE) -> None:
        sent_ns, epoch = monotonic_ns(), self._mailbox.epoch
        tensor = wire_form(tensor)
        # The twin refuses the same.
        encode_frame(epoch, tag, tensor, self._limits.payload_bytes, bundle=bundle)
        if bundle.requires_grad:
            tensor.requires_grad_()
        self._check_open()
        inbox = self._hub.find(to)
        if inbox is None:
            raise PeerLost(f"worker {self.me} cannot send {tag}: worker {to} is not there", str(to))
        if link := self._link_to(inbox):
            link.send(InFlight(epoch, tag, tensor, sent_ns, bundle.size))
        else:
            if inbox.room.is_full(self.me):
                self._wait_for_room(inbox, epoch)
            self._deliver(inbox, epoch, tag, tensor, sent_ns, bundle.size)
        with self._sent_lock:
            self._sent_messages += 1
            self._sent_bytes += tensor.nbytes

    def advance(self, epoch: int) -> None:
        self._mailbox.advance(epoch)
        self._greeted = set()  # others may have dropped us meanwhile: greet them again
        for link in self._living_links():
            link.drop_before(epoch)
        self._wake_own_sends()

    def interrupt(self, before_epoch: int) -> None:
        self._mailbox.interrupt(before_epoch)
        for link in self._living_links():
            link.wake()
        self._wake_own_sends()

    def disconnect(self, keep: Collection[WorkerId]) -> None:
        """The hub still knows where everyone is: there is no address to drop."""
        self._mailbox.drop(lambda peer, _: peer not in keep)
        # A new set: other threads may be looking at the old one.
        self._greeted = {inbox for inbox in self._greeted.copy() if inbox.me in keep}
        for link in self._living_links():
            if link.peer not in keep:
                link.abandon("it was disconnected")
        self._living_links()

    def shape_link(self, peer: WorkerId, delay_s: float = 0.0, bytes_s: float = math.inf) -> None:
        shaping = LinkShaping.checked(peer, delay_s, bytes_s)
        with self._lines_lock:
            self._shapings[peer] = shaping
            for link in self._delayed.values():
                if link.peer == peer:
                    link.shape_link(shaping)

    def flush(self, timeout_s: float) -> None:
        """Only on a shaped link is anything left to leave: else ``send`` delivers."""
        deadline_s = monotonic() + timeout_s
        self._check_open()
        for link in self._living_links():
            link.flush(deadline_s)

    def close(self) -> None:
        self._mailbox.close()
        with self._lines_lock:  # none is made once the mailbox is closed
            links = [*self._delayed.values(), *self._past_links]
        for link in links:
            link.close()
        deadline_s = monotonic() + _JOIN_LIMIT_S
        for link in links:  # what they deliver comes before the news that we left
            link.join(max(0.0, deadline_s - monotonic()))
        self._hub.leave(self._mailbox)
        self._wake_own_sends()

    @property
    def statistics(self) -> Statistics:
        received = self._mailbox.statistics()
        with self._sent_lock:
            return replace(received, sent_messages=self._sent_messages, sent_bytes=self._sent_bytes)

    def _wait_for_room(self, inbox: Mailbox, epoch: int) -> None:
        def check() -> None:
            self._check_open()
            if not self._mailbox.may_wait_in(epoch):
                raise EpochPast(f"worker {self.me} waited for room in epoch {epoch}, which ended")

        with self._mailbox.room.held_up():
            inbox.room.wait(self.me, self._limits.send_limit_s, check)

    def _link_to(self, inbox: Mailbox) -> DelayedLink | None:
        """None if nothing is, or has been, in the way of what is sent now."""
        if not self._shapings:  # as good as always
            return None
        with self._lines_lock:
            link = self._delayed.get(inbox)
            if link is not None:
                return link if link.holds_up else None
            shaping = self._shapings.get(inbox.me, UNSHAPED)
            if shaping == UNSHAPED:
                return None
            return self._new_link(inbox, shaping)

    def _new_link(self, inbox: Mailbox, shaping: LinkShaping) -> DelayedLink:
        """With their lock held."""
        self._check_open()
        link = self._delayed[inbox] = DelayedLink(
            self.me,
            inbox,
            deliver=self._deliver,
            rules=self._rules,
            shaping=shaping,
        )
        link.start()
        return link

    def _living_links(self) -> list[DelayedLink]:
        """Those that are over are let go of: a peer that comes back gets a new one."""
        with self._lines_lock:
            over = [inbox for inbox, link in self._delayed.items() if link.is_over]
            for inbox in over:
                self._delayed[inbox].abandon("it ended")
                self._past_links.append(self._delayed.pop(inbox))
            self._past_links = [link for link in self._past_links if link.is_alive]
            return list(self._delayed.values())

    def _deliver(
        self, inbox: Mailbox, epoch: int, tag: Tag, tensor: Tensor, sent_ns: int, bundle_size: int
    ) -> None:
        try:
            if inbox not in self._greeted:
                # The newest epoch: a held message may be of an earlier one, and timeless.
                newest = max(epoch, self._mailbox.epoch)
                inbox.welcome(self.me, newest, self._mailbox, resumes=False)
                self._greeted.add(inbox)
            inbox.put(
                self.me,
                self._mailbox,
                epoch,
                tag,
                tensor,
                sent_ns=sent_ns,
                bundle_size=bundle_size,
            )
        except ProtocolError as error:
            raise PeerLost(
                f"worker {inbox.me} refused worker {self.me}: {error}", str(inbox.me)
            ) from error
        if inbox.closed:
            raise PeerLost(
                f"worker {inbox.me} closed its transport before {tag} could be sent", str(inbox.me)
            )

    def _check_open(self) -> None:
        if self._mailbox.closed:
            raise TransportClosed(f"the transport of worker {self.me} is closed")

    def _wake_own_sends(self) -> None:
        for inbox in self._hub.mailboxes():
            inbox.wake()
