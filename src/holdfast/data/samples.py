"""Samples of a map-style data set by their place in the run, however they are batched."""

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from holdfast.data.asking import data_errors, key_of, seeded
from holdfast.data.order import SampleOrder
from holdfast.errors import ConfigError
from holdfast.job import MapDataset, Sampler

_Order = SampleOrder | Sequence[int]


class Samples(Protocol):
    def take(self, first: int, count: int, where: str) -> list[Any]:
        """Those at places ``first`` and after, over all epochs. DataError says ``where``."""
        ...


class MapSamples:
    """Each sample once in an epoch, or as the job's sampler says."""

    def __init__(self, data: MapDataset, sampler: Sampler | None, seed: int) -> None:
        self._data, self._sampler, self._seed = data, sampler, seed
        self._raised = f"the data set {type(data).__name__} raised {{kind}}"
        with data_errors(f"{self._raised} for its length"):
            self._num_samples = len(data)  # once: a folder may grow meanwhile
        self._orders: dict[int, _Order] = {}  # of two: a step may span both

    def take(self, first: int, count: int, where: str) -> list[Any]:
        taken = []
        for index in self.indices(first, count):
            with data_errors(f"{self._raised} for sample {index} ({where})"):
                taken.append(self._data[index])
        return taken

    def indices(self, first: int, count: int) -> list[int]:
        return [self._index(place) for place in range(first, first + count)]

    def _index(self, place: int) -> int:
        epoch, within = divmod(place, self._length)
        order = self._order(epoch)
        if len(order) != self._length:
            raise ConfigError(
                f"Job.sampler gives {len(order)} samples for epoch {epoch} and {self._length} for "
                "epoch 0: expected as many each time, for a sample's place follows from its step"
            )
        return order[within]

    def _order(self, epoch: int) -> _Order:
        if epoch not in self._orders:
            if len(self._orders) == 2:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = self._made(epoch)
        return self._orders[epoch]

    def _made(self, epoch: int) -> _Order:
        if self._sampler is None:
            return SampleOrder(self._num_samples, key_of("order", self._seed, epoch))
        key = key_of("sampler", self._seed, epoch)
        with data_errors(f"Job.sampler raised {{kind}} for epoch {epoch}"), seeded(key):
            return _in_order(self._sampler, epoch)

    @cached_property
    def _length(self) -> int:
        """Of an epoch."""
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
