"""A model as a job gives it, checked before anything is made of it."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from holdfast.errors import ConfigError


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


def _kind(value: object) -> str:
    return type(value).__name__
