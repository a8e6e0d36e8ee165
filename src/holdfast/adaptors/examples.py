"""Inputs to trace a model with. Only their sizes and types matter."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from holdfast.errors import ConfigError


def first_inputs(
    data: Any, microbatch_size: int, collate: Callable[[list[Any]], Any] | None
) -> tuple[Tensor, ...]:
    """Of a micro-batch of the first samples."""
    samples = [data[index % len(data)] for index in range(microbatch_size)]
    batch = (collate or default_collate)(samples)
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ConfigError(
            f"a batch of Job.data is a {type(batch).__name__}: expected (input, target); let the "
            "data set return such pairs, or set Job.collate"
        )
    return given_inputs(batch[0], "an input in Job.data")


def given_inputs(given: Any, what: str) -> tuple[Tensor, ...]:
    inputs = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in inputs:
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{what} is a {type(value).__name__}: expected a tensor or a tuple of tensors, to "
                "trace Job.model with"
            )
    return inputs
