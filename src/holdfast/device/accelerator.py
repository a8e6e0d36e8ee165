"""One accelerator of any kind that torch has a module for: cuda, xpu, a kind of one's own."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from holdfast.device.processor import Device, DeviceMemory, DeviceSpan
from holdfast.device.staging import Staging

_AnyT = TypeVar("_AnyT")
_PROPERTIES = ("multi_processor_count", "gpu_eu_count", "major", "minor", "driver_version")


class Accelerator(Device):
    def __init__(self, kind: str, index: int) -> None:
        """There is such a device. It is made the current one of this thread."""
        self.torch_device = torch.device(kind, index)
        self._module: Any = torch.get_device_module(kind)
        self._module.set_device(index)
        self._staging = Staging(self._module, self.torch_device)

    @override
    def place(self, tensor: Tensor) -> Tensor:
        if tensor.device == self.torch_device:
            return tensor
        return self._staging.to_device(tensor)

    @override
    def place_all(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.place(value)
        if isinstance(value, Mapping):
            return {name: self.place_all(inner) for name, inner in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.place_all, value))
        if isinstance(value, list | tuple):
            return type(value)(map(self.place_all, value))
        return value

    @override
    def place_layer(self, layer: nn.Module) -> nn.Module:
        return layer.to(self.torch_device)

    @override
    def lent(self, layer: _AnyT) -> _AnyT:
        if not isinstance(layer, nn.Module):
            return layer
        return deepcopy(layer).to(self.torch_device)

    @override
    def to_host(self, tensor: Tensor) -> Tensor:
        return tensor.detach() if tensor.is_cpu else self._staging.to_host(tensor)

    @override
    def host_copy(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if tensor.is_cpu else self._staging.to_host(tensor)

    @override
    def begin(self) -> DeviceSpan:
        return _EventSpan(self._module)

    @override
    def synchronize(self) -> None:
        self._module.synchronize(self.torch_device)

    @override
    def seed(self, value: int) -> None:
        self._module.manual_seed(value)

    @override
    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        state = self._module.get_rng_state(self.torch_device)
        try:
            yield
        finally:
            self._module.set_rng_state(state, self.torch_device)

    @override
    def memory(self) -> DeviceMemory:
        index = self.torch_device.index
        return DeviceMemory(
            used_bytes=self._module.memory_allocated(index),
            peak_bytes=self._module.max_memory_allocated(index),
            total_bytes=self._module.mem_get_info(index)[1],
        )

    @property
    @override
    def model(self) -> str:
        properties = self._module.get_device_properties(self.torch_device)
        numbers = {name: getattr(properties, name, None) for name in _PROPERTIES}
        known = [f"{name} {value}" for name, value in numbers.items() if value is not None]
        return ", ".join([str(getattr(properties, "name", "of unknown model")), *known])

    @property
    @override
    def libraries(self) -> str:
        versions = {
            "driver": _driver() if self.kind == "cuda" else None,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "cudnn": torch._C._cudnn.getCompileVersion() if torch.version.cuda else None,
            "xpu": getattr(torch.version, "xpu", None),
        }
        known = [f"{name} {version}" for name, version in versions.items() if version]
        return ", ".join([self.kind, *known])

    @override
    def switches(self) -> dict[str, Callable[[], Any]]:
        kind, backends = self.kind, torch.backends
        found: dict[str, Callable[[], Any]] = {
            "device autocast": lambda: torch.is_autocast_enabled(kind),
        }
        if kind == "cuda":
            found |= {
                "device TF32 in cuBLAS": lambda: backends.cuda.matmul.allow_tf32,
                "device TF32 in cuDNN": lambda: backends.cudnn.allow_tf32,
                "device cuDNN benchmark": lambda: backends.cudnn.benchmark,
                "device cuDNN deterministic": lambda: backends.cudnn.deterministic,
            }
        return found


class _EventSpan:
    """Between two events of the device, which are looked at when the numbers are wanted."""

    def __init__(self, module: Any) -> None:
        self._from, self._to = module.Event(enable_timing=True), module.Event(enable_timing=True)
        self._from.record()
        self._start_s, self._end_s = time.monotonic(), 0.0

    def end(self) -> None:
        self._to.record()
        self._end_s = time.monotonic()

    def longer_s(self) -> float:
        if not self._end_s or not self._to.query():
            return 0.0
        return float(self._from.elapsed_time(self._to)) / 1000 - (self._end_s - self._start_s)


def _driver() -> int | None:
    """The newest version of CUDA that it can do, as its number."""
    get = getattr(torch._C, "_cuda_getDriverVersion", None)
    return None if get is None else int(get())
