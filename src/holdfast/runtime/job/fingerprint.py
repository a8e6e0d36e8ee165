"""What the bits of a result depend on, besides the program: compared before workers are mixed."""

import os
import platform

import numpy
import torch

import holdfast
from holdfast.device.processor import PROCESSOR, Device
from holdfast.host import instruction_set
from holdfast.protocol.messages import DEVICE
from holdfast.runtime.job.torch_settings import torch_settings

_SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
)


def fingerprint(device: Device = PROCESSOR, *, mixed: bool = False) -> dict[str, str]:
    """``mixed``: workers may have devices of several models."""
    found = {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "oneDNN instruction set": instruction_set.in_use(os.environ, instruction_set.read_cpu()),
        "machine": platform.machine(),
        "mkl": str(torch._C.has_mkl),
        "onednn": str(torch._C._has_mkldnn),
    }
    return (
        found
        | torch_settings(device)
        | _of_device(device, mixed)
        | {name: os.environ[name] for name in _SWITCHES if name in os.environ}
    )


def _of_device(device: Device, mixed: bool) -> dict[str, str]:
    model = {} if mixed or not device.model else {DEVICE: device.model}
    return model | ({f"{DEVICE} libraries": device.libraries} if device.libraries else {})
