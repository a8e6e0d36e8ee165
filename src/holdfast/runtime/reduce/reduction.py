"""Summing a stage's gradients over its holders, directly: member i owns shard i of the vector.

Everyone sends the owner their part of its shard; the owner adds, rounds, and sends the result to
all. Two rounds for any number of members, and no bit of an exact result depends on that number.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, chain, pairwise
from math import isfinite

import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, ProtocolError
from holdfast.runtime.reduce.buckets import Bucket
from holdfast.runtime.reduce.flat_layout import ALIGNMENT, FlatLayout
from holdfast.runtime.reduce.gradients import Gradients, rows_within
from holdfast.transport.base import Channel, Tag, Transport

_Arrival = tuple[WorkerId, Tensor]
Given = tuple[Bucket, Tensor, bool]
"""A tied parameter, its reduced gradient with padding, and whether any micro-batch used it."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """A step's gradient: the same bits on every member. The caller may change ``flat``."""

    layout: FlatLayout
    flat: Tensor  # fp32
    touched: tuple[bool, ...]
    nonfinite: bool
    squares: tuple[float, ...]  # for each slot the sum of squares, in fp64
    maxima: tuple[float, ...]  # for each slot the largest magnitude

    def gradients(self) -> list[Tensor | None]:
        """For each slot its part of ``flat``; None if no micro-batch used the parameter."""
        return [
            self.layout.view(self.flat, slot) if used else None
            for slot, used in enumerate(self.touched)
        ]


def reduce_gradients(
    gradients: Gradients,
    buckets: Sequence[Bucket],
    *,
    me: WorkerId,
    transport: Transport,
    step: int,
    attempt: int = 0,
    timeout_s: float,
    given: Sequence[Given] = (),
    on_sent: Callable[[], None] = lambda: None,
) -> Reduced:
    """Sum over the members of every bucket; no wait exceeds timeout_s. Only reads ``gradients``,
    or takes their memory if there is nobody else.

    ``given``: buckets whose sum somebody has already. ``on_sent``: our own share is on its way.
    """
    if not given and is_alone(buckets, me):
        on_sent()
        touched, nonfinite = list(gradients.touched), gradients.nonfinite
        return conclude(gradients, gradients.take_reduced(), touched=touched, nonfinite=nonfinite)
    tag = Tag(Channel.NOTES, step, attempt)
    parts = [
        _Part(
            gradients, bucket, me, _Exchange(transport, tag._replace(part=bucket.number), timeout_s)
        )
        for bucket in buckets
    ]
    for part in parts:
        part.send_partials()
    on_sent()
    for part in parts:
        part.reduce_own_shard()
    flat = torch.zeros(gradients.layout.numel, dtype=torch.float32)
    touched = [False] * len(gradients.layout.slots)
    for part in parts:
        part.gather_into(flat, touched)
    for bucket, values, is_touched in given:
        for slot in (slot for group in bucket.groups for slot in group):
            gradients.layout.padded(flat, slot).copy_(values)
            touched[slot] = is_touched
    return conclude(gradients, flat, touched=touched, nonfinite=any(p.nonfinite for p in parts))


def is_alone(buckets: Sequence[Bucket], me: WorkerId) -> bool:
    """There is nothing to add: no other member, no twins."""
    return all(
        bucket.members == (me,) and all(len(group) == 1 for group in bucket.groups)
        for bucket in buckets
    )


def conclude(
    gradients: Gradients, flat: Tensor, *, touched: Sequence[bool], nonfinite: bool
) -> Reduced:
    """Measure a reduced vector, made here or received from a member that has it already."""
    layout = gradients.layout
    measures = [gradients.measure(layout.padded(flat, slot)) for slot in range(len(layout.slots))]
    return Reduced(
        layout=layout,
        flat=flat,
        touched=tuple(touched),
        nonfinite=nonfinite or not all(isfinite(square) for square, _ in measures),
        squares=tuple(square for square, _ in measures),
        maxima=tuple(largest for _, largest in measures),
    )


@dataclass(frozen=True, slots=True)
class _Exchange:
    """The messages of one bucket."""

    transport: Transport
    tag: Tag  # of any channel
    timeout_s: float

    def send(self, to: WorkerId, channel: Channel, tensor: Tensor) -> None:
        if tensor.numel():  # an empty shard is no message
            self.transport.send(to, self.tag._replace(channel=channel), tensor)

    def arrivals(self, sources: Iterable[WorkerId], channel: Channel) -> Iterator[_Arrival]:
        """One message of each source, in the order in which they come in."""
        waiting, tag = list(sources), self.tag._replace(channel=channel)
        while waiting:
            wanted = [(source, tag) for source in waiting]
            source = waiting.pop(self.transport.wait_any(wanted, self.timeout_s))
            yield source, self.transport.receive(source, tag, self.timeout_s)


@dataclass(frozen=True, slots=True)
class _Note:
    """Small facts of one member: what its sums cannot say."""

    nonfinite: bool
    touched: list[bool]  # for each group
    exponents: list[int]  # for each group; must be the same on all members
    spill: Tensor  # rows (bin, index in the bucket's vector, count)

    def encode(self) -> Tensor:
        head = torch.tensor([self.nonfinite, *self.touched, *self.exponents], dtype=torch.int64)
        return torch.cat([head, self.spill.reshape(-1)])

    @staticmethod
    def decode(message: Tensor, num_groups: int) -> "_Note":
        head = 1 + 2 * num_groups
        spill_numel = message.numel() - head
        if message.dtype != torch.int64 or spill_numel < 0 or spill_numel % 3:
            raise ProtocolError(f"{message.numel()} {message.dtype} are no note on a reduction")
        nonfinite, *rest = message[:head].tolist()
        touched = [bool(flag) for flag in rest[:num_groups]]
        return _Note(bool(nonfinite), touched, rest[num_groups:], message[head:].reshape(-1, 3))


class _Vector:
    """The slots of a bucket strung together, as every member of it strings them."""

    def __init__(self, layout: FlatLayout, groups: tuple[tuple[int, ...], ...]) -> None:
        self._layout = layout
        self._groups = groups
        ends = list(accumulate(_padded_numel(layout, group) for group in groups))
        self.pieces = [slice(*piece) for piece in pairwise([0, *ends])]
        self.numel = ends[-1]
        self._run = _run(layout, groups)

    def read(self, flat: Tensor) -> Tensor:
        """The bucket's part of ``flat``, twins added; a view if the slots are neighbours."""
        if self._run is not None:
            return flat[self._run]
        padded = self._layout.padded
        sums = [reduce(torch.add, [padded(flat, slot) for slot in group]) for group in self._groups]
        return torch.cat(sums)

    def write_back(self, flat: Tensor, vector: Tensor) -> None:
        """Put what ``read`` gave, changed since, into every slot; nothing to do for a view."""
        if self._run is not None:
            return
        for group, piece in zip(self._groups, self.pieces, strict=True):
            for slot in group:
                self._layout.padded(flat, slot).copy_(vector[piece])


class _Part:
    """The reduction of one bucket, as its member ``me`` takes part in it."""

    def __init__(
        self, gradients: Gradients, bucket: Bucket, me: WorkerId, exchange: _Exchange
    ) -> None:
        self._gradients = gradients
        self._bucket = bucket
        self._me = me
        self._exchange = exchange
        self._others = [member for member in bucket.members if member != me]
        self._vector = _Vector(gradients.layout, bucket.groups)
        self._shards = _cut(self._vector.numel, bucket.members)
        self._sums = gradients.device.to_host(self._vector.read(gradients.flat))
        self._notes = [self._own_note()]
        self._shard = torch.empty(_size(self._shards[me]), dtype=torch.float32)

    @property
    def nonfinite(self) -> bool:
        return any(note.nonfinite for note in self._notes)

    def send_partials(self) -> None:
        note = self._notes[0].encode()
        for other in self._others:
            self._exchange.send(other, Channel.NOTES, note)
            self._exchange.send(other, Channel.PARTIAL, self._sums[self._shards[other]])

    def reduce_own_shard(self) -> None:
        """The result goes out in memory of its own: the caller may change the gathered vector."""
        self._receive_notes()
        if not self._shard.numel():
            return
        self._round(_added(self._partials()))
        for other in self._others:
            self._exchange.send(other, Channel.REDUCED, self._shard)

    def gather_into(self, flat: Tensor, touched: list[bool]) -> None:
        """Write the result to every slot of the bucket, twins alike."""
        vector = self._vector.read(flat)
        vector[self._shards[self._me]] = self._shard
        owners = [other for other in self._others if _size(self._shards[other])]
        for owner, shard in self._exchange.arrivals(owners, Channel.REDUCED):
            _check(shard, torch.float32, _size(self._shards[owner]), owner)
            vector[self._shards[owner]] = shard
        self._vector.write_back(flat, vector)
        for i, group in enumerate(self._bucket.groups):
            for slot in group:
                touched[slot] = any(note.touched[i] for note in self._notes)

    def _own_note(self) -> _Note:
        gradients, groups = self._gradients, self._bucket.groups
        touched, exponents = gradients.touched, gradients.exponents
        spills = [
            _moved(gradients.spilled(slot), piece.start)
            for group, piece in zip(groups, self._vector.pieces, strict=True)
            for slot in group
        ]
        return _Note(
            nonfinite=gradients.nonfinite,
            touched=[any(touched[slot] for slot in group) for group in groups],
            exponents=[_common({exponents[slot] for slot in group}) for group in groups],
            spill=torch.cat(spills),
        )

    def _receive_notes(self) -> None:
        own = self._notes[0]
        for member, message in self._exchange.arrivals(self._others, Channel.NOTES):
            note = _Note.decode(message, len(self._bucket.groups))
            if note.exponents != own.exponents:
                raise ProtocolError(
                    f"{member} has gradient exponents {note.exponents}, we have {own.exponents}"
                )
            self._notes.append(note)

    def _partials(self) -> Iterator[Tensor]:
        """What each member has for our shard, in an order that cannot show in the sum."""
        mine = self._sums[self._shards[self._me]]
        others = self._exchange.arrivals(self._others, Channel.PARTIAL)
        arrivals: Iterator[_Arrival] = chain([(self._me, mine)], others)
        if self._gradients.order_matters:
            arrivals = _in_turn(self._bucket.members, arrivals)
        for member, partial in arrivals:
            _check(partial, mine.dtype, mine.numel(), member)
            yield partial

    def _round(self, total: Tensor) -> None:
        mine = self._shards[self._me]
        spill = torch.cat([note.spill for note in self._notes])
        for piece, exponent in zip(self._vector.pieces, self._notes[0].exponents, strict=True):
            low, high = max(piece.start, mine.start), min(piece.stop, mine.stop)
            if low < high:
                here = slice(low - mine.start, high - mine.start)
                rows = rows_within(spill, low, high)
                self._gradients.round_into(self._shard[here], total[here], exponent, rows)


def _cut(numel: int, members: Sequence[WorkerId]) -> dict[WorkerId, slice]:
    """Who owns what: nearly equal shards, whole alignment units, some of them empty if short."""
    units = numel // ALIGNMENT
    cuts = [units * i // len(members) * ALIGNMENT for i in range(len(members) + 1)]
    return {member: slice(*cut) for member, cut in zip(members, pairwise(cuts), strict=True)}


def _added(parts: Iterator[Tensor]) -> Tensor:
    """The sum in the given order, in fresh memory if there is anything to add."""
    total = next(parts)
    second = next(parts, None)
    if second is None:
        return total
    total = total + second
    for part in parts:
        total += part
    return total


def _in_turn(members: Sequence[WorkerId], arrivals: Iterator[_Arrival]) -> Iterator[_Arrival]:
    """The arrivals in member order, each as soon as its turn has come."""
    early: dict[WorkerId, Tensor] = {}
    for member in members:
        while member not in early:
            arrived, tensor = next(arrivals)
            early[arrived] = tensor
        yield member, early.pop(member)


def _moved(spill: Tensor, by: int) -> Tensor:
    return spill + torch.tensor([0, by, 0]) if len(spill) else spill


def _run(layout: FlatLayout, groups: tuple[tuple[int, ...], ...]) -> slice | None:
    """Where the groups lie in the flat vector, if they are consecutive slots without twins."""
    first, last = groups[0][0], groups[-1][-1]
    if groups != tuple((slot,) for slot in range(first, last + 1)):
        return None
    return slice(layout.slots[first].start, layout.slots[last].stop)


def _padded_numel(layout: FlatLayout, twins: tuple[int, ...]) -> int:
    first, *rest = [layout.slots[slot] for slot in twins]
    for other in rest:
        if other.shape != first.shape:
            raise ConfigError(
                f"tied parameters {first.name} and {other.name} have different shapes: "
                f"{tuple(first.shape)} and {tuple(other.shape)}"
            )
    return first.stop - first.start


def _common(exponents: set[int]) -> int:
    if len(exponents) > 1:
        raise ConfigError(f"twins of a tied parameter have different exponents: {exponents}")
    return exponents.pop()


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def _check(tensor: Tensor, dtype: torch.dtype, numel: int, source: WorkerId) -> None:
    if tensor.dtype != dtype or tensor.numel() != numel:
        raise ProtocolError(
            f"{source} sent {tensor.numel()} {tensor.dtype} for a shard of {numel} {dtype}"
        )
