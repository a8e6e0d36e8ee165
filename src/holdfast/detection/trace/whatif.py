"""How much faster a recorded job would have been: every operation at the usual time of its kind,
or all but those of one worker, stage or kind. Which cause that speaks for is not known here."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from holdfast.arrays import Flags, Floats
from holdfast.detection.trace.graph import Meeting, TraceGraph, meeting
from holdfast.detection.trace.trace import Trace


@dataclass(frozen=True)
class WhatIf:
    """Seconds, mean of a step; slowdowns are against the ideal step."""

    recorded_s: float
    replayed_s: float  # with the recorded times, and no pause between operations
    ideal_s: float  # every operation takes what is usual for its kind
    by_step: Mapping[int, float]
    by_worker: Mapping[int, float]  # only this worker's operations as recorded, all others ideal
    by_stage: Mapping[int, float]
    by_kind: Mapping[str, float]

    @property
    def slowdown(self) -> float:
        return self.replayed_s / self.ideal_s if self.ideal_s else 1.0

    @property
    def pauses(self) -> float:
        """How many times as long as the replay the recorded steps are."""
        return self.recorded_s / self.replayed_s if self.replayed_s else 1.0


def ideal_work_s(graph: TraceGraph) -> Floats:
    """Mean over all workers for work (it could be spread evenly), median for transfers."""
    trace, ideal_s = graph.trace, np.empty(graph.trace.size)
    for number, kind in enumerate(trace.kinds):
        rows = trace.kind == number
        usual = np.mean if meeting(kind) is Meeting.NOBODY else np.median
        ideal_s[rows] = usual(graph.work_s[rows])
    return ideal_s


def what_if(graph: TraceGraph) -> WhatIf:
    trace, ideal_s = graph.trace, ideal_work_s(graph)
    as_ideal_s, as_recorded_s = graph.replay(ideal_s), graph.replay(graph.work_s)
    total_s = float(as_ideal_s.sum())

    def only(kept: Flags) -> float:
        replayed_s = graph.replay(np.where(kept, graph.work_s, ideal_s))
        return float(replayed_s.sum()) / total_s if total_s else 1.0

    return WhatIf(
        recorded_s=float(trace.recorded_s().mean()),
        replayed_s=float(as_recorded_s.mean()),
        ideal_s=float(as_ideal_s.mean()),
        by_step=_ratios(trace, as_recorded_s, as_ideal_s),
        by_worker={w: only(trace.worker == w) for w in np.unique(trace.worker).tolist()},
        by_stage={s: only(trace.stage == s) for s in np.unique(trace.stage).tolist()},
        by_kind={name: only(trace.kind == n) for n, name in enumerate(trace.kinds)},
    )


def _ratios(trace: Trace, slow_s: Floats, ideal_s: Floats) -> dict[int, float]:
    ratios = np.divide(slow_s, ideal_s, out=np.ones_like(slow_s), where=ideal_s > 0)
    return dict(zip(trace.steps, ratios.tolist(), strict=True))
