"""Buffers that a forward writes to, such as a BatchNorm's running statistics.

Every micro-batch of a step works on copies with the step's start values; what it changed is
handed out, to be summed over the micro-batches and applied once. So their order never shows.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.errors import ConfigError

_GRID_BITS = 32


@dataclass(frozen=True, slots=True)
class _Place:
    module: nn.Module
    name: str
    path: str  # inside the layer

    @property
    def tensor(self) -> Tensor:
        tensor = self.module._buffers[self.name]
        assert tensor is not None
        return tensor

    def put(self, tensor: Tensor) -> None:
        self.module._buffers[self.name] = tensor


class LayerBuffers:
    """The buffers of one layer. Which of them change is learnt in its first forward."""

    def __init__(self, layer: nn.Module) -> None:
        paths = [path for path, _ in layer.named_buffers(remove_duplicate=False)]
        self._changing = [_place(layer, path) for path in paths]  # until we know better
        self._constant: list[_Place] = []
        self._known = False

    @contextmanager
    def private(self) -> Iterator[dict[str, Tensor]]:
        """Run a forward on copies; afterwards the dict holds the changes by path."""
        changes: dict[str, Tensor] = {}
        constants = [(place.tensor, place.tensor._version) for place in self._constant]
        originals = [place.tensor for place in self._changing]
        copies = {id(tensor): tensor.detach().clone() for tensor in originals}
        for place, original in zip(self._changing, originals, strict=True):
            place.put(copies[id(original)])
        written: dict[int, Tensor] = {}
        try:
            yield changes
            for place, original in zip(self._changing, originals, strict=True):
                if _was_written(place.tensor, copies[id(original)], original):
                    written[id(original)] = place.tensor
        finally:
            for place, original in zip(self._changing, originals, strict=True):
                place.put(original)
        self._check_constant(constants)
        if not self._known:
            self._learn(written)
        self._check_changing(written)
        for place in self._changing:
            if id(place.tensor) in written:
                changes[place.path] = _change(place.tensor, written.pop(id(place.tensor)))

    def apply(self, mean_changes: Mapping[str, Tensor]) -> None:
        """Add to the buffers, once a step; the mapping is by path."""
        for place in self._changing:
            if place.path in mean_changes:
                value = place.tensor.cpu().double() + mean_changes[place.path]
                place.tensor.copy_(value if place.tensor.is_floating_point() else value.round())

    def _learn(self, written: Mapping[int, Tensor]) -> None:
        self._constant = [place for place in self._changing if id(place.tensor) not in written]
        self._changing = [place for place in self._changing if id(place.tensor) in written]
        self._known = True

    def _check_changing(self, written: Mapping[int, Tensor]) -> None:
        for place in self._changing:
            if id(place.tensor) not in written:
                raise ConfigError(
                    f"buffer {place.path} was written in the first forward and not in a later one; "
                    "write to it in every forward or in none"
                )

    def _check_constant(self, before: list[tuple[Tensor, int]]) -> None:
        for place, (tensor, version) in zip(self._constant, before, strict=True):
            if place.tensor is not tensor or tensor._version != version:
                raise ConfigError(
                    f"buffer {place.path} was constant in the first forward and changed in a later "
                    "one; write to it in every forward or in none"
                )


@contextmanager
def untouched(layer: nn.Module) -> Iterator[None]:
    """Whatever a forward writes to its buffers, they are as before."""
    places = [_place(layer, path) for path, _ in layer.named_buffers(remove_duplicate=False)]
    originals = [place.tensor for place in places]
    copies = {id(tensor): tensor.detach().clone() for tensor in originals}
    try:
        for place, original in zip(places, originals, strict=True):
            place.put(copies[id(original)])
        yield
    finally:
        for place, original in zip(places, originals, strict=True):
            place.put(original)


def _place(layer: nn.Module, path: str) -> _Place:
    owner, _, name = path.rpartition(".")
    return _Place(layer.get_submodule(owner), name, path)


def _was_written(now: Tensor, copy: Tensor, original: Tensor) -> bool:
    # The version alone does not tell: batch norm's kernel writes without raising it.
    return now is not copy or bool(copy._version) or not torch.equal(copy, original)


def _change(before: Tensor, after: Tensor) -> Tensor:
    """In fp64, on a grid given by ``before``: sums of changes are exact, so in any order the same.

    The grid is 2^-32 of the largest value, which leaves 2^21 times that value for the sum. On the
    host, where they are summed.
    """
    before, after = before.cpu(), after.cpu()
    largest = before.double().abs().max() if before.numel() else torch.zeros(())
    exponent = torch.frexp(largest if largest > 0 else torch.ones(())).exponent - _GRID_BITS
    grid = torch.ldexp(torch.ones((), dtype=torch.float64), exponent)
    return ((after.double() - before.double()) / grid).round() * grid
