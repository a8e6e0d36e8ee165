"""Where to cut a list of layers into stages. Pure: costs in, layer numbers out."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

from holdfast.errors import ConfigError

_NOISE = 1.05  # times that were measured twice may differ by this
_Weight: TypeAlias = tuple[float, ...]


def stage_ranges(cut: Sequence[int], num_layers: int) -> list[range]:
    """Layers of each stage, for a cut given as the first layer of each stage after the first."""
    boundaries = [0, *cut, num_layers]
    if any(first >= after for first, after in pairwise(boundaries)):
        raise ConfigError(
            f"cut={list(cut)}: layer numbers must rise and lie in 1 .. {num_layers - 1}, "
            "so that every stage has a layer"
        )
    return [range(first, after) for first, after in pairwise(boundaries)]


def equal_cut(costs_s: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """The cut whose dearest stage is cheapest; every stage gets at least one layer.

    Of cuts that differ by less than times do from one measurement to the next, the one with the
    fewest layers in its largest stage: equal layers are cut evenly.
    """
    num_layers = len(costs_s)
    if num_stages > num_layers:
        raise ConfigError(
            f"parallel.stages={num_stages}: the job has only {num_layers} layers; "
            f"use at most {num_layers} stages or split its layers further"
        )
    sums = list(accumulate(costs_s, initial=0.0))
    dearest_s, _ = _best(num_layers, num_stages, lambda first, after: (sums[after] - sums[first],))
    limit_s = dearest_s[0] * _NOISE
    _, cut = _best(
        num_layers,
        num_stages,
        lambda first, after: (max(sums[after] - sums[first], limit_s), after - first),
    )
    return cut


def _best(
    num_layers: int, num_stages: int, weight: Callable[[int, int], _Weight]
) -> tuple[_Weight, tuple[int, ...]]:
    """(heaviest stage, cut), where that stage is lightest.

    ``weight``: of a stage, by its first layer and the first one after it.
    """
    # best[n]: of the first n layers, in as many stages as rounds were run
    best: dict[int, tuple[_Weight, tuple[int, ...]]] = {
        n: (weight(0, n), ()) for n in range(1, num_layers + 1)
    }
    for stages in range(2, num_stages + 1):
        best = {
            n: min(
                (max(best[boundary][0], weight(boundary, n)), (*best[boundary][1], boundary))
                for boundary in range(stages - 1, n)
            )
            for n in range(stages, num_layers + 1)
        }
    return best[num_layers]
