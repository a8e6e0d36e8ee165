"""Durations for the schedule: measured, emulated, or guessed from the number of layers. Pure."""

from collections.abc import Mapping, Sequence

from holdfast.schedule.costs import Costs

# Planned as if each hand-over took this share of the shortest operation: the lanes then have room
# for jitter where that costs nothing. 2 x 4 workers, 16 micro-batches, 1 ms late: 491 for 495 ms.
_SLACK = 0.1


def layer_costs(num_layers: Sequence[int]) -> Costs:
    """Costs by number of layers, when nothing was measured; backward is twice the forward."""
    return measured_costs([float(n) for n in num_layers], [2.0 * n for n in num_layers])


def measured_costs(forward_s: Sequence[float], backward_s: Sequence[float]) -> Costs:
    """Halves the backward in input and weight part: 0.48 to 0.6 of it is the input part."""
    half = tuple(seconds / 2 for seconds in backward_s)
    return Costs(
        forward_s=tuple(forward_s),
        input_s=half,
        weight_s=half,
        fused_s=tuple(backward_s),
        link_s=_SLACK * min(*forward_s, *half),
    )


def emulated_costs(durations_s: Mapping[str, float], stages: int) -> Costs | None:
    if not durations_s:
        return None
    return Costs.uniform(
        stages,
        forward_s=durations_s["F"],
        input_s=durations_s["B"],
        weight_s=durations_s["W"],
        fused_s=durations_s["BW"],
        step_s=durations_s["R"],
        link_s=_SLACK * min(durations_s[kind] for kind in "FBW"),
    )
