"""Where a stage's weight gradients add up over the micro-batches of a step.

Two accumulators with one interface: ``ExactGradients`` sums in fixed point, so that the result does
not depend on who summed what in which order; ``FastGradients`` sums in fp32, in place, by autograd.
A reduction with others only reads them, so that a failed one can be started again; without others
it takes their memory, and cannot fail.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from holdfast.arrays import Ints
from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import ConfigError
from holdfast.runtime.reduce.device_sums import DeviceSums
from holdfast.runtime.reduce.flat_layout import FlatLayout
from holdfast.runtime.reduce.loss_scale import LossScale

_CHUNK = 65536  # elements whose fp64 copy stays in cache
_NO_SPILL = torch.empty((0, 3), dtype=torch.int64)


class Gradients(Protocol):
    """What a reduction needs to know of an accumulator."""

    @property
    def layout(self) -> FlatLayout: ...
    @property
    def flat(self) -> Tensor:
        """On the device; all else that is asked for or given here is on the host."""
        ...

    @property
    def device(self) -> Device: ...
    @property
    def order_matters(self) -> bool:
        """Whether adding partial sums in another order changes bits."""
        ...

    @property
    def touched(self) -> tuple[bool, ...]: ...
    @property
    def nonfinite(self) -> bool: ...
    @property
    def exponents(self) -> tuple[int, ...]: ...
    def spilled(self, slot: int) -> Tensor: ...
    def round_into(self, out: Tensor, total: Tensor, exponent: int, spill: Tensor) -> None: ...
    def take_reduced(self) -> Tensor:
        """The sums as a reduced gradient, in the memory that they are in, if nobody else has a
        share in them. There are none then, until ``begin``."""
        ...

    def measure(self, values: Tensor) -> tuple[float, float]: ...


class ExactGradients:
    """Sums in 64-bit fixed point, each slot with its own power-of-two scale.

    ``num_contributions`` is the number of micro-batches of a step of the whole job, times the most
    twins that a tied parameter has: a constant of the job, whatever the routing. What is added is
    divided by the loss scale, exactly: another exponent is all that takes.
    """

    native = False
    order_matters = False

    def __init__(
        self,
        layout: FlatLayout,
        num_contributions: int,
        loss_scale: LossScale | None = None,
        device: Device = PROCESSOR,
    ) -> None:
        from holdfast.runtime.reduce import fixed_point  # loads Numba: in exact mode only

        if not 1 <= num_contributions <= fixed_point.MAX_CONTRIBUTIONS:
            raise ConfigError(
                f"exact gradients sum 1 to {fixed_point.MAX_CONTRIBUTIONS} micro-batches a step, "
                f"not {num_contributions}; use gradients = 'fast'"
            )
        self.layout, self.device = layout, device
        self._nonfinite = False
        self._fixed = fixed_point
        self._loss_scale = loss_scale or LossScale()
        self._num_contributions = num_contributions
        self._limit_bits = fixed_point.contribution_bits(num_contributions)
        self._exponents = (fixed_point.FIRST_EXPONENT,) * len(layout.slots)
        self._touched = [False] * len(layout.slots)
        self._spill: dict[int, Ints] = {}
        self._flat: Tensor | None = None
        self.begin()

    def begin(self) -> None:
        """Sums to add to, if the last ones were taken."""
        if self._flat is None:
            flat = self._flat = torch.zeros(
                self.layout.numel, dtype=torch.int64, device=self.device.torch_device
            )
            slots = range(len(self.layout.slots))
            sums = [self.layout.view(flat, i).view(-1) for i in slots]
            self._there = None if flat.is_cpu else DeviceSums(sums, self._limit_bits)
            self._sums = [one.numpy() for one in sums] if flat.is_cpu else []

    @property
    def flat(self) -> Tensor:
        self.begin()
        assert self._flat is not None
        return self._flat

    def add(self, slot: int, gradient: Tensor) -> None:
        """Add one micro-batch's gradient. NaN and Inf only raise the ``nonfinite`` flag."""
        self.begin()
        if gradient.shape != self.layout.slots[slot].shape:
            raise ValueError(f"{self._describe(slot)} got a gradient of {tuple(gradient.shape)}")
        values = gradient.detach().to(torch.float32).contiguous().view(-1)
        exponent = self._exponents[slot] - self._loss_scale.bits
        if self._there is not None:
            for left_out in self._there.add(slot, values, exponent):
                self._add_left_out(*left_out)
        elif self._fixed.add_scaled(
            self._sums[slot], values.numpy(), 2.0**exponent, 2.0**self._limit_bits
        ):
            self._add_left_out(slot, values, exponent)
        self._touched[slot] = True

    def _look_at_device(self) -> None:
        for left_out in [] if self._there is None else self._there.left_out():
            self._add_left_out(*left_out)

    def _add_left_out(self, slot: int, values: Tensor, exponent: int) -> None:
        values = self.device.to_host(values)
        self._nonfinite = self._nonfinite or not bool(values.isfinite().all())
        rows = self._fixed.split(values.numpy(), exponent, self._limit_bits)
        before = self._spill.get(slot)
        self._spill[slot] = rows if before is None else self._fixed.joined(before, rows)

    @property
    def nonfinite(self) -> bool:
        self._look_at_device()
        return self._nonfinite

    @property
    def touched(self) -> tuple[bool, ...]:
        """For each slot: has any micro-batch contributed since ``clear``?"""
        return tuple(self._touched)

    @property
    def exponents(self) -> tuple[int, ...]:
        return self._exponents

    @exponents.setter
    def exponents(self, exponents: Sequence[int]) -> None:
        low, high = self._fixed.MIN_EXPONENT, self._fixed.MAX_EXPONENT
        if any(self._touched):
            raise ValueError("exponents change between steps only: clear the gradients first")
        if len(exponents) != len(self.layout.slots):
            raise ConfigError(f"{len(exponents)} exponents for {len(self.layout.slots)} slots")
        if not all(low <= exponent <= high for exponent in exponents):
            raise ConfigError(f"exponents must be within {low} and {high}, got {list(exponents)}")
        self._exponents = tuple(exponents)

    def next_exponents(self, maxima: Sequence[float]) -> tuple[int, ...]:
        """Exponents for the next step, from each slot's largest reduced element of this one."""
        return tuple(
            self._fixed.next_exponent(largest, self._num_contributions)
            if 0 < largest < math.inf
            else current
            for largest, current in zip(maxima, self._exponents, strict=True)
        )

    def clear(self) -> None:
        """Begin a new step."""
        if self._flat is not None:
            self._flat.zero_()
        self._nonfinite = False
        if self._there is not None:
            self._there.clear()
        self._touched = [False] * len(self.layout.slots)
        self._spill.clear()

    def spilled(self, slot: int) -> Tensor:
        """What was too large for the slot's sums, as rows (bin, index in the slot, count)."""
        self._look_at_device()
        rows = self._spill.get(slot)
        return _NO_SPILL if rows is None else torch.from_numpy(rows)

    def round_into(self, out: Tensor, total: Tensor, exponent: int, spill: Tensor) -> None:
        """Sums and what was spilled, rounded to fp32 once."""
        self._fixed.round_scaled(out.numpy(), total.numpy(), 2.0**-exponent)
        self._fixed.round_split(out.numpy(), total.numpy(), exponent, spill.numpy())

    def take_reduced(self) -> Tensor:
        """An fp32 number takes half the room of its sum, so none is written over before it is
        read."""
        self._look_at_device()
        sums = self.device.to_host(self.flat)
        self._flat, self._sums, self._there = None, [], None
        out = sums.view(torch.float32)[: self.layout.numel]
        for slot, place in enumerate(self.layout.slots):
            spill = self.spilled(slot)
            for low in range(place.start, place.stop, _CHUNK):
                here = slice(low, min(low + _CHUNK, place.stop))
                rows = rows_within(spill, low - place.start, here.stop - place.start)
                self.round_into(out[here], sums[here].clone(), self._exponents[slot], rows)
        return out

    def measure(self, values: Tensor) -> tuple[float, float]:
        """Sum of squares in fp64, and the largest magnitude, of a padded slot."""
        return self._fixed.measure(values.numpy())

    def _describe(self, slot: int) -> str:
        place = self.layout.slots[slot]
        return f"{place.name} of shape {tuple(place.shape)}"


class FastGradients:
    """Sums in fp32. Autograd adds straight into the flat vector, through ``parameter.grad``.

    What was touched is told by the version counter that torch raises with every in-place change;
    the views must not share the flat vector's own counter, hence ``.data``. Sums are scaled as the
    loss is; the reduced gradient is not.
    """

    order_matters = True
    nonfinite = False  # not watched while adding: the reduced gradient shows it

    def __init__(
        self,
        layout: FlatLayout,
        loss_scale: LossScale | None = None,
        device: Device = PROCESSOR,
    ) -> None:
        self.layout, self.device = layout, device
        self._loss_scale = loss_scale or LossScale()
        self.native = all(slot.dtype == torch.float32 for slot in layout.slots)
        self.exponents = (0,) * len(layout.slots)
        self._attached: tuple[Tensor, ...] = ()
        self._flat: Tensor | None = None
        self.begin()

    def begin(self) -> None:
        """Sums to add to, if the last ones were taken: before any backward."""
        if self._flat is None:
            flat = self._flat = torch.zeros(
                self.layout.numel, dtype=torch.float32, device=self.device.torch_device
            )
            self._views = [self.layout.view(flat, i).data for i in range(len(self.layout.slots))]
            self._versions = [view._version for view in self._views]
            if self._attached:
                self.attach(self._attached)

    @property
    def flat(self) -> Tensor:
        self.begin()
        assert self._flat is not None
        return self._flat

    def attach(self, parameters: Sequence[Tensor]) -> None:
        """Let autograd accumulate here from now on; again whenever ``.grad`` was replaced."""
        if not self.native:
            raise ValueError("autograd accumulates in place for fp32 parameters only: use add()")
        self._attached = tuple(parameters)
        for parameter, view in zip(parameters, self._views, strict=True):
            parameter.grad = view

    def add(self, slot: int, gradient: Tensor) -> None:
        self.begin()
        self._views[slot].add_(gradient.detach())

    @property
    def touched(self) -> tuple[bool, ...]:
        """For each slot: has any micro-batch contributed since ``clear``?"""
        if self._flat is None:
            return (False,) * len(self.layout.slots)
        now = [view._version for view in self._views]
        return tuple(a != b for a, b in zip(now, self._versions, strict=True))

    def clear(self) -> None:
        """Begin a new step."""
        if self._flat is not None:
            self._flat.zero_()
        self._versions = [view._version for view in self._views]

    def spilled(self, slot: int) -> Tensor:
        return _NO_SPILL

    def round_into(self, out: Tensor, total: Tensor, exponent: int, spill: Tensor) -> None:
        out.copy_(total)
        if self._loss_scale.bits:
            out.mul_(2.0**-self._loss_scale.bits)

    def take_reduced(self) -> Tensor:
        flat = self.flat
        self._flat, self._views, self._versions = None, [], []
        for parameter in self._attached:
            parameter.grad = None
        if self._loss_scale.bits:
            flat.mul_(2.0**-self._loss_scale.bits)
        return self.device.to_host(flat)

    def measure(self, values: Tensor) -> tuple[float, float]:
        """Sum of squares in fp64, and the largest magnitude, of a padded slot."""
        if not values.numel():
            return 0.0, 0.0
        norms = [
            torch.linalg.vector_norm(chunk, dtype=torch.float64).item()
            for chunk in torch.split(values, _CHUNK)
        ]
        low, high = values.aminmax()
        return math.fsum(norm * norm for norm in norms), max(-low.item(), high.item())


def rows_within(spill: Tensor, low: int, high: int) -> Tensor:
    """Those for elements low to high, counted from low; there are hardly ever any rows at all."""
    if not len(spill):
        return spill
    return spill[(spill[:, 1] >= low) & (spill[:, 1] < high)] - torch.tensor([0, low, 0])
