"""Costs that a run of ours has measured: medians of its operations, by stage."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind, Shape, parse_op

_LINK_SHARE = 0.1  # of the shortest operation, as the coordinator plans


def run_costs(source: str, recorded: Iterable[events.Event]) -> JobCosts:
    """Of the last launch in these events; ``source`` is for messages."""
    seen = list(recorded)
    starts = [at for at, event in enumerate(seen) if isinstance(event, events.RunStarted)]
    if not starts:
        raise ConfigError(f"{source}: no run has started there: expected a run's directory")
    started = seen[starts[-1]]
    assert isinstance(started, events.RunStarted)
    times_s = _times_s(seen[starts[-1] :])
    shape = Shape(started.pipelines, started.stages, started.microbatches)
    return JobCosts(
        name=f"the run in {source}",
        shape=shape,
        costs=_costs(source, times_s, shape.stages),
        samples_a_microbatch=(started.samples or started.microbatches) / started.microbatches,
    )


def _times_s(recorded: Iterable[events.Event]) -> dict[tuple[Kind, int], list[float]]:
    found: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for event in recorded:
        if isinstance(event, events.WorkerStep) and event.step > 0:  # the first one compiles
            for text, start_s, end_s in event.ops:
                op = parse_op(text)
                found[op.kind, op.stage].append(end_s - start_s)
    return found


def _costs(source: str, times_s: dict[tuple[Kind, int], list[float]], stages: int) -> Costs:
    def row(kind: Kind) -> list[float | None]:
        return [
            median(times_s[kind, stage]) if times_s.get((kind, stage)) else None
            for stage in range(stages)
        ]

    forward, inputs, weights, fused = (row(kind) for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
    whole = [
        both if both is not None else None if b is None or w is None else b + w
        for both, b, w in zip(fused, inputs, weights, strict=True)
    ]
    if None in forward or None in whole:
        raise ConfigError(
            f"{source}: no times of operations for every stage: expected a run with "
            "finished steps after the first"
        )
    backward_s = [seconds for seconds in whole if seconds is not None]
    forward_s = [seconds for seconds in forward if seconds is not None]
    half = tuple(seconds / 2 for seconds in backward_s)
    step = [seconds or 0.0 for seconds in row(Kind.R)]
    return Costs(
        forward_s=tuple(forward_s),
        input_s=tuple(h if b is None else b for h, b in zip(half, inputs, strict=True)),
        weight_s=tuple(h if w is None else w for h, w in zip(half, weights, strict=True)),
        fused_s=tuple(backward_s),
        step_s=tuple(step),
        link_s=_LINK_SHARE * min(*forward_s, *half),
    )
