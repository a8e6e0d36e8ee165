"""What a job calls its parameters, and its optimizer made from them.

Twins of a tied parameter have one name, that of the first: what a job decides by names it decides
alike for all of them, whatever stage they are in.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence

from torch import nn
from torch.optim import Optimizer

from holdfast.job import Job, own_name

WITH_NAMES = "named_parameters"


def takes_names(make: Callable[..., object]) -> bool:
    """Whether its first parameter says that it wants pairs, as of ``Module.named_parameters``."""
    try:
        given = list(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # written in C
        return False
    return given[:1] == [WITH_NAMES]


def first_keys(keys: Iterable[str], twins: Iterable[Sequence[tuple[int, str]]]) -> tuple[str, ...]:
    """As checkpoints name them: each, or the first of its twins, as (layer, path)."""
    first = {f"{layer}.{path}": "{}.{}".format(*tie[0]) for tie in twins for layer, path in tie}
    return tuple(first.get(key, key) for key in keys)


def make_optimizer(job: Job, keys: Sequence[str], parameters: Iterable[nn.Parameter]) -> Optimizer:
    """``keys``: of :func:`first_keys`."""
    if not takes_names(job.optimizer):
        return job.optimizer(list(parameters))
    names = [own_name(job, key) for key in keys]
    return job.optimizer(list(zip(names, parameters, strict=True)))
