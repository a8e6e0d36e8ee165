"""Why a recorded job was slower than it could have been: who, since when, how much, and how it
shows. A cause is named if it alone makes steps longer; what to do about it is not known here."""

from dataclasses import dataclass

import numpy as np

from holdfast.arrays import Floats
from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import Cause
from holdfast.detection.trace.candidates import Candidate, candidates_of
from holdfast.detection.trace.graph import TraceGraph
from holdfast.detection.trace.trace import Trace

LEAST_COST = 0.02  # of the step; less is not worth anybody's time


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    cause: Cause
    subject: str  # "3.1", "2.0-2.1", "pipeline 3", "stage 3", "data", "reduce-scatter of stage 1"
    workers: tuple[WorkerId, ...]
    factor: float  # operations, or transfers, take so many times as long
    excess_s: float  # of a transfer; else 0
    since: int  # step, as numbered in the trace
    until: int | None  # None: to the end of the trace
    cost: float  # 0.2: with nothing else wrong, the steps concerned would be 20 % longer
    evidence: str


@dataclass(frozen=True)
class Findings:
    named: tuple[Finding, ...]  # the most expensive first
    without_s: float  # mean of a step without all that is named


def find_causes(graph: TraceGraph) -> Findings:
    candidates = list(candidates_of(graph))
    total = sum((each.effect for each in candidates), np.zeros(graph.trace.size))
    clean_s = graph.replay(graph.work_s * np.exp(-total))
    costs = [_cost(graph, each, total, clean_s) for each in candidates]
    kept = [(each, cost) for each, cost in zip(candidates, costs, strict=True) if cost > LEAST_COST]
    kept.sort(key=lambda pair: -pair[1] * (pair[0].run.last + 1 - pair[0].run.first))
    named = sum((each.effect for each, _ in kept), np.zeros(graph.trace.size))
    without_s = float(graph.replay(graph.work_s * np.exp(-named)).mean())
    return Findings(tuple(_finding(graph.trace, *pair) for pair in kept), without_s)


def _cost(graph: TraceGraph, candidate: Candidate, total: Floats, clean_s: Floats) -> float:
    """How much longer steps are with this alone than with nothing wrong."""
    only_s = graph.replay(graph.work_s * np.exp(candidate.effect - total))
    steps = slice(candidate.run.first, candidate.run.last + 1)
    base_s = float(clean_s[steps].sum())
    return float(only_s[steps].sum()) / base_s - 1 if base_s else 0.0


def _finding(trace: Trace, candidate: Candidate, cost: float) -> Finding:
    run = candidate.run
    return Finding(
        cause=candidate.cause,
        subject=candidate.subject,
        workers=candidate.workers,
        factor=candidate.factor,
        excess_s=candidate.excess_s,
        since=trace.steps[run.first],
        until=None if run.last == len(trace.steps) - 1 else trace.steps[run.last],
        cost=cost,
        evidence=candidate.evidence,
    )
