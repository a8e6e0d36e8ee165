"""A job's samples as micro-batches.

What is in one follows from (seed, step, micro-batch) alone, so that any worker can load any of
them. Knows nothing of stages, workers or schedules.
"""

import hashlib
import random
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import default_collate

from holdfast.data.order import SampleOrder
from holdfast.errors import ConfigError, DataError
from holdfast.job import Job, Sampler

_Order = SampleOrder | Sequence[int]


class Batches:
    """The job's samples as micro-batches: each sample once in an epoch of the data.

    Step ``t`` has ``num_microbatches`` micro-batches, numbered over the whole global batch. The
    order of the samples depends on the seed, not on how many make a micro-batch or a step.
    """

    def __init__(
        self, job: Job, seed: int, num_microbatches: int, *, retries: int = 0, pause_s: float = 0.0
    ) -> None:
        """What raises is tried again ``retries`` times, after pauses of which each is twice as
        long as the one before."""
        if num_microbatches < 1:
            raise ConfigError(f"micro-batches a step={num_microbatches}: expected at least 1")
        self._data = job.data
        with self._named("for its length"):
            self._num_samples = len(job.data)  # once: a folder may grow meanwhile
        self._collate = job.collate or default_collate
        self._size = job.microbatch_size
        self._seed = seed
        self._sampler = job.sampler
        self._num_microbatches = num_microbatches
        self._retries, self._pause_s = retries, pause_s
        self._orders: dict[int, _Order] = {}  # of two: a step may span both

    def load(
        self, step: int, microbatch: int, pause: Callable[[float], None] = time.sleep
    ) -> tuple[tuple[Tensor, ...], Any]:
        """(inputs of the first layer, target) of one micro-batch of a step.

        ``pause`` waits before another try; what it raises ends them.
        """
        if not 0 <= microbatch < self._num_microbatches:
            raise ValueError(f"micro-batch {microbatch} of a step of {self._num_microbatches}")
        where = f"step {step + 1}, micro-batch {microbatch}"
        for tried in range(self._retries + 1):
            try:
                return _as_pair(self._batch(step, microbatch, where), where)
            except DataError as why:
                if tried == self._retries:
                    if tried:
                        why.add_note(f"tried {tried + 1} times")
                    raise
            pause(self._pause_s * 2**tried)
        raise AssertionError("the last try returns or raises")

    def _batch(self, step: int, microbatch: int, where: str) -> Any:
        # A data set may draw random numbers, e.g. to augment: the same ones on every worker and
        # in every try.
        with _seeded(_key("augment", self._seed, step, microbatch)), _one_thread():
            samples = []
            for index in self.indices(step, microbatch):
                with self._named(f"for sample {index} ({where})"):
                    samples.append(self._data[index])
            with _data_errors(f"cannot collate {where}: {{kind}}"):
                return self._collate(samples)

    def _named(self, what: str) -> AbstractContextManager[None]:
        return _data_errors(f"the data set {_kind(self._data)} raised {{kind}} {what}")

    def indices(self, step: int, microbatch: int) -> list[int]:
        """Which samples of the data set a micro-batch holds."""
        first = (step * self._num_microbatches + microbatch) * self._size
        return [self._index(position) for position in range(first, first + self._size)]

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, self._length)
        order = self._order(epoch)
        if len(order) != self._length:
            raise ConfigError(
                f"Job.sampler gives {len(order)} samples for epoch {epoch} and {self._length} for "
                "epoch 0: expected as many each time, for a sample's place follows from its step"
            )
        return order[place]

    def _order(self, epoch: int) -> _Order:
        if epoch not in self._orders:
            if len(self._orders) == 2:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = self._made(epoch)
        return self._orders[epoch]

    def _made(self, epoch: int) -> _Order:
        if self._sampler is None:
            return SampleOrder(self._num_samples, _key("order", self._seed, epoch))
        key = _key("sampler", self._seed, epoch)
        with _data_errors(f"Job.sampler raised {{kind}} for epoch {epoch}"), _seeded(key):
            return _in_order(self._sampler, epoch)

    @cached_property
    def _length(self) -> int:
        """Of an epoch: by default each sample comes once."""
        if self._sampler is None:
            return self._num_samples
        if length := len(self._order(0)):
            return length
        raise ConfigError("Job.sampler gives no sample for epoch 0: expected at least one")


def _in_order(sampler: Sampler, epoch: int) -> _Order:
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    drawn = sampler(epoch) if callable(sampler) else sampler
    return drawn if isinstance(drawn, range) else array("q", drawn)


@contextmanager
def _data_errors(story: str) -> Iterator[None]:
    """Whatever is raised, also sys.exit() or a panic of a library in Rust; only Ctrl-C passes."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as why:
        raise DataError(f"{story.format(kind=_kind(why))}: {why}") from why


def _as_pair(batch: object, where: str) -> tuple[tuple[Tensor, ...], Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ConfigError(
            f"{where}: a batch is a {_kind(batch)}: expected (input, target); "
            "let the data set return such pairs, or set Job.collate"
        )
    given, target = batch
    inputs = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in inputs:
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{where}: an input of the first layer is a {_kind(value)}: expected a tensor "
                "or a tuple of tensors; set Job.collate to make them"
            )
    return inputs, target


def _kind(value: object) -> str:
    return type(value).__name__


def _key(purpose: str, *numbers: int) -> int:
    """A seed for one purpose; hashed, as seed 1 epoch 2 must not be seed 2 epoch 1."""
    text = f"{purpose} {numbers}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


@contextmanager
def _seeded(key: int) -> Iterator[None]:
    """Torch's, Python's and NumPy's global generators start from ``key``.

    Afterwards the first two are as before; to copy NumPy's out and back would take 0.2 ms.
    """
    torch_before, python_before = torch.default_generator.get_state(), random.getstate()
    torch.default_generator.manual_seed(key)
    random.seed(key)
    numpy.random.seed(key)
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_before)
        random.setstate(python_before)


@contextmanager
def _one_thread() -> Iterator[None]:
    """As a process that loads ahead has: sums over several threads have other bits."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def num_tokens(target: Any) -> int:
    """What throughput counts: elements of integer targets of two dims or more, else samples."""
    first = target
    while isinstance(first, Mapping | list | tuple):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    if not isinstance(first, Tensor):
        raise ConfigError(f"a target is a {_kind(first)}: expected a tensor; set Job.collate")
    whole = not first.dtype.is_floating_point and not first.dtype.is_complex
    if whole and first.dim() > 1:
        return first.numel()
    return first.shape[0] if first.dim() else 1
