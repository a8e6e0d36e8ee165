"""The validation set as micro-batches: each sample once, in order. The same in every validation."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from holdfast.data.asking import data_errors, key_of, one_thread, seeded
from holdfast.data.batches import as_pair, tried
from holdfast.job import Job


class ValidationBatches:
    """Of ``Job.validation``. The last one may be smaller."""

    def __init__(
        self, job: Job, seed: int, most: int = 0, *, retries: int = 0, pause_s: float = 0.0
    ) -> None:
        """``most``: micro-batches; 0: all. The others as of ``Batches``."""
        assert job.validation is not None, "there is nothing to validate with"
        self._data, self._size, self._seed = job.validation, job.microbatch_size, seed
        self._collate = job.collate or default_collate
        self._retries, self._pause_s = retries, pause_s
        with self._named("for its length"):
            num_samples = len(job.validation)
        self._num_samples = min(num_samples, most * self._size) if most else num_samples

    def __len__(self) -> int:
        return -(-self._num_samples // self._size)

    def indices(self, microbatch: int) -> range:
        first = microbatch * self._size
        return range(first, min(first + self._size, self._num_samples))

    def load(
        self, microbatch: int, pause: Callable[[float], None] = time.sleep
    ) -> tuple[tuple[Tensor, ...], Any]:
        """(inputs of the first layer, target). ``pause``: as of ``Batches.load``."""
        where = f"validation, micro-batch {microbatch}"

        def load() -> tuple[tuple[Tensor, ...], Any]:
            return as_pair(self._batch(microbatch, where), where)

        return tried(load, self._retries, self._pause_s, pause)

    def _batch(self, microbatch: int, where: str) -> Any:
        with seeded(key_of("validation", self._seed, microbatch)), one_thread():
            samples = []
            for index in self.indices(microbatch):
                with self._named(f"for sample {index} ({where})"):
                    samples.append(self._data[index])
            with data_errors(f"cannot collate {where}: {{kind}}"):
                return self._collate(samples)

    def _named(self, what: str) -> AbstractContextManager[None]:
        name = type(self._data).__name__
        return data_errors(f"the validation set {name} raised {{kind}} {what}")
