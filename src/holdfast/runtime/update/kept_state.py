"""What an optimizer keeps beside a parameter, as tensors and back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import ConfigError

_SCALAR_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
}


def cloned(state: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.detach().clone() if isinstance(v, Tensor) else v for n, v in state.items()}


def as_tensor(value: object) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if type(value) not in _SCALAR_DTYPES:
        raise ConfigError(
            f"the optimizer keeps a {type(value).__name__}, which a checkpoint cannot hold; "
            "use one whose state is tensors and numbers"
        )
    return torch.tensor(value, dtype=_SCALAR_DTYPES[type(value)])


def as_kept(name: str, value: Tensor) -> tuple[str, object]:
    """Name and value as the optimizer had them: numbers as numbers."""
    return (name[:-1], value.item()) if name.endswith("#") else (name, value)
