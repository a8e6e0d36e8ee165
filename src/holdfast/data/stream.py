"""Samples of a stream by their place in the run: an iterable that tells its position and takes it.

Whoever needs some of the samples reads over the others. Where the stream stood at the start of the
last few steps is kept, so that going back, or on in another process, means reading a step at most.
"""

import io
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.data.asking import data_errors, key_of, seed
from holdfast.errors import CheckpointError, DataError
from holdfast.job import StreamDataset

_MARKS = 4  # steps that can be gone back without reading from further away


class _Mark(NamedTuple):
    """The stream stands before sample ``place`` of the run, which is ``within`` of ``epoch``."""

    place: int
    epoch: int
    within: int
    state: bytes  # the stream's own


class _Shared:
    """Of a stream: how it was at first, and who has moved it last."""

    def __init__(self, first: bytes) -> None:
        self.first = first
        self.reader: object = None


_SHARED: WeakKeyDictionary[StreamDataset, _Shared] = WeakKeyDictionary()
_END = object()


class StreamSamples:
    """Several may read the same stream, one at a time: each puts it where it needs it."""

    def __init__(self, stream: StreamDataset, seed_of_run: int, step_size: int) -> None:
        """``step_size``: samples of a step."""
        self._stream, self._seed, self._step_size = stream, seed_of_run, step_size
        self._name = f"the stream {type(stream).__name__}"
        self._place = self._epoch = self._within = 0  # of the sample that comes next
        self._iterator: Iterator[Any] | None = None
        self._is_checked = False
        if stream not in _SHARED:
            _SHARED[stream] = _Shared(self._state())
        self._shared = _SHARED[stream]
        self._marks = {0: _Mark(0, 0, 0, self._shared.first)}

    def take(self, first: int, count: int, where: str) -> list[Any]:
        """Not at once for several threads of a process."""
        if self._shared.reader is not self:
            self._shared.reader, self._iterator = self, None
        try:
            with data_errors(f"{self._name} raised {{kind}} near sample {first} ({where})"):
                self._go_to(first)
                return [self._next() for _ in range(count)]
        except BaseException:  # not only of this reader's own making: a Ctrl-C, too
            self._iterator = None  # it may be worn out: the next try begins at a mark
            raise

    def _go_to(self, place: int) -> None:
        nearest = self._marks[max(mark for mark in self._marks if mark <= place)]
        if self._iterator is None or not nearest.place <= self._place <= place:
            self._put(nearest)
        while self._place < place:
            self._next()

    def _next(self) -> Any:
        for _ in range(2):
            begins = self._place % self._step_size == 0
            mark = _Mark(self._place, self._epoch, self._within, self._state()) if begins else None
            seed(key_of("stream", self._seed, self._place))
            if self._iterator is None:
                self._iterator = iter(self._stream)
            sample = next(self._iterator, _END)
            if sample is not _END:
                if mark is not None:
                    self._remember(mark)
                self._place, self._within = self._place + 1, self._within + 1
                return sample
            self._begin_epoch(self._epoch + 1)
        raise DataError(f"{self._name} has no sample in epoch {self._epoch}: expected some")

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._within, self._iterator = epoch, 0, None
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)

    # --- positions ---

    def position(self, place: int) -> Tensor | None:
        """The nearest mark before ``place``, to go on from elsewhere."""
        nearest = max((mark for mark in self._marks if 0 < mark <= place), default=None)
        return None if nearest is None else _packed(self._marks[nearest])

    def go_on_from(self, position: Tensor) -> None:
        self._remember(_unpacked(position, self._name))

    def _put(self, mark: _Mark) -> None:
        self._begin_epoch(mark.epoch)
        self._stream.load_state_dict(torch.load(io.BytesIO(mark.state), weights_only=True))
        self._place, self._within = mark.place, mark.within

    def _remember(self, mark: _Mark) -> None:
        self._marks[mark.place] = mark
        while len(self._marks) > _MARKS + 1:  # the first is always there
            del self._marks[sorted(self._marks)[1]]

    def _state(self) -> bytes:
        """Read back by nobody who would run code from a file."""
        with data_errors(f"{self._name} raised {{kind}} for its state"):
            state = self._stream.state_dict()
        file = io.BytesIO()
        with data_errors(f"{self._name} has a state that cannot be saved ({{kind}})"):
            torch.save(state, file)
            if not self._is_checked:
                torch.load(io.BytesIO(file.getvalue()), weights_only=True)
                self._is_checked = True
        return file.getvalue()


def _packed(mark: _Mark) -> Tensor:
    file = io.BytesIO()
    torch.save(mark._asdict(), file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _unpacked(position: Tensor, name: str) -> _Mark:
    try:
        values = torch.load(io.BytesIO(position.numpy().tobytes()), weights_only=True)
        return _Mark(**values)
    except Exception as why:
        raise CheckpointError(f"the position of {name} cannot be read: {why}") from why
