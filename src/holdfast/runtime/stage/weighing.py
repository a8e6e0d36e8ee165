"""What a micro-batch counts for, by the job's own function of its target."""

from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

from torch import Tensor

from holdfast.errors import ConfigError

Weigh = Callable[[Any], object]
_LEAST, _MOST = 1e-9, 1e15  # sums of them, and their inverse, stay far from the ends of fp64


class WeightedLoss(NamedTuple):
    """Of a micro-batch; 0 if it has no weight: then nobody has asked for its loss."""

    value: float
    weight: float


def checked_weight(value: object, where: str) -> float:
    """``where``: which micro-batch it was asked of."""
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    if is_number and (number == 0 or _LEAST <= number <= _MOST):  # type: ignore[operator]
        return float(number)  # type: ignore[arg-type]
    shape = f" of shape {tuple(number.shape)}" if isinstance(number, Tensor) else ""
    given = repr(number) if is_number else f"a {type(number).__name__}{shape}"
    raise ConfigError(
        f"Job.weight returned {given} for {where}: expected 0, or a number from {_LEAST:g} to "
        f"{_MOST:g}, such as its real tokens"
    )
