"""In which floating type layers and loss compute.

Mixed precision as torch has it: autocast around each layer and the loss. Parameters stay as the
job has built them.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from holdfast.errors import ConfigError

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Precision:
    dtype: torch.dtype | None = None
    """None: as the layers compute by themselves."""

    device_type: str = "cpu"

    @staticmethod
    def of(name: Literal["fp32", "bf16", "fp16"], device_type: str = "cpu") -> "Precision":
        """ConfigError if the device does not compute in it."""
        precision = Precision(_DTYPES[name], device_type)
        if precision.dtype is not None and not _is_supported(device_type, precision.dtype):
            raise ConfigError(
                f"train.precision={name}: torch {torch.__version__} has no autocast to "
                f"{precision.dtype} on {device_type}; set train.precision=fp32"
            )
        return precision

    def autocast(self) -> AbstractContextManager[object]:
        """A new one for each use: torch's own cannot be entered twice."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device_type, self.dtype)


FP32 = Precision()


def _is_supported(device_type: str, dtype: torch.dtype) -> bool:
    """torch turns autocast off, with a warning, or raises, for what it cannot do."""
    try:
        with torch.autocast(device_type, dtype):
            return bool(torch.is_autocast_enabled(device_type))
    except RuntimeError:
        return False
