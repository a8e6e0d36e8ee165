"""The sums of ``fixed_point.py`` on a device: by torch operations, with the same bits.

Whether something was too large is looked at a micro-batch later: by then the device has the
answer, and nobody has waited for it. Until then the gradient stays.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class LeftOut(NamedTuple):
    """A gradient of which some elements are not in the sums: too large, or not finite."""

    slot: int
    values: Tensor  # all of it, flat
    exponent: int


class _Added(NamedTuple):
    gradient: LeftOut
    num_left_out: Tensor  # on the device


def add_scaled(sums: Tensor, values: Tensor, exponent: int, limit_bits: int) -> Tensor:
    """Add ``values * 2**exponent`` to ``sums``; how many were left out as too large or NaN."""
    scaled = values.to(torch.float64) * 2.0**exponent
    fits = scaled.abs() <= 2.0**limit_bits
    sums += torch.where(fits, scaled, 0.0).round().to(torch.int64)
    return (~fits).sum()


class DeviceSums:
    def __init__(self, sums: Sequence[Tensor], limit_bits: int) -> None:
        """``sums``: for each slot, flat."""
        self._sums, self._limit_bits = sums, limit_bits
        self._added: dict[int, _Added] = {}

    def add(self, slot: int, values: Tensor, exponent: int) -> list[LeftOut]:
        """What is found to be left out of earlier gradients."""
        found = self.left_out() if slot in self._added else []
        num = add_scaled(self._sums[slot], values, exponent, self._limit_bits)
        self._added[slot] = _Added(LeftOut(slot, values, exponent), num)
        return found

    def left_out(self) -> list[LeftOut]:
        """Of all that was added since this was last asked for."""
        added, self._added = list(self._added.values()), {}
        if not added:
            return []
        counts = torch.stack([one.num_left_out for one in added]).tolist()
        return [one.gradient for one, count in zip(added, counts, strict=True) if count]

    def clear(self) -> None:
        self._added.clear()
