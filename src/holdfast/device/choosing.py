"""Which device a worker computes on, as the settings say it and torch has it here."""

import os
from typing import Any

import torch

from holdfast.device.accelerator import Accelerator
from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import ConfigError

AUTO, CPU = "auto", "cpu"
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_NEEDED = ("Stream", "Event", "current_stream", "stream", "manual_seed", "mem_get_info")


def make_deterministic(kind: str) -> None:
    """Before a job is loaded, and before anything starts the device. A job may set otherwise."""
    if kind == CPU or (kind == AUTO and not torch.accelerator.is_available()):
        return
    os.environ.setdefault(_CUBLAS, ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def open_device(kind: str, index: int, slot: int) -> Device:
    """``slot``: of the worker on its machine. ConfigError: there is no such device here."""
    if kind == AUTO:
        kind = _found_by_torch()
        if kind == CPU and index >= 0:
            raise ConfigError(
                f"device.index={index}: torch {torch.__version__} finds no device on this machine; "
                "expected -1, or device.kind=cpu"
            )
    if kind == CPU:
        return PROCESSOR
    module = _module_of(kind)
    if lacks := _lacks(kind, module):
        raise ConfigError(
            f"device.kind={kind}: torch {torch.__version__} has no {lacks} for it, which a worker "
            "needs; set device.kind=cpu"
        )
    return Accelerator(kind, _index(kind, index, slot, module.device_count()))


def _found_by_torch() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or _lacks(found.type, torch.get_device_module(found.type)):
        return CPU
    return str(found.type)


def _module_of(kind: str) -> Any:
    try:
        torch.device(kind)
    except RuntimeError as why:
        raise ConfigError(
            f"device.kind={kind}: torch knows no such device; expected auto, cpu, cuda, xpu or "
            "another kind that torch has a module for"
        ) from why
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        raise ConfigError(
            f"device.kind={kind}: torch {torch.__version__} finds none on this machine; set "
            "device.kind=auto or cpu, or look for its driver"
        )
    return module


def _lacks(kind: str, module: Any) -> str:
    """What sums and copies cannot do without; empty: nothing."""
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if missing:
        return missing[0]
    try:
        torch.zeros((), dtype=torch.float64, device=kind)
    except (RuntimeError, TypeError):
        return "64-bit floating point"
    return ""


def _index(kind: str, index: int, slot: int, num_devices: int) -> int:
    if index < 0:
        return slot % num_devices
    if index >= num_devices:
        last = num_devices - 1
        raise ConfigError(
            f"device.index={index}: this machine has {kind} devices 0 to {last}; expected one of "
            "them, or -1 to share them out"
        )
    return index
