"""How long an operation should take: t = a + b * size for each stage and kind, learnt from the
healthy steps of all its holders. Who is slow is not decided here."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

import numpy as np

from holdfast.arrays import Floats
from holdfast.cluster import WorkerId
from holdfast.detection.observation import StepObservation

_NUM_POINTS = 96  # of each worker, stage and kind
_Key = tuple[int, str]


def lower_median(values: Iterable[float]) -> float:
    """Of two, the smaller: one slow worker of two does not move it."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def low_quarter(values: Iterable[float]) -> float:
    """Three quarters of them are no less."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4]


class _Line:
    """Times of one stage and kind."""

    def __init__(self) -> None:
        self.points: dict[WorkerId, deque[tuple[float, float]]] = {}
        self.num_steps = 0
        self.known = False
        self.base_s = 0.0
        self.slope_s = 0.0
        self.ragged = False

    def add(self, worker: WorkerId, size: float, took_s: float) -> None:
        points = self.points.setdefault(worker, deque(maxlen=_NUM_POINTS))
        points.append((size, took_s))

    def predict_s(self, size: float) -> float:
        return max(self.base_s + self.slope_s * size, 1e-9)

    def fit(self) -> None:
        pooled = np.array([point for points in self.points.values() for point in points])
        sizes, times_s = pooled[:, 0], pooled[:, 1]
        self.known = True
        self.ragged = bool(np.ptp(sizes) > 0.02 * np.max(sizes))
        self.base_s, self.slope_s = (
            _line(sizes, times_s) if self.ragged else (float(np.median(times_s)), 0.0)
        )
        # One slow holder lifts the pooled line; the median holder says where it belongs.
        shift = math.exp(lower_median(self._level(points) for points in self.points.values()))
        self.base_s, self.slope_s = self.base_s * shift, self.slope_s * shift

    def _level(self, points: deque[tuple[float, float]]) -> float:
        array = np.array(points)
        predicted_s = np.maximum(self.base_s + self.slope_s * array[:, 0], 1e-12)
        return float(np.median(np.log(array[:, 1] / predicted_s)))


def _line(sizes: Floats, times_s: Floats) -> tuple[float, float]:
    """Least squares of the relative error, twice: the second time without outliers."""
    keep = np.ones(len(sizes), dtype=bool)
    base_s, slope_s = 0.0, 0.0
    for _ in range(2):
        weights = 1.0 / times_s[keep]
        rows = np.stack([weights, sizes[keep] * weights], axis=1)
        (base_s, slope_s), *_ = np.linalg.lstsq(rows, np.ones(len(weights)), rcond=None)
        off = np.abs(np.log(times_s / np.maximum(base_s + slope_s * sizes, 1e-12)))
        keep = off <= max(3.0 * float(np.median(off)), 1e-9)
    if slope_s <= 0.0:
        return float(np.median(times_s)), 0.0
    if base_s < 0.0:
        return 0.0, float(np.median(times_s / np.maximum(sizes, 1.0)))
    return float(base_s), float(slope_s)


class Predictor:
    def __init__(self, num_learn_steps: int) -> None:
        self._lines: dict[_Key, _Line] = {}
        self._num_learn_steps = num_learn_steps
        # Ragged sizes are known better with more steps; equal ones are known after the first fit.
        self._refits = (num_learn_steps * 2, num_learn_steps * 4, num_learn_steps * 8)

    def learn(self, step: StepObservation, excess: float) -> None:
        """``excess``: log of the factor by which this worker is known to be slower."""
        for op in step.ops:
            line = self._lines.get((step.stage, op.kind))
            if line is None:
                line = self._lines[step.stage, op.kind] = _Line()
            if self._learns(line) and op.took_s > 0:
                line.add(step.worker, op.size, op.took_s / math.exp(excess))

    def knows(self, step: StepObservation) -> bool:
        """There is nothing to be learnt from it."""
        return all(
            (line := self._lines.get((step.stage, kind))) is not None and not self._learns(line)
            for kind in {op.kind for op in step.ops}
        )

    def settle(self) -> None:
        """At the end of a step: fit what has just become known well enough."""
        for line in self._lines.values():
            if not line.points or not self._learns(line):
                continue
            line.num_steps += 1
            fresh = not line.known and line.num_steps >= self._num_learn_steps
            if fresh or line.num_steps in self._refits:
                line.fit()

    def excess(self, step: StepObservation) -> float | None:
        """Median over the operations of log(time / predicted time); None: nothing to compare."""
        ratios = []
        for op in step.ops:
            line = self._lines.get((step.stage, op.kind))
            took_s = op.end_s - op.start_s
            if line is not None and line.known and took_s > 0:
                ratios.append(took_s / line.predict_s(op.size))
        return math.log(median(ratios)) if ratios else None

    def stage_s(self, stage: int, size: float) -> dict[str, float]:
        """Predicted seconds of each kind of operation of the stage."""
        return {
            kind: line.predict_s(size)
            for (of, kind), line in self._lines.items()
            if of == stage and line.known
        }

    def _learns(self, line: _Line) -> bool:
        return not line.known or (line.ragged and line.num_steps < self._refits[-1])

    def num_holders(self, stage: int) -> int:
        """Most workers that one kind of operation of this stage was learnt from."""
        seen = (len(line.points) for (of, _), line in self._lines.items() if of == stage)
        return max(seen, default=0)

    def median_op_s(self) -> float:
        """Of all operations learnt from; 0 before there are any."""
        times_s = [p[1] for line in self._lines.values() for q in line.points.values() for p in q]
        return float(np.median(times_s)) if times_s else 0.0
