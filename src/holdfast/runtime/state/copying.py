"""A stage's state on its way to a joiner, in pieces, while training goes on.

The sender copies its state once, between two operations, and sends it from a thread; after that it
sends every update it commits. The joiner loads the state and follows. What is sent is true
in every epoch: a failure elsewhere does not disturb it.
"""

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, HoldfastError, ProtocolError
from holdfast.runtime.state.results import Arrivals, StageForm, result_messages
from holdfast.runtime.update.commit import Committed
from holdfast.transport.base import Channel, Tag, Transport

PIECE_BYTES = 8 << 20
_PAUSE_S = 0.01
_MOST_BEHIND = 64  # updates that wait for one joiner ...
MOST_BEHIND_BYTES = 256 << 20  # ... and their bytes, if there is more than one
MOST_COPIES = 3  # begun anew for one that cannot keep up
HEADER = Tag(Channel.STATE, 0)
"""Begins a copy; it comes again when the sender begins anew."""


class StateSender:
    """Of one member: the joiners it feeds. ``ask`` may be called from any thread."""

    def __init__(self, transport: Transport, form: StageForm) -> None:
        self._transport = transport
        self._form = form
        self._lock = threading.Lock()
        self._asked: dict[WorkerId, Callable[[], None]] = {}
        self._feeds: dict[WorkerId, _Feed] = {}
        self._threads: dict[WorkerId, threading.Thread] = {}  # of the last feed of each
        self._num_behind: Counter[WorkerId] = Counter()  # copies of each that failed here

    @property
    def joiners(self) -> set[WorkerId]:
        with self._lock:
            fed = (joiner for joiner, feed in self._feeds.items() if not feed.ended)
            return {*self._asked, *fed}

    @property
    def is_asked(self) -> bool:
        return bool(self._asked)

    def ask(self, joiner: WorkerId, connect: Callable[[], None] = lambda: None) -> None:
        """Whoever asks again begins anew. ``connect`` is called when its copy begins."""
        self.forget({joiner})
        with self._lock:
            self._asked[joiner] = connect
            self._num_behind.pop(joiner, None)

    def forget(self, joiners: Collection[WorkerId]) -> None:
        """They are members now, or gone."""
        with self._lock:
            self._asked = {j: connect for j, connect in self._asked.items() if j not in joiners}
            gone = [self._feeds.pop(joiner) for joiner in joiners if joiner in self._feeds]
        for feed in gone:
            feed.end()

    def send_update(self, committed: Committed) -> None:
        """To everyone who has the state from before this step, or is being sent it."""
        with self._lock:
            self._feeds = {j: feed for j, feed in self._feeds.items() if not feed.ended}
            for joiner, feed in self._feeds.items():
                feed.add(committed)
                if feed.is_too_far_behind:
                    feed.end()
                    self._begin_anew(joiner, feed.connect)

    def _begin_anew(self, joiner: WorkerId, connect: Callable[[], None]) -> None:
        """With a newer state, instead of all that it has missed. A few times: then it starves."""
        self._num_behind[joiner] += 1
        if self._num_behind[joiner] < MOST_COPIES:
            self._asked[joiner] = connect

    def send_state(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """To all who have asked. ``tensors`` are copies that nobody changes."""
        with self._lock:
            asked, self._asked = self._asked, {}
            for joiner, connect in sorted(asked.items()):
                connect()
                before = self._threads.get(joiner)
                feed = _Feed(self._transport, self._form, joiner, version, tensors, connect, before)
                try:
                    feed.thread.start()
                except RuntimeError:  # no thread to be had: perhaps after the next step
                    self._begin_anew(joiner, connect)
                else:
                    self._feeds[joiner], self._threads[joiner] = feed, feed.thread


class _Feed:
    """One joiner's supply. A thread sends it, so that a slow joiner holds up nobody."""

    def __init__(
        self,
        transport: Transport,
        form: StageForm,
        joiner: WorkerId,
        version: int,
        tensors: Mapping[str, Tensor],
        connect: Callable[[], None],
        before: threading.Thread | None,
    ) -> None:
        """``before``: the thread of an earlier feed, which may not have ended yet."""
        self._transport, self._form, self._joiner = transport, form, joiner
        self._version, self._tensors = version, tensors
        self.connect = connect
        self.ended = False
        self._update_bytes = 0  # of one
        self.updates: queue.SimpleQueue[Committed | None] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=self._run, args=(before,), name=f"feed-{joiner}", daemon=True
        )

    def add(self, update: Committed) -> None:
        self._update_bytes = update.result.reduced.flat.nbytes
        self.updates.put(update)

    @property
    def is_too_far_behind(self) -> bool:
        waiting = self.updates.qsize()
        held_bytes = waiting * self._update_bytes
        return waiting > _MOST_BEHIND or (waiting > 1 and held_bytes > MOST_BEHIND_BYTES)

    def end(self) -> None:
        """What waits is let go of."""
        self.ended = True
        with suppress(queue.Empty):
            while True:
                self.updates.get_nowait()
        self.updates.put(None)

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # what it still sends must not come after our header
        try:
            self._send(HEADER, _header(self._version, self._tensors))
            for number, tensor in enumerate(self._tensors.values()):
                for part, piece in enumerate(_pieces(tensor)):
                    tag = Tag(Channel.STATE, self._version, microbatch=number, part=part)
                    self._send(tag, piece)
            self._tensors = {}
            while (update := self.updates.get()) is not None and not self.ended:
                self._send_update(update)
        except HoldfastError:
            self.ended = True  # the joiner is gone, or this worker; whoever is left will say so

    def _send_update(self, update: Committed) -> None:
        for tag, tensor in result_messages(
            Channel.UPDATE, update.result, self._form, update.verdict
        ):
            self._send(tag, tensor)

    def _send(self, tag: Tag, tensor: Tensor) -> None:
        """An epoch's end breaks off waits for room, but not this."""
        while not self.ended:
            try:
                self._transport.send(self._joiner, tag, tensor)
            except EpochPast:
                time.sleep(_PAUSE_S)
            else:
                return


@dataclass(frozen=True, slots=True)
class State:
    version: int
    tensors: dict[str, Tensor]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def receive_state(
    arrivals: Arrivals, timeout_s: float, on_begin: Callable[[int], None] = lambda version: None
) -> State:
    """``arrivals`` must have been made with HEADER as their first message.

    ``on_begin`` hears the version as soon as it is known.
    """
    header = arrivals.take(HEADER, timeout_s)
    version, entries = _read_header(header)
    on_begin(version)
    tensors: dict[str, Tensor] = {}
    for number, (name, dtype, shape) in enumerate(entries):
        tensor = torch.empty(shape, dtype=dtype)
        for part, piece in enumerate(_pieces(tensor)):
            tag = Tag(Channel.STATE, version, microbatch=number, part=part)
            piece.copy_(arrivals.take(tag, timeout_s))
        tensors[name] = tensor
    arrivals.use_up()
    return State(version, tensors)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Views of at most so many bytes; none of an empty tensor."""
    flat = tensor.detach().contiguous().view(-1)
    size = max(1, PIECE_BYTES // flat.element_size())
    return (flat[at : at + size] for at in range(0, flat.numel(), size))


def _header(version: int, tensors: Mapping[str, Tensor]) -> Tensor:
    entries = [
        [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for name, tensor in tensors.items()
    ]
    text = json.dumps({"version": version, "tensors": entries}).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _read_header(header: Tensor) -> tuple[int, list[tuple[str, torch.dtype, list[int]]]]:
    try:
        values = json.loads(header.numpy().tobytes())
        entries = [(name, getattr(torch, kind), shape) for name, kind, shape in values["tensors"]]
        return int(values["version"]), entries
    except (ValueError, KeyError, AttributeError, TypeError) as why:
        raise ProtocolError(f"not the header of a state: {why!r}") from why
