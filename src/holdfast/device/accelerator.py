"""One accelerator of any kind that torch has a module for: cuda, xpu, a kind of one's own."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from holdfast.device.processor import Device, DeviceMemory, Span
from holdfast.device.staging import Staging

_AnyT = TypeVar("_AnyT")
_MODEL = "device"  # names in a fingerprint
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
    def begin(self) -> Span:
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

    @override
    def description(self, *, mixed: bool = False) -> dict[str, str]:
        found = {f"{_MODEL} libraries": _libraries()}
        if mixed:
            return found | {f"{_MODEL} kind": self.kind}
        properties = self._module.get_device_properties(self.torch_device)
        numbers = {name: getattr(properties, name, None) for name in _PROPERTIES}
        known = [f"{name} {value}" for name, value in numbers.items() if value is not None]
        model = getattr(properties, "name", "of unknown model")
        return found | {_MODEL: " ".join([self.kind, model, *known])}

    @override
    def switches(self) -> dict[str, Callable[[], Any]]:
        kind, backends = self.kind, torch.backends
        found: dict[str, Callable[[], Any]] = {
            f"autocast on {kind}": lambda: torch.is_autocast_enabled(kind),
        }
        if kind == "cuda":
            found |= {
                "TF32 in cuBLAS": lambda: backends.cuda.matmul.allow_tf32,
                "TF32 in cuDNN": lambda: backends.cudnn.allow_tf32,
                "cuDNN benchmark": lambda: backends.cudnn.benchmark,
                "cuDNN deterministic": lambda: backends.cudnn.deterministic,
            }
        return found


class _EventSpan:
    """Between two events of the device, which are looked at when the numbers are wanted."""

    def __init__(self, module: Any) -> None:
        self._from, self._to = module.Event(enable_timing=True), module.Event(enable_timing=True)
        self._from.record()
        self._is_over = False

    def end(self) -> None:
        self._to.record()
        self._is_over = True

    def took_s(self) -> float | None:
        if not self._is_over or not self._to.query():
            return None
        return float(self._from.elapsed_time(self._to)) / 1000


def _libraries() -> str:
    versions = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "xpu": getattr(torch.version, "xpu", None),
    }
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
