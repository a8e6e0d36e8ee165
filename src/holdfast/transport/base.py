"""Moving tensors between workers: the promises, not the sockets.

A message is a tensor under a :class:`Tag`. Receivers ask for a tag, so the order in which
messages arrive never matters; messages of one tag keep their order. Knows nothing of pipelines.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError

SocketAddress = tuple[str, int]


class Channel(IntEnum):
    """What a tensor is for."""

    ACTIVATION = 1  # output of a stage, to the next one
    GRADIENT = 2  # gradient for a stage's input, to the stage before
    PARTIAL = 3  # one member's share of a reduction, to the owner of the shard
    REDUCED = 4  # a reduced shard, from its owner to every member
    NOTES = 5  # small facts that travel with a reduction
    VERDICT = 6  # norms of a stage's gradient, to every other stage
    BUFFERS = 7  # changes of a stage's buffers, to its other holders
    STATE = 8  # a worker's state, to a joiner
    UPDATE = 9  # a committed update of a stage, to a joiner
    RESULT = 10  # a reduced gradient, to a holder that has none
    PROBE = 11  # times a link: dropped on arrival, whatever its epoch
    VALIDATION = 12  # output of a stage in a validation, to the next one

    @property
    def is_timeless(self) -> bool:
        """Whether what it carries is true in every epoch: it is never refused, nor made to wait."""
        return self in _TIMELESS

    @property
    def is_of_an_attempt(self) -> bool:
        """Whether what it carries is void when its step is tried again."""
        return self not in (*_TIMELESS, Channel.VALIDATION)

    @property
    def is_timed(self) -> bool:
        """Whether ``take_transfers`` tells of it: what a step waits for, and probes."""
        return self in _TIMED


_TIMELESS = (Channel.STATE, Channel.UPDATE)
_TIMED = (
    Channel.ACTIVATION,
    Channel.GRADIENT,
    Channel.PARTIAL,
    Channel.REDUCED,
    Channel.RESULT,
    Channel.PROBE,
)


class Tag(NamedTuple):
    """Names one message. ``part`` tells apart several tensors of one (channel, step, microbatch).

    ``attempt`` rises when a step is taken back and redone, so that tensors of
    the abandoned attempt are never mistaken for those of the new one.
    """

    channel: Channel
    step: int
    attempt: int = 0
    microbatch: int = 0
    part: int = 0

    def __str__(self) -> str:
        return (
            f"{self.channel.name} of step {self.step} attempt {self.attempt} "
            f"micro-batch {self.microbatch} part {self.part}"
        )


MAX_BUNDLE = 16


class Bundle(NamedTuple):
    """How a tensor travels: alone, or as one of several that cross a boundary together."""

    size: int = 1
    """Tensors in all, of which ``part`` of the tag is one, from 0 on. At most MAX_BUNDLE."""

    requires_grad: bool = False
    """Of an activation, as the sender had it and the receiver gets it; of all else False."""


ALONE = Bundle()


class TransferTime(NamedTuple):
    """How long one message was under way.

    From the call of ``send`` until its last byte was here: time in the outbox counts, time
    in the mailbox does not. A full inbox shows in what comes after it. The two ends' clocks
    differ by an offset if they are two machines: compare a link with its own baseline only.
    Then it may be negative, too.
    """

    source: WorkerId
    channel: Channel
    num_bytes: int
    took_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much may wait, and for how long. Byte limits can be exceeded by one message."""

    inbox_bytes: int = 256 << 20
    """Unread bytes of one source above which no more is taken from it, unless it is waited for
    or its receiver is itself held up in a send (else full workers would wait for each other)."""

    outbox_bytes: int = 256 << 20
    """Bytes waiting to leave for one peer above which ``send`` waits for room."""

    send_limit_s: float = 60.0
    """Longest wait of ``send`` for room."""

    connect_limit_s: float = 5.0
    """Longest wait for a connection, and for its whole handshake."""

    reconnect_limit_s: float = 10.0
    """A peer whose connection broke, and that is not back after this long, is lost."""

    silence_limit_s: float = 120.0
    """A peer's machine that acknowledges nothing for this long is lost."""

    payload_bytes: int = 4 << 30
    """Largest tensor accepted."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"transport.{name}={getattr(self, name)}: must be above 0")
        if self.silence_limit_s < self.send_limit_s:
            raise ConfigError(
                f"transport.silence_limit_s={self.silence_limit_s} must be at least "
                f"send_limit_s={self.send_limit_s}: to the kernel, a full receiver is a silent one"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """What a transport has done so far, and holds now."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0  # accepted ones
    received_bytes: int = 0
    unread_bytes: int = 0  # held now, parked ones included
    refused_past_epoch: int = 0  # messages
    refused_forgotten: int = 0  # messages
    refused_copies: int = 0  # messages of timeless channels that were of no use any more
    refused_connections: int = 0  # closed for what they sent, or for a newer one of that name
    reconnections: int = 0  # connections to peers that were made anew
    damaged_messages: int = 0  # whose checksum was wrong: they were asked for again


class Transport(Protocol):
    """Every blocking call ends by its limit, and at once when the transport is closed.

    A broken connection is made anew, and what had not arrived is sent again: nobody notices
    unless the peer stays away for longer than the reconnect limit. Then it is gone.
    """

    def listen(self) -> SocketAddress:
        """Start to take what others send. Returns the host and port to give to them."""
        ...

    def connect(self, addresses: Mapping[WorkerId, SocketAddress]) -> None:
        """Say where peers are; connections are made at the first send to each.

        A peer named here is taken to be alive: one that was lost may be sent to and waited
        for again, and one whose address changed is a new process. Others stay as they were.
        """
        ...

    def send(self, to: WorkerId, tag: Tag, tensor: Tensor, bundle: Bundle = ALONE) -> None:
        """Hand over ``tensor``; neither side may change its contents afterwards.

        Returns at once unless more than the outbox limit is waiting to leave for ``to``
        (back-pressure); then it waits for room, at most the send limit. Returning says
        nothing of arrival. Raises WaitTimeout, TransportClosed, EpochPast if it would wait and
        ``advance`` or ``interrupt`` came, or PeerLost if ``to`` is gone or has no known address.
        """
        ...

    def send_all(self, to: WorkerId, tag: Tag, tensors: Sequence[Tensor]) -> None:
        """Some tensors, at least one, as one bundle: the receiver needs to know nothing of them.

        ``tag``: of the first, part 0. The others are parts 1, 2, ... of it.
        """
        ...

    def receive(self, source: WorkerId, tag: Tag, timeout_s: float) -> Tensor:
        """The next message of ``tag`` from ``source``: contiguous, without autograd history.

        Raises WaitTimeout, TransportClosed, EpochPast if ``advance`` came meanwhile or the epoch
        is interrupted, or PeerLost if ``source`` is gone and did not leave this message.
        """
        ...

    def receive_all(self, source: WorkerId, tag: Tag, timeout_s: float) -> tuple[Tensor, ...]:
        """The bundle whose first tensor is the next message of ``tag``. Same errors.

        Activations have ``requires_grad`` as their sender had it.
        """
        ...

    def wait_any(self, wanted: Sequence[tuple[WorkerId, Tag]], timeout_s: float) -> int:
        """Index of the first of ``wanted`` that can be received without waiting.

        Same errors; PeerLost as soon as one of the sources is gone and none of ``wanted`` is here.
        """
        ...

    def has(self, source: WorkerId, tag: Tag) -> bool:
        """Whether a message of ``tag`` from ``source`` can be received without waiting."""
        ...

    def forget(self, step: int, attempt: int) -> None:
        """Drop messages, here or still to come, of ``step`` with this attempt or an earlier one.

        In this epoch only, and only those of channels that are of an attempt at a step.
        """
        ...

    def advance(self, epoch: int) -> None:
        """Enter a later epoch: every wait begun in an earlier one ends with EpochPast.

        Messages of earlier epochs, here, still to leave or still to come, are refused; those
        of this epoch that came early become readable. Going back raises EpochPast. Messages of
        timeless channels are readable in every epoch.
        """
        ...

    def interrupt(self, before_epoch: int) -> None:
        """End every wait with EpochPast, now and until ``advance`` to ``before_epoch`` or later.

        So does every ``receive`` and ``wait_any``, even of what is here; a ``send`` that need not
        wait goes out. From any thread. The latest epoch of all interrupts counts.
        """
        ...

    def disconnect(self, keep: Collection[WorkerId]) -> None:
        """Hang up on every peer but these, and let go of all that is held for or from the others.

        Call it after ``advance``: whoever comes back under a dropped name must be in this epoch
        or a later one. One that was itself dropped while it lived must do the same with its links.
        """
        ...

    def drop_copies(self, keep: WorkerId | None = None) -> None:
        """Drop what is here on timeless channels, but from ``keep``: its copy goes on."""
        ...

    def expect_copies(self, expected: bool) -> None:
        """Whether messages of timeless channels are of use from now on; if not, all are dropped.

        They are, until this is called.
        """
        ...

    def take_transfers(self) -> list[TransferTime]:
        """What came in on timed channels since the last call, refused messages too.

        The newest few thousand, in the order of their arrival.
        """
        ...

    def tell_unreached(self, tell: Callable[[WorkerId], None]) -> None:
        """Who hears of it, from any thread, when a peer that was sent to is found to be lost.

        What was sent may not have come, and where a link is dead in one direction whoever waits
        for it cannot know. A sender does: nothing that it sends is acknowledged.
        """
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was sent has arrived, or its peer is lost. For a clean exit."""
        ...

    def close(self) -> None:
        """End every wait, now and later, with TransportClosed. From any thread, and repeatable."""
        ...

    @property
    def statistics(self) -> Statistics: ...
