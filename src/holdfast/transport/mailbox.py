"""The receiving side of every transport: what has arrived, who waits for it, who may still deliver.

Deliverers call ``welcome``, ``put``, ``wait_for_room`` and ``lose``; the worker calls the rest.
Knows nothing of sockets.
"""

import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, monotonic_ns

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, PeerLost, ProtocolError, TransportClosed, WaitTimeout
from holdfast.transport.base import Channel, Statistics, Tag, TransferTime

# A step is forgotten when it is redone; anything older than this many of them is long gone.
_FORGOTTEN_STEPS_KEPT = 1024
_TRANSFERS_KEPT = 8192  # far more than a step has; nobody may be asking for them

_Key = tuple[WorkerId, Tag]


@dataclass(slots=True)
class _Source:
    """Who may deliver under one name; nobody, if ``connection`` is None: it was dropped.

    Whoever comes back must be in ``epoch`` or a later one.
    """

    connection: object
    epoch: int
    session: int
    num_received: int = 0

    def counts(self, sequence: int) -> bool:
        """Whether the message with this number is new; they come in order."""
        if sequence > self.num_received + 1:
            raise ProtocolError(f"message {sequence} came after message {self.num_received}")
        is_new = sequence > self.num_received
        self.num_received = max(self.num_received, sequence)
        return is_new


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
        self._inbox_bytes, self._reconnect_limit_s = inbox_bytes, reconnect_limit_s
        self._interrupted_before = 0  # nobody waits in an epoch before this one
        self._changed = threading.Condition(threading.Lock())
        self._messages: dict[_Key, deque[Tensor]] = {}
        self._parked: defaultdict[int, list[tuple[_Key, Tensor]]] = defaultdict(list)
        self._forgotten: dict[int, int] = {}  # step -> last attempt to refuse
        self._unread_bytes: Counter[WorkerId] = Counter()
        self._num_waiting_for: Counter[WorkerId] = Counter()
        self._num_paused = 0
        self._num_held_up = 0
        self._sources: dict[WorkerId, _Source] = {}
        self._lost: dict[WorkerId, str] = {}
        self._away: dict[WorkerId, tuple[float, str]] = {}  # lost at this time, unless it is back
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
            tensor = queue.popleft()
            if not queue:
                del self._messages[key]
            self._unread_bytes[source] -= tensor.nbytes
            if self._num_paused:
                self._changed.notify_all()
            return tensor

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
            known = {source: _Source(None, 0, 0) for source in self._lost} | self._sources
            gone = {name: source for name, source in known.items() if is_gone(name, source.epoch)}
            for name, source in gone.items():
                self._sources[name] = _Source(None, max(source.epoch, self.epoch), 0)
                self._lost.pop(name, None)
                self._away.pop(name, None)
            if gone:
                self._keep_only([entry for entry in self._unread() if entry[1][0] not in gone])
            return [s.connection for s in gone.values() if s.connection is not None]

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._keep_only([])

    def statistics(self) -> Statistics:
        with self._changed:
            return Statistics(
                received_messages=self._received_messages,
                received_bytes=self._received_bytes,
                unread_bytes=self._unread_bytes.total(),
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
            source = self._sources.get(name) or _Source(None, 0, 0)
            if epoch < source.epoch:
                raise EpochPast(
                    f"worker {name} called with epoch {epoch}, but it was dropped or a later "
                    f"one of that name called in epoch {source.epoch}"
                )
            is_same = source.connection is not None and source.session == session
            if resumes and not is_same:
                raise ProtocolError(f"worker {name} goes on with a session that is over")
            num_received = source.num_received if is_same else 0
            self._sources[name] = _Source(connection, epoch, session, num_received)
            self._lost.pop(name, None)
            self._away.pop(name, None)
            return num_received, source.connection, not is_same

    def put(
        self,
        source: WorkerId,
        connection: object,
        epoch: int,
        tag: Tag,
        tensor: Tensor,
        *,
        sent_ns: int,
        sequence: int | None = None,
    ) -> bool:
        """Deliver. True if the source should now ``wait_for_room`` before it delivers more."""
        channel, took_ns = tag.channel, monotonic_ns() - sent_ns
        with self._changed:
            known = self._sources.get(source)
            if known is None or known.connection is not connection:
                raise ProtocolError(f"another connection now speaks for worker {source}")
            if sequence is not None and not known.counts(sequence):
                return False  # it has come already
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
                self._store(epoch, (source, tag), tensor)
                self._changed.notify_all()
            return self.is_full(source)

    def is_full(self, source: WorkerId) -> bool:
        """Should ``source`` wait before it delivers more?

        Never while it is waited for, so that a full inbox cannot keep back the very message
        that would empty it; nor while our own worker is held up in a send and so cannot
        read, or a circle of full workers would wait for each other.
        """
        return (
            self._unread_bytes[source] > self._inbox_bytes
            and not self._num_waiting_for[source]
            and not self._num_held_up
            and not self.closed
        )

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Our own worker waits in a send."""
        with self._changed:
            self._num_held_up += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._num_held_up -= 1

    def wait_for_room(
        self, source: WorkerId, timeout_s: float, check: Callable[[], None] | None = None
    ) -> None:
        """Return when ``source`` may deliver more; ``check`` may raise to end the wait."""
        deadline_s = monotonic() + timeout_s
        with self._changed:
            self._num_paused += 1
            try:
                while self.is_full(source):
                    if check is not None:
                        check()
                    left_s = deadline_s - monotonic()
                    if left_s <= 0:
                        raise WaitTimeout(
                            f"worker {source} waited {timeout_s} s for room at worker {self.me}, "
                            f"which has {self._unread_bytes[source]} unread bytes of it"
                        )
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            finally:
                self._num_paused -= 1

    def lose(
        self, source: WorkerId, connection: object, reason: str, *, may_return: bool = False
    ) -> None:
        """``source`` will deliver no more, unless another connection has taken over.

        Or, if it ``may_return``, unless one does within the reconnect limit.
        """
        with self._changed:
            known = self._sources.get(source)
            if known is not None and known.connection is not connection:
                return
            if may_return:
                self._away[source] = (monotonic() + self._reconnect_limit_s, reason)
            else:
                self._lost[source] = reason
            self._changed.notify_all()

    def expect(self, source: WorkerId) -> None:
        """``source`` is said to be alive: wait for it even if an earlier connection was lost."""
        with self._changed:
            self._lost.pop(source, None)
            self._away.pop(source, None)

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
        for source in sources:
            self._num_waiting_for[source] += 1
        if self._num_paused:  # whoever is waited for may go on
            self._changed.notify_all()
        try:
            while found is None:
                left_s = deadline_s - monotonic()
                if left_s <= 0:
                    raise WaitTimeout(f"{self._story(wanted)} for {timeout_s} s: it did not come")
                self._changed.wait(min(left_s, self._return_s(sources), threading.TIMEOUT_MAX))
                found = self._look(wanted, epoch)
        finally:
            for source in sources:
                self._num_waiting_for[source] -= 1
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
        for source, tag in wanted if self._lost or self._away else ():
            if reason := self._why_lost(source):
                raise PeerLost(
                    f"worker {self.me} cannot get {tag}: worker {source} {reason}", str(source)
                )
        return None

    def _why_lost(self, source: WorkerId) -> str | None:
        if source in self._lost:
            return self._lost[source]
        until_s, reason = self._away.get(source, (math.inf, ""))
        if monotonic() < until_s:
            return None
        return f"{reason}, and was not back in {self._reconnect_limit_s:g} s"

    def _return_s(self, sources: Iterable[WorkerId]) -> float:
        """How long it may be until the first one that is away counts as lost."""
        if not self._away:
            return math.inf
        until_s = [self._away[source][0] for source in sources if source in self._away]
        return max(0.0, min(until_s, default=math.inf) - monotonic())

    def _story(self, wanted: Sequence[_Key]) -> str:
        names = " or ".join(f"{tag} from worker {source}" for source, tag in wanted)
        return f"worker {self.me} waited for {names}"

    def _is_forgotten(self, epoch: int, tag: Tag) -> bool:
        """In a later epoch the same step may be tried from the start: that is not forgotten."""
        gone = tag.attempt <= self._forgotten.get(tag.step, -1)
        return gone and epoch <= self.epoch and not tag.channel.is_timeless

    def _unread(self) -> list[tuple[int, _Key, Tensor]]:
        here = [
            (self.epoch, key, tensor) for key, queue in self._messages.items() for tensor in queue
        ]
        return here + [
            (epoch, key, tensor) for epoch, rest in self._parked.items() for key, tensor in rest
        ]

    def _keep_only(self, entries: list[tuple[int, _Key, Tensor]]) -> int:
        """Returns how many messages were dropped."""
        num_before = sum(map(len, self._messages.values())) + sum(map(len, self._parked.values()))
        self._messages.clear()
        self._parked.clear()
        self._unread_bytes.clear()
        for epoch, key, tensor in entries:
            self._store(epoch, key, tensor)
        self._changed.notify_all()
        return num_before - len(entries)

    def _store(self, epoch: int, key: _Key, tensor: Tensor) -> None:
        self._unread_bytes[key[0]] += tensor.nbytes
        if epoch > self.epoch:
            self._parked[epoch].append((key, tensor))
        else:
            self._messages.setdefault(key, deque()).append(tensor)
