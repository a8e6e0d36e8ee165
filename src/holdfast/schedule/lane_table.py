"""Lanes as columns of numbers, worker after worker. Operations are made when a lane is asked for.

A large schedule is mostly passed on: planned, written as text, read from it, of which each worker
looks at its own lane.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from holdfast.arrays import Ints
from holdfast.cluster import WorkerId
from holdfast.schedule.operation import Kind, Op, operation

LANE_KINDS = (Kind.F, Kind.B, Kind.W, Kind.BW, Kind.R)  # by the numbers that stand for them
REDUCES = LANE_KINDS.index(Kind.R)
NO_MICROBATCH = -1  # of a reduction


class LaneTable(Mapping[WorkerId, tuple[Op, ...]]):
    """``columns``: kind, stage and micro-batch of each operation, sorted by worker."""

    def __init__(self, workers: Sequence[WorkerId], counts: Ints, columns: Ints) -> None:
        """``workers``: sorted; ``counts``: how many operations each has."""
        self._columns = columns
        ends = np.cumsum(counts).tolist()
        spans = zip([0, *ends], ends, strict=False)
        self._spans = dict(zip(workers, spans, strict=True))
        self._made: dict[WorkerId, tuple[Op, ...]] = {}

    @classmethod
    def of(cls, workers: Sequence[WorkerId], number: Ints, columns: Ints) -> "LaneTable":
        """``number``: of the worker of each operation; those of one are in their order."""
        order = np.argsort(number, kind="stable")
        counts = np.bincount(number, minlength=len(workers))
        return cls(workers, counts, columns[:, order])

    def __getitem__(self, worker: WorkerId) -> tuple[Op, ...]:
        if worker not in self._made:
            start, end = self._spans[worker]
            self._made[worker] = tuple(
                [
                    operation(stage, LANE_KINDS[kind], None if kind == REDUCES else microbatch)
                    for kind, stage, microbatch in self._columns[:, start:end].T.tolist()
                ]
            )
        return self._made[worker]

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, worker: object) -> bool:
        return worker in self._spans

    def texts(
        self, of_pipeline: int, words: Callable[[list[list[int]]], str]
    ) -> Iterator[tuple[WorkerId, str]]:
        """Each lane as ``words`` writes it: kinds, stages, and micro-batches counted from the first
        of the worker's pipeline. Alike ones are written once."""
        starts = np.array([start for start, _ in self._spans.values()], np.int64)
        firsts = np.array([worker.pipeline * of_pipeline for worker in self._spans], np.int64)
        counts = np.diff(np.append(starts, self._columns.shape[1]))
        relative = self._columns.copy()
        relative[2] -= np.where(relative[0] == REDUCES, NO_MICROBATCH, np.repeat(firsts, counts))
        known: dict[bytes, str] = {}
        for worker, (start, end) in self._spans.items():
            lane = relative[:, start:end]
            key = lane.tobytes()
            if key not in known:
                known[key] = words(lane.tolist())
            yield worker, known[key]
