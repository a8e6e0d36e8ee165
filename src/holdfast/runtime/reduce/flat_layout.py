"""All parameters of a stage in one flat vector."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import ConfigError

ALIGNMENT = 16  # elements: a cache line of fp32, and what one pass of a summing kernel takes
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class FlatSlot:
    """One parameter's place in the flat vector."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start: int
    numel: int

    @property
    def stop(self) -> int:
        """Where the next slot starts: behind this one's zero padding."""
        return self.start + _aligned(self.numel)


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """All parameters of a stage in one flat vector, each start a multiple of ALIGNMENT."""

    slots: tuple[FlatSlot, ...]

    @staticmethod
    def of(parameters: Iterable[Tensor], names: Iterable[str] | None = None) -> "FlatLayout":
        listed = list(parameters)
        labels = [f"slot {i}" for i in range(len(listed))] if names is None else list(names)
        slots: list[FlatSlot] = []
        for name, parameter in zip(labels, listed, strict=True):
            _check_dtype(name, parameter)
            start = slots[-1].stop if slots else 0
            slots.append(FlatSlot(name, parameter.shape, parameter.dtype, start, parameter.numel()))
        return FlatLayout(tuple(slots))

    @property
    def numel(self) -> int:
        return self.slots[-1].stop if self.slots else 0

    def padded(self, flat: Tensor, slot: int) -> Tensor:
        """The slot's part of ``flat`` with its padding: what travels."""
        return flat[self.slots[slot].start : self.slots[slot].stop]

    def view(self, flat: Tensor, slot: int) -> Tensor:
        """The slot's part of ``flat`` in the parameter's shape."""
        place = self.slots[slot]
        return flat[place.start : place.start + place.numel].view(place.shape)


def _aligned(numel: int) -> int:
    return -(-numel // ALIGNMENT) * ALIGNMENT


def _check_dtype(name: str, parameter: Tensor) -> None:
    if parameter.dtype not in _DTYPES:
        raise ConfigError(
            f"{name} is {parameter.dtype}; gradients are summed for float32, bfloat16 and float16"
        )
