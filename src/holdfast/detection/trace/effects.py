"""Takes recorded times apart: what is usual for the stage, what the data of a micro-batch add at
all stages, what one worker or link adds. Logarithms of factors throughout.

What it costs, and what to call it, is not known here.
"""

import math
from dataclasses import dataclass

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.detection.trace.graph import Meeting, TraceGraph, meeting
from holdfast.detection.trace.stretches import RaisedStretch, middle, noise_of, runs
from holdfast.detection.trace.trace import Trace, place_among
from holdfast.errors import ConfigError

_FEW_STEPS = 5
_MANY_CELLS = 50_000_000
_MOST_CELLS_A_ROW = 100
_STEEPEST = 2.0  # attention: twice the length, four times the work


@dataclass(frozen=True)
class ComputeEffects:
    """Operations on micro-batches. Axes: step, pipeline, lane (a rank of a stage), form (forward
    or backward of a chunk), micro-batch."""

    rows: Ints  # of the trace
    at: tuple[Ints, ...]  # index of each row on the five axes
    forms: tuple[str, ...]  # kind of each form
    peers: int  # lanes a stage
    log_s: Floats  # above what is usual for lane and form; NaN: no such operation
    data: Floats  # step, pipeline, micro-batch: what they share at all stages
    slope: Floats  # lane, form: how much of ``data`` it shows
    pipeline: Floats  # step, pipeline: lowest of ``data``, above the other pipelines
    worker: Floats  # step, pipeline, lane: beyond what the data explain

    def slow_pipelines(self) -> list[tuple[int, RaisedStretch]]:
        noise = noise_of(self.pipeline)
        if len(self.pipeline) < _FEW_STEPS:
            # They do not show how data vary from step to step; within a step must do.
            away = self.data - middle(self.data, 2)[..., None]
            noise = max(noise, float(np.sqrt(np.nanmean(away**2))))
        return [
            (pipeline, run)
            for pipeline in np.flatnonzero(~np.isnan(self.pipeline).all(axis=0)).tolist()
            for run in runs(self.pipeline[:, pipeline], noise)
        ]

    def data_of_rows(self, pipeline_effect: Floats) -> Floats:
        """What the data add to each row; not what makes a pipeline slow all the time."""
        step, pipeline, lane, form, microbatch = self.at
        own = self.data[step, pipeline, microbatch] - pipeline_effect[step, pipeline]
        return self.slope[lane, form] * own

    def correlation(self) -> float:
        """Of forward and backward times of the same micro-batches. NaN: not known."""
        kinds = sorted(set(self.forms))
        if len(kinds) < 2:
            return float("nan")
        first, second = (
            middle(self.log_s[:, :, :, [form == kind for form in self.forms]], 3)
            for kind in kinds[:2]
        )
        level = self.worker[..., None]
        first, second = (first - level).ravel(), (second - level).ravel()
        both = ~np.isnan(first) & ~np.isnan(second)
        if both.sum() < 3 or not (np.ptp(first[both]) and np.ptp(second[both])):
            return float("nan")
        return float(np.corrcoef(first[both], second[both])[0, 1])


def computing(graph: TraceGraph) -> ComputeEffects | None:
    """None: the trace has no computation on micro-batches."""
    trace = graph.trace
    is_compute = np.array([kind.endswith("-compute") for kind in trace.kinds])
    rows = np.flatnonzero(is_compute[trace.kind] & (trace.microbatch >= 0) & (graph.work_s > 0))
    if not len(rows):
        return None
    forms, form = _forms(trace, rows)
    peers = int(trace.peer.max()) + 1
    lane = trace.stage[rows] * peers + trace.peer[rows]
    step, pipeline = trace.step[rows], trace.pipeline[rows]
    turn = place_among(trace.microbatch[rows], step * trace.layout.pipelines + pipeline)
    at = (step, pipeline, lane, form, turn)
    log_s = table(np.log(graph.work_s[rows]), at)
    log_s = log_s - middle(middle(log_s, 4), (0, 1), lower=True)[:, :, None]
    data = middle(middle(log_s, 3), 2, lower=True)
    slope = _slopes(log_s, data)
    rest = log_s - slope[:, :, None] * data[:, :, None, None, :]
    by_worker = _above_others(middle(rest, (3, 4)))
    # A slow machine slows every micro-batch; data leave some that are short.
    by_pipeline = _above_others(np.fmin.reduce(data, axis=2))
    return ComputeEffects(rows, at, forms, peers, log_s, data, slope, by_pipeline, by_worker)


def _forms(trace: Trace, rows: Ints) -> tuple[tuple[str, ...], Ints]:
    pairs = np.stack([trace.kind[rows], trace.chunk[rows]])
    forms, form = np.unique(pairs, axis=1, return_inverse=True)
    return tuple(trace.kinds[kind] for kind in forms[0]), form.ravel().astype(np.int64)


def _slopes(log_s: Floats, data: Floats) -> Floats:
    """Forward and backward do not grow alike with the size of a micro-batch."""
    shared = np.broadcast_to(data[:, :, None, None, :], log_s.shape)
    both = ~np.isnan(log_s) & ~np.isnan(shared)
    x, y = np.where(both, shared, 0.0), np.where(both, log_s, 0.0)
    up, down = (x * y).sum(axis=(0, 1, 4)), (x * x).sum(axis=(0, 1, 4))
    slope = np.divide(up, down, out=np.ones_like(up), where=down > 0)
    return np.asarray(np.clip(slope, 0.0, _STEEPEST))


def _above_others(values: Floats) -> Floats:
    """``values``: step, pipeline, ... What all pipelines show at once is nobody's fault."""
    if values.shape[1] < 2:
        return values
    return values - middle(values, 1, lower=True)[:, None]


@dataclass(frozen=True)
class TransferEffects:
    """Transfers that meet in one place: a link of two neighbours, or the members of a collective.
    Axes: step, place, slot."""

    rows: Ints
    at: tuple[Ints, ...]
    places: tuple[tuple[int, ...], ...]  # kind (a link: -1), pipeline or -1, stage or -1
    usual_s: Floats  # of each row
    level: Floats  # step, place: log of how much longer than usual


def moving(graph: TraceGraph) -> TransferEffects | None:
    """None: the trace has no transfers."""
    trace = graph.trace
    meets = np.array([meeting(kind).value for kind in trace.kinds])[trace.kind]
    rows = np.flatnonzero((meets != Meeting.NOBODY.value) & (graph.work_s > 0))
    if not len(rows):
        return None
    found, place = np.unique(_places(trace, rows, meets[rows]), axis=1, return_inverse=True)
    slots = np.stack([trace.kind[rows], trace.sequence[rows], trace.chunk[rows]])
    _, slot = np.unique(slots, axis=1, return_inverse=True)
    at = (trace.step[rows], place.ravel().astype(np.int64), slot.ravel().astype(np.int64))
    usual = _usual(graph, rows, at)
    log_s = table(np.log(graph.work_s[rows]) - usual, at)
    places = tuple(tuple(each) for each in found.T.tolist())
    return TransferEffects(rows, at, places, np.exp(usual), middle(log_s, 2))


def _places(trace: Trace, rows: Ints, meets: Ints) -> Ints:
    """Kind, pipeline, stage; a link is named by the stage before it."""
    kind, none = trace.kind[rows], np.full(len(rows), -1)
    pipeline, stage = trace.pipeline[rows], trace.stage[rows]
    # A stage sends forward and receives gradients over the boundary behind it.
    down = np.array([_faces_next(name) for name in trace.kinds])[kind]
    boundary = np.where(down, stage, (stage - 1) % trace.layout.stages)
    of = {
        Meeting.NEIGHBOUR: (none, pipeline, boundary),
        Meeting.STAGE: (kind, none, stage),
        Meeting.ENDS: (kind, pipeline, none),
        Meeting.ALL: (kind, none, none),
    }
    place = np.stack([kind, none, none])
    for which, columns in of.items():
        place = np.where(meets == which.value, np.stack(columns), place)
    return place


def _faces_next(kind: str) -> bool:
    return kind in ("forward-send", "backward-recv")


def _usual(graph: TraceGraph, rows: Ints, at: tuple[Ints, ...]) -> Floats:
    """Log of what a transfer of the kind takes at most places and in most steps."""
    kind, usual = graph.trace.kind[rows], np.empty(len(rows))
    for number in np.unique(kind):
        own = kind == number
        cells = table(np.log(graph.work_s[rows][own]), tuple(index[own] for index in at))
        usual[own] = middle(middle(cells, 2), (0, 1), lower=True)
    return usual


def table(values: Floats, at: tuple[Ints, ...]) -> Floats:
    """A value for each combination of indices: the mean of those that share it, or NaN."""
    shape = tuple(int(index.max()) + 1 for index in at)
    size = math.prod(shape)
    if size > max(_MANY_CELLS, _MOST_CELLS_A_ROW * len(values)):
        raise ConfigError(
            f"{len(values)} operations are spread over {size:.0e} places; expected numbers without "
            "large gaps: check the columns step, dp_rank, stage, rank and seq_id"
        )
    flat = np.ravel_multi_index(at, shape)
    total = np.bincount(flat, weights=values, minlength=size)
    count = np.bincount(flat, minlength=size)
    mean = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return np.asarray(mean.reshape(shape))
