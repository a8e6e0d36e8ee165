"""What validations have brought, and which was the best. Pure: any process comes to the same."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.config import ValidationConfig


class Validation(NamedTuple):
    """Means over the samples of the validation set."""

    step: int
    """Optimizer steps that the parameters have had."""

    loss: float
    metrics: dict[str, float]

    def value(self, name: str) -> float:
        """Of the loss or of a metric; NaN: this run did not have it then."""
        return self.loss if name == "loss" else self.metrics.get(name, float("nan"))


def weighted_mean(values: Sequence[tuple[float, float]]) -> float:
    """Of (value, weight). Sums are rounded once: their order does not show. NaN: of nothing."""
    products = [value * weight for value, weight in values]
    total = math.fsum(weight for _, weight in values)
    if not total or not all(map(math.isfinite, products)):
        return sum(sorted(products, key=str)) if total else math.nan
    return math.fsum(products) / total


class BestSoFar(NamedTuple):
    best: Validation | None  # None: there was none with a number
    waited: int  # validations since then


def judged(validations: Sequence[Validation], config: ValidationConfig) -> BestSoFar:
    """In the order of their steps. NaN is never better."""
    best, waited = None, 0
    for one in validations:
        if _is_better(one, best, config):
            best, waited = one, 0
        else:
            waited += 1
    return BestSoFar(best, waited)


def _is_better(one: Validation, best: Validation | None, config: ValidationConfig) -> bool:
    sign = -1.0 if config.wants_more else 1.0
    value = sign * one.value(config.judged_by)
    if best is None:
        return value == value
    return value < sign * best.value(config.judged_by) - config.min_delta


def why_stopped(validations: Sequence[Validation], config: ValidationConfig) -> str:
    """Empty: there is still patience."""
    best, waited = judged(validations, config)
    if not config.patience or waited < config.patience:
        return ""
    name, number = config.judged_by, "1 validation" if waited == 1 else f"{waited} validations"
    if best is None:
        return f"{name} was no number in {number}"
    known = f"{name} {best.value(name):.4f} of step {best.step}"
    return f"{number} in a row no better than {known} (validation.patience={config.patience})"
