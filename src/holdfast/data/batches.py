"""A job's samples as micro-batches.

What is in one follows from (seed, step, micro-batch) alone, so that any worker can load any of
them. Knows nothing of stages, workers or schedules.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from holdfast.data.asking import data_errors, key_of, one_thread, seeded
from holdfast.data.samples import MapSamples
from holdfast.data.stream import StreamSamples
from holdfast.errors import ConfigError, DataError
from holdfast.job import Job, is_stream

Batch = tuple[tuple[Tensor, ...], Any]
"""Inputs of the first layer, and the target."""


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
        self._collate = job.collate or default_collate
        self._size, self._step_size = job.microbatch_size, num_microbatches * job.microbatch_size
        self._seed = seed
        self._num_microbatches = num_microbatches
        self._retries, self._pause_s = retries, pause_s
        self._samples = (
            StreamSamples(job.data, seed, self._step_size)
            if is_stream(job.data)
            else MapSamples(job.data, job.sampler, seed)
        )

    def load(
        self, step: int, microbatch: int, pause: Callable[[float], None] = time.sleep
    ) -> Batch:
        """One micro-batch of a step.

        ``pause`` waits before another try; what it raises ends them.
        """
        if not 0 <= microbatch < self._num_microbatches:
            raise ValueError(f"micro-batch {microbatch} of a step of {self._num_microbatches}")
        where = f"step {step + 1}, micro-batch {microbatch}"

        def load() -> tuple[tuple[Tensor, ...], Any]:
            return as_pair(self._batch(step, microbatch, where), where)

        return tried(load, self._retries, self._pause_s, pause)

    def _batch(self, step: int, microbatch: int, where: str) -> Any:
        # A data set may draw random numbers, e.g. to augment: the same ones on every worker and
        # in every try.
        with seeded(key_of("augment", self._seed, step, microbatch)), one_thread():
            samples = self._samples.take(self._first(step, microbatch), self._size, where)
            with data_errors(f"cannot collate {where}: {{kind}}"):
                return self._collate(samples)

    def indices(self, step: int, microbatch: int) -> list[int]:
        """Which samples of a map-style data set a micro-batch holds."""
        assert isinstance(self._samples, MapSamples)
        return self._samples.indices(self._first(step, microbatch), self._size)

    def _first(self, step: int, microbatch: int) -> int:
        return step * self._step_size + microbatch * self._size

    # --- streams ---

    @property
    def is_stream(self) -> bool:
        return isinstance(self._samples, StreamSamples)

    def position(self, step: int) -> Tensor | None:
        """Of a stream, not after the start of ``step``: for whoever goes on from there."""
        if not isinstance(self._samples, StreamSamples):
            return None
        return self._samples.position(step * self._step_size)

    def go_on_from(self, position: Tensor) -> None:
        """As another one has told it."""
        if isinstance(self._samples, StreamSamples):
            self._samples.go_on_from(position)


def tried(
    load: Callable[[], Batch], retries: int, pause_s: float, pause: Callable[[float], None]
) -> Batch:
    """Once more, ``retries`` times, as long as it raises DataError."""
    for number in range(retries + 1):
        try:
            return load()
        except DataError as why:
            if number == retries:
                if number:
                    why.add_note(f"tried {number + 1} times")
                raise
        pause(pause_s * 2**number)
    raise AssertionError("the last try returns or raises")


def as_pair(batch: object, where: str) -> Batch:
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
