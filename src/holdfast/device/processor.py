"""The interface to where a worker computes, and its simplest case: the processor.

Tensors are on the device while they are computed with. All that leaves a worker, or is kept for
others, is on the host: messages, logs, checkpoints, hashes. Nothing else copies between the two.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

_AnyT = TypeVar("_AnyT")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    used_bytes: int
    peak_bytes: int
    total_bytes: int


class DeviceSpan(Protocol):
    """One operation on the device."""

    def end(self) -> None:
        """The device has been given all of it."""
        ...

    def longer_s(self) -> float:
        """Than the clock said. Never waits: 0 as long as the device is not done with it."""
        ...


class Device:
    """The processor: tensors are where they are needed, operations are over when they return."""

    torch_device = torch.device("cpu")

    @property
    def kind(self) -> str:
        return self.torch_device.type

    @property
    def index(self) -> int:
        """Among the devices of its kind on this machine."""
        return self.torch_device.index or 0

    # --- where tensors are ---

    def place(self, tensor: Tensor) -> Tensor:
        """On the device: itself if it is there, else a contiguous copy."""
        return tensor

    def place_all(self, value: Any) -> Any:
        """All tensors of nested lists, tuples and mappings."""
        return value

    def place_layer(self, layer: nn.Module) -> nn.Module:
        """In place: parameters stay the objects they are."""
        return layer

    def lent(self, layer: _AnyT) -> _AnyT:
        """To be thrown away: a copy of a module on the device, anything else as it is."""
        return layer

    def to_host(self, tensor: Tensor) -> Tensor:
        """Detached: itself if it is there, else a contiguous copy."""
        return tensor.detach()

    def host_copy(self, tensor: Tensor) -> Tensor:
        """In memory of its own."""
        return tensor.detach().clone()

    # --- time ---

    def begin(self) -> DeviceSpan | None:
        """Of an operation that is given to the device from here on; None: the clock tells."""
        return None

    def synchronize(self) -> None:
        """Until all that the device was given is done."""

    # --- random numbers, besides those of the processor ---

    def seed(self, value: int) -> None: ...

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """What is drawn inside does not show afterwards."""
        yield

    # --- what it is ---

    def memory(self) -> DeviceMemory | None:
        """None: that of the process."""
        return None

    @property
    def model(self) -> str:
        """What bits depend on, besides the host; empty: nothing."""
        return ""

    @property
    def libraries(self) -> str:
        """And their versions; empty: none but those of the host."""
        return ""

    def switches(self) -> dict[str, Callable[[], Any]]:
        """Settings of torch that change bits there."""
        return {}


PROCESSOR = Device()
