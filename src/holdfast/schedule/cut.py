"""Where to cut a list of layers into stages. Pure: costs in, layer numbers out."""

from collections.abc import Sequence
from itertools import pairwise

from holdfast.errors import ConfigError


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
    """The cut whose dearest stage is cheapest; every stage gets at least one layer."""
    num_layers = len(costs_s)
    if num_stages > num_layers:
        raise ConfigError(
            f"parallel.stages={num_stages}: the job has only {num_layers} layers; "
            f"use at most {num_layers} stages or split its layers further"
        )
    sums = [0.0]
    for cost_s in costs_s:
        sums.append(sums[-1] + cost_s)
    # best[n] = (dearest stage, cut) of the first n layers in as many stages as rounds were run
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        n: (sums[n], ()) for n in range(1, num_layers + 1)
    }
    for stages in range(2, num_stages + 1):
        best = {
            n: min(
                (max(best[boundary][0], sums[n] - sums[boundary]), (*best[boundary][1], boundary))
                for boundary in range(stages - 1, n)
            )
            for n in range(stages, num_layers + 1)
        }
    return best[num_layers][1]
