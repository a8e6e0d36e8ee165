"""What may be wrong in a recorded job, each with its share in the time of every operation: slow
workers and pipelines, slow transfers, uneven data, uneven stages. What it costs is not known here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.arrays import Flags, Floats, Ints
from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import Cause
from holdfast.detection.trace.effects import ComputeEffects, TransferEffects, computing, moving
from holdfast.detection.trace.graph import TraceGraph
from holdfast.detection.trace.stretches import RaisedStretch, noise_of, runs
from holdfast.detection.trace.trace import Trace

_LEAST_CORRELATION = 0.5


@dataclass(frozen=True)
class Candidate:
    cause: Cause
    subject: str
    workers: tuple[WorkerId, ...]
    factor: float
    run: RaisedStretch
    effect: Floats  # of each operation of the trace: log of how many times longer it is
    evidence: str
    excess_s: float = 0.0


def candidates_of(graph: TraceGraph) -> Iterator[Candidate]:
    found = computing(graph)
    if found is not None:
        workers = [*_workers(graph.trace, found), *_pipelines(graph.trace, found)]
        yield from workers
        own = sum((each.effect for each in workers), np.zeros(graph.trace.size))
        yield from _data(graph, found, own)
        yield from _stages(graph, found, own)
    transfers = moving(graph)
    if transfers is not None:
        yield from _transfers(graph, transfers)


def _workers(trace: Trace, found: ComputeEffects) -> Iterator[Candidate]:
    noise, is_there = noise_of(found.worker), ~np.isnan(found.worker).all(axis=0)
    for pipeline, lane in np.argwhere(is_there).tolist():
        for run in runs(found.worker[:, pipeline, lane], noise):
            yield _slow_worker(trace, found, pipeline, lane, run)


def _slow_worker(
    trace: Trace, found: ComputeEffects, pipeline: int, lane: int, run: RaisedStretch
) -> Candidate:
    worker, peer = WorkerId(pipeline, lane // found.peers), lane % found.peers
    at = (trace.pipeline == pipeline) & (trace.stage == worker.stage) & (trace.peer == peer)
    others = "those of its peers" if trace.layout.pipelines > 1 else "in the other steps"
    return Candidate(
        cause=Cause.COMPUTE,
        subject=str(worker) if found.peers == 1 else f"{worker} rank {trace.rank[at][0]}",
        workers=(worker,),
        factor=float(np.exp(run.level)),
        run=run,
        effect=_in_run(trace, found, at, run),
        evidence=(
            f"its operations take {np.exp(run.level):.2f} times as long as {others}, forward and "
            f"backward alike, in {_steps(trace, run)}; other stages take the usual time "
            "for the same micro-batches"
        ),
    )


def _pipelines(trace: Trace, found: ComputeEffects) -> Iterator[Candidate]:
    """All stages of a pipeline at once, step after step: not the data, which change."""
    one_lane = found.worker.shape[2] == 1
    for pipeline, run in found.slow_pipelines():
        at, factor = trace.pipeline == pipeline, float(np.exp(run.level))
        workers = sorted({WorkerId(pipeline, stage) for stage in trace.stage[at].tolist()})
        yield Candidate(
            cause=Cause.COMPUTE if one_lane else Cause.MACHINE,
            subject=str(workers[0]) if one_lane else f"pipeline {pipeline}",
            workers=tuple(workers),
            factor=factor,
            run=run,
            effect=_in_run(trace, found, at, run),
            evidence=(
                f"its operations take {factor:.2f} times as long as those of the other "
                f"pipelines, at every stage and in {_steps(trace, run)}"
            ),
        )


def _in_run(trace: Trace, found: ComputeEffects, at: Flags, run: RaisedStretch) -> Floats:
    rows = found.rows[at[found.rows]]
    within = (trace.step[rows] >= run.first) & (trace.step[rows] <= run.last)
    effect = np.zeros(trace.size)
    effect[rows[within]] = run.level
    return effect


def _data(graph: TraceGraph, found: ComputeEffects, own: Floats) -> Iterator[Candidate]:
    """Micro-batches of unequal work; even would be: each step's work, spread evenly."""
    trace, rows = graph.trace, found.rows
    correlation = found.correlation()
    if not correlation >= _LEAST_CORRELATION:
        return
    slow = np.zeros_like(found.pipeline)
    for pipeline, run in found.slow_pipelines():
        slow[run.first : run.last + 1, pipeline] = run.level
    share = found.data_of_rows(slow)
    step, _, lane, form, _ = found.at
    work_s = graph.work_s[rows] * np.exp(-own[rows])
    even_s = work_s * np.exp(-share)
    key = (step, lane, form)
    shape = tuple(int(index.max()) + 1 for index in key)
    flat = np.ravel_multi_index(key, shape)
    kept = np.bincount(flat, weights=work_s)[flat] / np.bincount(flat, weights=even_s)[flat]
    effect = np.zeros(trace.size)
    effect[rows] = share - np.log(kept)
    high, low = np.exp(np.quantile(share, [0.95, 0.05]))
    most, owners = _heaviest(found, work_s)
    yield Candidate(
        cause=Cause.DATA,
        subject="data",
        workers=(),
        factor=most,
        run=_all_steps(trace),
        effect=effect,
        evidence=(
            f"micro-batches are not alike: a long one takes {high / low:.1f} times as long as a "
            "short one, at all stages, forward and backward together (correlation "
            f"{correlation:.2f}); the pipeline with the most work in a step has {most:.2f} times "
            f"the mean, and {owners} of {trace.layout.pipelines} pipelines were that one"
        ),
    )


def _heaviest(found: ComputeEffects, work_s: Floats) -> tuple[float, int]:
    """Most work of a pipeline in a step, over the mean; and how many pipelines had the most."""
    step, pipeline, *_ = found.at
    shape = found.pipeline.shape
    flat = np.ravel_multi_index((step, pipeline), shape)
    total_s = np.bincount(flat, weights=work_s, minlength=shape[0] * shape[1]).reshape(shape)
    total_s = total_s[total_s.sum(axis=1) > 0]
    most = total_s.max(axis=1) / total_s.mean(axis=1)
    return float(most.mean()), len(np.unique(total_s.argmax(axis=1)))


def _stages(graph: TraceGraph, found: ComputeEffects, own: Floats) -> Iterator[Candidate]:
    trace, (_, _, lane, form, _) = graph.trace, found.at
    if trace.layout.stages < 2:
        return
    work_s = graph.work_s[found.rows] * np.exp(-own[found.rows])
    stage, forms = lane // found.peers, len(found.forms)
    flat = stage * forms + form
    mean_s = _means(work_s, flat, trace.layout.stages * forms).reshape(-1, forms)
    ratio = mean_s / _means(work_s, form, forms)
    effect = np.zeros(trace.size)
    effect[found.rows] = np.log(ratio[stage, form])
    total_s = mean_s.sum(axis=1)
    longest = int(np.argmax(total_s))
    factor = float(total_s[longest] / np.delete(total_s, longest).mean())
    alone = " (with one pipeline this may be a slow worker)" if trace.layout.pipelines == 1 else ""
    last = " (the last)" if longest == trace.layout.stages - 1 else ""
    yield Candidate(
        cause=Cause.MODEL,
        subject=f"stage {longest}",
        workers=tuple(sorted({WorkerId(p, longest) for p in set(found.at[1].tolist())})),
        factor=factor,
        run=_all_steps(trace),
        effect=effect,
        evidence=(
            f"a micro-batch takes {factor:.2f} times as long at stage {longest}{last} as at the "
            f"others on average, in all pipelines and steps{alone}: layers are cut unevenly"
        ),
    )


def _means(values: Floats, index: Ints, size: int) -> Floats:
    count = np.maximum(np.bincount(index, minlength=size), 1)
    mean = np.bincount(index, weights=values, minlength=size) / count
    return np.where(mean > 0, mean, values.mean())


def _transfers(graph: TraceGraph, found: TransferEffects) -> Iterator[Candidate]:
    noise = noise_of(found.level)
    for place in range(len(found.places)):
        for run in runs(found.level[:, place], noise):
            yield _slow_transfers(graph, found, place, run)


def _slow_transfers(
    graph: TraceGraph, found: TransferEffects, place: int, run: RaisedStretch
) -> Candidate:
    trace, (step, where, _) = graph.trace, found.at
    chosen = (where == place) & (step >= run.first) & (step <= run.last)
    rows, usual_s = found.rows[chosen], found.usual_s[chosen]
    effect = np.zeros(trace.size)
    effect[rows] = np.log(graph.work_s[rows] / usual_s)
    took_s, before_s = float(np.median(graph.work_s[rows])), float(np.median(usual_s))
    subject, workers = _place_name(trace, found.places[place])
    return Candidate(
        cause=Cause.LINK,
        subject=subject,
        workers=workers,
        factor=took_s / before_s,
        run=run,
        effect=effect,
        excess_s=took_s - before_s,
        evidence=(
            f"its transfers take {_time(took_s)} once both ends are there, {_time(before_s)} "
            f"is usual, in {_steps(trace, run)}"
        ),
    )


def _place_name(trace: Trace, place: tuple[int, ...]) -> tuple[str, tuple[WorkerId, ...]]:
    kind, pipeline, stage = place
    if kind < 0:
        ends = sorted([stage, (stage + 1) % trace.layout.stages])
        one, other = (WorkerId(pipeline, end) for end in ends)
        return f"{one}-{other}", (one, other)
    at = trace.kind == kind
    if stage >= 0:
        at, of = at & (trace.stage == stage), f" of stage {stage}"
    elif pipeline >= 0:
        at, of = at & (trace.pipeline == pipeline), f" of pipeline {pipeline}"
    else:
        of = " of all workers"
    workers = sorted({trace.worker_id(worker) for worker in np.unique(trace.worker[at]).tolist()})
    return trace.kinds[kind] + of, tuple(workers)


def _all_steps(trace: Trace) -> RaisedStretch:
    return RaisedStretch(0, len(trace.steps) - 1, 0.0)


def _steps(trace: Trace, run: RaisedStretch) -> str:
    if run.first == 0 and run.last == len(trace.steps) - 1:
        return "all recorded steps"
    first, last = trace.steps[run.first], trace.steps[run.last]
    return f"steps {first} to {last} ({run.last + 1 - run.first} of {len(trace.steps)} recorded)"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
