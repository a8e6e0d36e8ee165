"""Slowness that is nobody's fault: a stage that is longer than the others, micro-batches of
different size. Told once, so that nobody takes it for a sick machine. Knows no cure."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

import numpy as np

from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import Cause, Diagnosis
from holdfast.detection.live.predicted import Predictor, low_quarter, lower_median
from holdfast.detection.observation import OpTime, StepObservation

_MIN_SPREAD = 0.1  # of the micro-batches' times, as a share of their mean
_MIN_CORRELATION = 0.7  # of forward and backward of the same micro-batch
_MIN_PAIRS = 24
_ALWAYS_LONG = 1.1  # times the other stages


class Long(NamedTuple):
    """A stage that takes longer than the others."""

    stage: int
    factor: float  # over the median of the others
    excess_s: float  # a micro-batch
    since: int
    holders: tuple[WorkerId, ...]


class Imbalance:
    """Collects the steps of a healthy start, then judges them."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._pairs: list[tuple[float, float]] = []  # forward, backward, over the step's median
        self._holders: dict[int, set[WorkerId]] = defaultdict(set)
        self._first_step: int | None = None
        # step -> stage -> seconds a micro-batch, of each holder
        self._step_s: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def collect(self, report: StepObservation) -> None:
        self._first_step = report.step if self._first_step is None else self._first_step
        self._holders[report.stage].add(report.worker)
        self._sizes += [op.size for op in report.ops if op.kind == "F" and op.size > 0]
        num_microbatches = len({op.microbatch for op in report.ops})
        if num_microbatches:
            busy_s = sum(op.took_s for op in report.ops)
            self._step_s[report.step][report.stage].append(busy_s / num_microbatches)
        forward = _over_median(op for op in report.ops if op.kind == "F")
        backward = _over_median(op for op in report.ops if op.kind in ("B", "BW"))
        both = forward.keys() & backward.keys()
        self._pairs += [(forward[m], backward[m]) for m in sorted(both) if len(both) > 1]

    def long_stages(self, predictor: Predictor, least_factor: float) -> list[Long]:
        size = median(self._sizes) if self._sizes else 0
        times_s = {stage: _stage_s(predictor.stage_s(stage, size)) for stage in self._holders}
        known = {stage: seconds for stage, seconds in times_s.items() if seconds > 0}
        found = []
        for stage, seconds in sorted(known.items()):
            others = [other_s for other, other_s in known.items() if other != stage]
            if not others or not self._always_long(stage):
                continue
            if seconds >= least_factor * median(others):
                holders = tuple(sorted(self._holders[stage]))
                excess_s = seconds - median(others)
                factor, since = seconds / median(others), self._first_step or 0
                found.append(Long(stage, factor, excess_s, since, holders))
        return found

    def _always_long(self, stage: int) -> bool:
        """In nearly all steps, and not only in some that a busy machine made long."""
        ratios = []
        for stages in self._step_s.values():
            times_s = {of: lower_median(holders_s) for of, holders_s in stages.items()}
            mine_s = times_s.pop(stage, None)
            if mine_s is not None and times_s:
                ratios.append(mine_s / median(times_s.values()))
        return bool(ratios) and low_quarter(ratios) >= _ALWAYS_LONG

    def model(self, long: Long) -> Diagnosis:
        return Diagnosis(
            cause=Cause.MODEL,
            subject=f"stage {long.stage}",
            factor=long.factor,
            excess_s=long.excess_s,
            since=long.since,
            confidence=0.9 if len(long.holders) > 1 else 0.8,
            evidence=f"a micro-batch takes {1e3 * long.excess_s:.1f} ms more on it than on the "
            f"median of the other stages ({long.factor:.2f} x), on all {len(long.holders)} of its "
            "workers and from the start: no fault; layers could be divided better",
            workers=long.holders,
        )

    def data(self) -> Diagnosis | None:
        if len(self._pairs) < _MIN_PAIRS:
            return None
        forward, backward = np.array(self._pairs).T
        spread = float(np.std(forward) / np.mean(forward))
        if spread < _MIN_SPREAD or float(np.std(backward)) == 0.0:
            return None
        correlation = float(np.corrcoef(forward, backward)[0, 1])
        if correlation < _MIN_CORRELATION:
            return None
        factor = float(np.percentile(forward, 95))
        return Diagnosis(
            cause=Cause.DATA,
            subject="data",
            factor=factor,
            excess_s=0.0,
            since=self._first_step or 0,
            confidence=min(correlation, 0.99),
            evidence=f"micro-batches of a step differ: {_sizes(self._sizes)}their times by "
            f"{100 * spread:.0f} %, the longest twentieth takes {factor:.2f} x the median; forward "
            f"and backward of the same micro-batch agree (correlation {correlation:.2f}): no fault",
            workers=(),
        )


def _over_median(ops: Iterable[OpTime]) -> dict[int, float]:
    """Micro-batch -> its time over the median one of the step."""
    took_s = {op.microbatch: op.took_s for op in ops}
    middle_s = median(took_s.values()) if took_s else 0.0
    return {m: seconds / middle_s for m, seconds in took_s.items()} if middle_s > 0 else {}


def _stage_s(kinds: dict[str, float]) -> float:
    """A micro-batch runs F and either BW or B and W; 0: not all of it is known."""
    backward_s = kinds.get("BW") or kinds.get("B", 0.0) + kinds.get("W", 0.0)
    return kinds["F"] + backward_s if "F" in kinds and backward_s else 0.0


def _sizes(sizes: list[int]) -> str:
    if not sizes or min(sizes) == max(sizes):
        return ""
    return f"sizes from {min(sizes)} to {max(sizes)} elements, "
