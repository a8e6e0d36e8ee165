"""What the bits of a result depend on, besides the program: compared before workers are mixed."""

import os
import platform
from importlib.metadata import version

import numpy
import torch

from holdfast import instruction_set

_SWITCHES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")


def fingerprint() -> dict[str, str]:
    found = {
        "holdfast": version("holdfast"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "threads": str(torch.get_num_threads()),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "oneDNN instruction set": instruction_set.in_use(os.environ, instruction_set.read_cpu()),
        "machine": platform.machine(),
        "mkl": str(torch._C.has_mkl),
        "onednn": str(torch._C._has_mkldnn),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }
    return found | {name: os.environ[name] for name in _SWITCHES if name in os.environ}
