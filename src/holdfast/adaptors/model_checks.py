"""A model as a job gives it, checked before anything is made of it."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from holdfast.errors import ConfigError

_TRAINED = (torch.float32, torch.bfloat16, torch.float16)


def check_model(model: object, layers: Sequence[Any] | nn.Sequential, split_points: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"Job.model is a {_kind(model)}: expected a torch module; a list of layers is given as "
            "Job.layers"
        )
    if len(layers):
        raise ConfigError("Job.layers and Job.model are both given: expected one of them")
    check_shapes("Job.model", model)
    if isinstance(split_points, str) or not isinstance(split_points, Sequence):
        raise ConfigError(
            f"Job.split_points={split_points!r}: expected a list of names of submodules"
        )
    known = dict(model.named_modules())
    for name in split_points:
        if not name or name not in known:
            raise ConfigError(
                f"Job.split_points: {name!r} is no submodule of Job.model ({_kind(model)}); "
                "expected names as model.named_modules() has them, such as "
                f"{list(known)[-1]!r}"
            )


def check_shapes(what: str, module: nn.Module) -> None:
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(
                f"{what} is a {_kind(module)} whose {name} has no shape yet: expected finished "
                "parameters; give the input size, e.g. nn.Linear(8, 4) for nn.LazyLinear(4), or "
                "run the layers once on a sample in job()"
            )


def check_trained(name: str, parameter: Tensor) -> None:
    """``name``: the model's own."""
    if parameter.requires_grad and parameter.dtype not in _TRAINED:
        raise ConfigError(
            f"parameter {name} is {_short(parameter.dtype)}: expected float32, bfloat16 or float16 "
            "of what is trained; cast it in job(), or freeze it with requires_grad_(False)"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _kind(value: object) -> str:
    return type(value).__name__
