"""The receiving side of every transport: what has arrived, who waits for it, who may still deliver.

Deliverers call ``welcome``, ``put`` and ``lose``, and wait for ``room``; the worker calls the rest.
Knows nothing of sockets.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from time import monotonic, monotonic_ns

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, PeerLost, TransportClosed, WaitTimeout
from holdfast.transport.base import Channel, Statistics, Tag, TransferTime
from holdfast.transport.room import Room
from holdfast.transport.senders import Senders

# A step is forgotten when it is redone; anything older than this many of them is long gone.
_FORGOTTEN_STEPS_KEPT = 1024
_TRANSFERS_KEPT = 8192  # far more than a step has; nobody may be asking for them

_Key = tuple[WorkerId, Tag]
_Unread = tuple[Tensor, int]  # and how many tensors its bundle has


class Mailbox:
    def __init__(
        self,
        me: WorkerId,
        *,
        epoch: int,
        inbox_bytes: int,
        reconnect_limit_s: float = 10.0,
    ) -> None:
        self.me = me
        self.epoch = epoch  # written under the lock; others may read it at any time
        self.closed = False  # likewise
        self._interrupted_before = 0  # nobody waits in an epoch before this one
        self._changed = threading.Condition(threading.Lock())
        self._messages: dict[_Key, deque[_Unread]] = {}
        self._parked: defaultdict[int, list[tuple[_Key, _Unread]]] = defaultdict(list)
        self._forgotten: dict[int, int] = {}  # step -> last attempt to refuse
        self.room = Room(me, inbox_bytes, self._changed)
        self._senders = Senders(reconnect_limit_s)
        self._received_messages = self._received_bytes = 0
        self._refused_past_epoch = self._refused_forgotten = self._refused_copies = 0
        self._expects_copies = True
        # Source, channel, bytes, nanoseconds: what is taken off a deque needs no lock.
        self._transfers: deque[tuple[WorkerId, Channel, int, int]] = deque(maxlen=_TRANSFERS_KEPT)

    # --- for the worker ---

    def receive(self, source: WorkerId, tag: Tag, timeout_s: float) -> Tensor:
        key = (source, tag)
        with self._changed:
            self._wait((key,), timeout_s)
            queue = self._messages[key]
            tensor, _ = queue.popleft()
            if not queue:
                del self._messages[key]
            self.room.unread_bytes[source] -= tensor.nbytes
            self.room.changed()
            return tensor

    def bundle_size(self, source: WorkerId, tag: Tag, timeout_s: float) -> int:
        """Of the next message of ``tag``, which is waited for and stays."""
        key = (source, tag)
        with self._changed:
            self._wait((key,), timeout_s)
            return self._messages[key][0][1]

    def wait_any(self, wanted: Sequence[_Key], timeout_s: float) -> int:
        if not wanted:
            raise ValueError("wait_any of nothing would never end")
        with self._changed:
            return self._wait(wanted, timeout_s)

    def has(self, source: WorkerId, tag: Tag) -> bool:
        return (source, tag) in self._messages  # one look at a dict needs no lock

    def take_transfers(self) -> list[TransferTime]:
        taken = [self._transfers.popleft() for _ in range(len(self._transfers))]
        return [
            TransferTime(source, channel, num_bytes, took_ns / 1e9)
            for source, channel, num_bytes, took_ns in taken
        ]

    def forget(self, step: int, attempt: int) -> None:
        with self._changed:
            last_attempt = max(attempt, self._forgotten.pop(step, 0))
            self._forgotten[step] = last_attempt
            if len(self._forgotten) > _FORGOTTEN_STEPS_KEPT:
                del self._forgotten[next(iter(self._forgotten))]
            kept = [e for e in self._unread() if not self._is_forgotten(e[0], e[1][1])]
            self._refused_forgotten += self._keep_only(kept)

    def advance(self, epoch: int) -> None:
        with self._changed:
            if epoch < self.epoch:
                raise EpochPast(f"worker {self.me} is at epoch {self.epoch}, cannot go to {epoch}")
            kept = [e for e in self._unread() if e[0] >= epoch or e[1][1].channel.is_timeless]
            if epoch > self.epoch:
                self._forgotten.clear()  # whoever goes back to a checkpoint tries the step anew
            self.epoch = epoch
            self._refused_past_epoch += self._keep_only(kept)

    def drop_copies(self, keep: WorkerId | None) -> None:
        with self._changed:
            kept = [e for e in self._unread() if e[1][0] == keep or not e[1][1].channel.is_timeless]
            self._refused_copies += self._keep_only(kept)

    def expect_copies(self, expected: bool) -> None:
        with self._changed:
            self._expects_copies = expected
        if not expected:
            self.drop_copies(None)

    def interrupt(self, before_epoch: int) -> None:
        with self._changed:
            self._interrupted_before = max(self._interrupted_before, before_epoch)
            self._changed.notify_all()

    def may_wait_in(self, epoch: int) -> bool:
        return epoch == self.epoch >= self._interrupted_before  # two looks need no lock

    def drop(self, is_gone: Callable[[WorkerId, int], bool]) -> list[object]:
        """Let go of all from sources of which ``is_gone`` (its name, the epoch of its hello).

        Returns their connections, on which nothing is taken any more.
        """
        with self._changed:
            gone = self._senders.drop(is_gone, self.epoch)
            if gone:
                self._keep_only([entry for entry in self._unread() if entry[1][0] not in gone])
            return [connection for connection in gone.values() if connection is not None]

    def close(self) -> None:
        with self._changed:
            self.closed = self.room.is_closed = True
            self._keep_only([])

    def statistics(self) -> Statistics:
        with self._changed:
            return Statistics(
                received_messages=self._received_messages,
                received_bytes=self._received_bytes,
                unread_bytes=self.room.unread_bytes.total(),
                refused_past_epoch=self._refused_past_epoch,
                refused_forgotten=self._refused_forgotten,
                refused_copies=self._refused_copies,
            )

    # --- for deliverers ---

    def welcome(
        self, name: WorkerId, epoch: int, connection: object, session: int = 0, *, resumes: bool
    ) -> tuple[int, object, bool]:
        """From now on ``name`` delivers on ``connection`` only: it is back, if it was lost.

        Returns how many messages of the session have come, the connection it had before (or
        None), and whether that was of another session.
        """
        with self._changed:
            return self._senders.welcome(name, epoch, connection, session, resumes=resumes)

    def put(
        self,
        source: WorkerId,
        connection: object,
        epoch: int,
        tag: Tag,
        tensor: Tensor,
        *,
        sent_ns: int,
        bundle_size: int = 1,
        sequence: int | None = None,
    ) -> bool:
        """Deliver. True if the source should now wait for room before it delivers more."""
        channel, took_ns = tag.channel, monotonic_ns() - sent_ns
        with self._changed:
            if not self._senders.is_new(source, connection, sequence):
                return False
            if channel.is_timed:
                self._transfers.append((source, channel, tensor.nbytes, took_ns))
            if channel.is_timeless:
                epoch = self.epoch
            if channel is Channel.PROBE:
                pass  # it has done what it came for
            elif epoch < self.epoch:
                self._refused_past_epoch += 1
            elif self._is_forgotten(epoch, tag):
                self._refused_forgotten += 1
            elif channel.is_timeless and not self._expects_copies:
                self._refused_copies += 1
            elif not self.closed:
                self._received_messages += 1
                self._received_bytes += tensor.nbytes
                self._store(epoch, (source, tag), (tensor, bundle_size))
                self._changed.notify_all()
            return self.room.is_full(source)

    def lose(
        self, source: WorkerId, connection: object, reason: str, *, may_return: bool = False
    ) -> None:
        """``source`` will deliver no more, unless another connection has taken over.

        Or, if it ``may_return``, unless one does within the reconnect limit.
        """
        with self._changed:
            if self._senders.lose(source, connection, reason, may_return=may_return):
                self._changed.notify_all()

    def expect(self, source: WorkerId) -> None:
        """``source`` is said to be alive: wait for it even if an earlier connection was lost."""
        with self._changed:
            self._senders.expect(source)

    def wake(self) -> None:
        """Let everyone who waits check again."""
        with self._changed:
            self._changed.notify_all()

    # --- with the lock held ---

    def _wait(self, wanted: Sequence[_Key], timeout_s: float) -> int:
        epoch = self.epoch
        found = self._look(wanted, epoch)
        if found is not None:
            return found
        deadline_s = monotonic() + timeout_s
        sources = {source for source, _ in wanted}
        with self.room.waited_for(sources):
            while found is None:
                left_s = deadline_s - monotonic()
                if left_s <= 0:
                    raise WaitTimeout(f"{self._story(wanted)} for {timeout_s} s: it did not come")
                left_s = min(left_s, self._senders.return_s(sources), threading.TIMEOUT_MAX)
                self._changed.wait(left_s)
                found = self._look(wanted, epoch)
        return found

    def _look(self, wanted: Sequence[_Key], epoch: int) -> int | None:
        if self.closed:
            raise TransportClosed(f"{self._story(wanted)}, but its transport is closed")
        if not self.may_wait_in(epoch):
            newest = max(self.epoch, self._interrupted_before)
            raise EpochPast(
                f"{self._story(wanted)} in epoch {epoch}, which ended: the newest is {newest}"
            )
        for index, key in enumerate(wanted):
            if key in self._messages:
                return index
        for source, tag in () if self._senders.are_all_here else wanted:
            if reason := self._senders.why_lost(source):
                raise PeerLost(
                    f"worker {self.me} cannot get {tag}: worker {source} {reason}", str(source)
                )
        return None

    def _story(self, wanted: Sequence[_Key]) -> str:
        names = " or ".join(f"{tag} from worker {source}" for source, tag in wanted)
        return f"worker {self.me} waited for {names}"

    def _is_forgotten(self, epoch: int, tag: Tag) -> bool:
        """In a later epoch the same step may be tried from the start: that is not forgotten."""
        gone = tag.attempt <= self._forgotten.get(tag.step, -1)
        return gone and epoch <= self.epoch and tag.channel.is_of_an_attempt

    def _unread(self) -> list[tuple[int, _Key, _Unread]]:
        here = [(self.epoch, key, one) for key, queue in self._messages.items() for one in queue]
        return here + [
            (epoch, key, one) for epoch, rest in self._parked.items() for key, one in rest
        ]

    def _keep_only(self, entries: list[tuple[int, _Key, _Unread]]) -> int:
        """Returns how many messages were dropped."""
        num_before = sum(map(len, self._messages.values())) + sum(map(len, self._parked.values()))
        self._messages.clear()
        self._parked.clear()
        self.room.unread_bytes.clear()
        for epoch, key, one in entries:
            self._store(epoch, key, one)
        self._changed.notify_all()
        return num_before - len(entries)

    def _store(self, epoch: int, key: _Key, unread: _Unread) -> None:
        self.room.unread_bytes[key[0]] += unread[0].nbytes
        if epoch > self.epoch:
            self._parked[epoch].append((key, unread))
        else:
            self._messages.setdefault(key, deque()).append(unread)
