"""A schedule: for each worker the operations of one step, in order. Data with a text form.

Says who does what; ``validity`` says whether that can run, ``timeline`` how long it takes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from types import MappingProxyType

import numpy as np

from holdfast.arrays import Ints
from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, ScheduleError
from holdfast.schedule.lane_table import LANE_KINDS, NO_MICROBATCH, REDUCES, LaneTable
from holdfast.schedule.operation import Kind, Op, Shape, parse_op

Lane = tuple[Op, ...]
_RELATIVE = re.compile(r"([0-9]{1,9}[A-Z]+)([+-][0-9]{1,9})")
_NAMES = re.compile(r"([0-9]{1,9}(?:[-,][0-9]{1,9})*)\.([0-9]{1,9})")
# A short text may stand for many: one who lies must not fill the memory with it.
_MOST_LANES, _MOST_OPS = 1 << 18, 1 << 24


@dataclass(frozen=True)
class Schedule:
    """One lane a worker: its operations of ONE step in order, ending with R of its stage."""

    shape: Shape
    lanes: Mapping[WorkerId, Lane]

    def __post_init__(self) -> None:
        if isinstance(self.lanes, LaneTable):
            return  # it is sorted, and does not change
        lanes = {worker: tuple(self.lanes[worker]) for worker in sorted(self.lanes)}
        # The only way to finish a frozen instance: a read-only copy.
        object.__setattr__(self, "lanes", MappingProxyType(lanes))

    # Made when they are asked for: whoever only passes a large schedule on never does.

    @cached_property
    def _routes(self) -> Mapping[tuple[int, int], WorkerId]:
        return _routes(self.lanes)

    @cached_property
    def _holders(self) -> Mapping[int, tuple[WorkerId, ...]]:
        return _holders(self.lanes)

    def route(self, stage: int, microbatch: int) -> WorkerId:
        """Who runs the operations of ``microbatch`` at ``stage``."""
        worker = self._routes.get((stage, microbatch))
        if worker is None:
            raise ScheduleError(f"nobody runs micro-batch {microbatch} at stage {stage}")
        return worker

    def holders(self, stage: int) -> tuple[WorkerId, ...]:
        """Who has operations of ``stage`` in the lane, sorted."""
        return self._holders.get(stage, ())

    def dumps(self) -> str:
        """One line for the shape, one line a worker; ``loads`` reads it back."""
        lanes = ((str(worker), " ".join(map(str, lane))) for worker, lane in self.lanes.items())
        return self._text(lanes)

    def dumps_relative(self) -> str:
        """The same with micro-batches counted from the first one of the worker's pipeline.

        Pipelines with the same words share a line, ``0-5,7.2: 2F+0 2BW+0 2R``: those of a large
        run are mostly alike.
        """
        return self._relative_text

    @cached_property
    def _relative_text(self) -> str:
        groups: dict[tuple[int, str], list[int]] = {}
        for worker, words in self._relative_lanes():
            groups.setdefault((worker.stage, words), []).append(worker.pipeline)
        lines = (
            (f"{_ranges(pipelines)}.{stage}", words) for (stage, words), pipelines in groups.items()
        )
        return self._text(lines)

    def _relative_lanes(self) -> Iterator[tuple[WorkerId, str]]:
        of_pipeline = self.shape.microbatches_per_pipeline
        if isinstance(self.lanes, LaneTable):
            yield from self.lanes.texts(of_pipeline, _words)
            return
        for worker, lane in self.lanes.items():
            first = worker.pipeline * of_pipeline
            relative = [
                str(op)
                if op.microbatch is None
                else _word(op.stage, op.kind, op.microbatch - first)
                for op in lane
            ]
            yield worker, " ".join(relative)

    def _text(self, lanes: Iterable[tuple[str, str]]) -> str:
        shape = self.shape
        head = (
            f"schedule pipelines={shape.pipelines} stages={shape.stages} "
            f"microbatches={shape.microbatches}"
        )
        lines = (f"{names}: {words}".rstrip() for names, words in lanes)
        return "\n".join((head, *lines)) + "\n"


def _ranges(numbers: Sequence[int]) -> str:
    """Of rising numbers: ``0-2,5``."""
    parts = []
    for _, run in groupby(enumerate(numbers), lambda at: at[1] - at[0]):
        members = [number for _, number in run]
        parts.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else str(members[0]))
    return ",".join(parts)


def _words(lane: list[list[int]]) -> str:
    """Of rows of kinds, stages and relative micro-batches."""
    found = [
        f"{stage}R" if kind == REDUCES else _word(stage, LANE_KINDS[kind], number)
        for kind, stage, number in zip(*lane, strict=True)
    ]
    return " ".join(found)


@lru_cache(maxsize=1 << 14)
def _word(stage: int, kind: Kind, number: int) -> str:
    return f"{stage}{kind}{number:+d}"


def _routes(lanes: Mapping[WorkerId, Lane]) -> dict[tuple[int, int], WorkerId]:
    routes: dict[tuple[int, int], WorkerId] = {}
    for worker, lane in lanes.items():
        for op in lane:
            if op.microbatch is not None:
                routes.setdefault((op.stage, op.microbatch), worker)
    return routes


def _holders(lanes: Mapping[WorkerId, Lane]) -> dict[int, tuple[WorkerId, ...]]:
    holders: dict[int, tuple[WorkerId, ...]] = {}
    for worker, lane in lanes.items():  # in sorted order, so each tuple is sorted too
        for stage in {op.stage for op in lane}:
            holders[stage] = (*holders.get(stage, ()), worker)
    return holders


def loads(text: str) -> Schedule:
    """Read what ``Schedule.dumps`` wrote, or ``dumps_relative``; ScheduleError if anything else."""
    head, *lines = text.strip().splitlines() or [""]
    shape = _parse_shape(head)
    return Schedule(shape, _parse_lanes(lines, shape.microbatches_per_pipeline))


def _parse_shape(line: str) -> Shape:
    pattern = r"schedule pipelines=([0-9]+) stages=([0-9]+) microbatches=([0-9]+)"
    found = re.fullmatch(pattern, line.strip())
    if found is None:
        raise ScheduleError(
            f"first line {line!r}: expected 'schedule pipelines=D stages=S microbatches=N'"
        )
    try:
        return Shape(*map(int, found.groups()))
    except (ConfigError, ValueError) as error:
        raise ScheduleError(f"first line {line!r}: {error}") from error


def _parse_lanes(lines: Iterable[str], of_pipeline: int) -> LaneTable:
    workers: dict[WorkerId, None] = {}
    numbers, columns, num_ops = [np.zeros(0, np.int64)], [np.zeros((3, 0), np.int64)], 0
    for line in lines:
        names, colon, words = line.partition(":")
        if not colon:
            raise ScheduleError(f"line {line!r}: expected 'worker: operations', e.g. '0.1: 1F0'")
        try:
            pipelines, stage = _parse_names(names.strip())
            lane = np.array([_columns(word) for word in words.split()], np.int64).reshape(-1, 4).T
            num_ops += len(pipelines) * lane.shape[1]
            if len(workers) + len(pipelines) > _MOST_LANES or num_ops > _MOST_OPS:
                raise ValueError(f"more than {_MOST_LANES} lanes or {_MOST_OPS} operations")
            mine = [WorkerId(pipeline, stage) for pipeline in pipelines]
            columns.append(_repeated(lane, np.array(pipelines) * of_pipeline))
        except (ValueError, OverflowError) as error:
            raise ScheduleError(f"line {line!r}: {error}") from error
        twice = next((worker for worker in mine if worker in workers), None)
        if twice is not None or len(set(mine)) < len(mine):
            raise ScheduleError(f"line {line!r}: worker {twice or mine[0]} already has a lane")
        numbers.append(np.repeat(len(workers) + np.arange(len(mine)), lane.shape[1]))
        workers |= dict.fromkeys(mine)
    ranked = sorted(workers)
    rank = {worker: number for number, worker in enumerate(ranked)}
    ranks = np.array([rank[worker] for worker in workers], np.int64)
    return LaneTable.of(ranked, ranks[np.concatenate(numbers)], np.concatenate(columns, axis=1))


def _parse_names(names: str) -> tuple[list[int], int]:
    """Pipelines and stage: ``0.1``, or ``0-5,7.1``."""
    found = _NAMES.fullmatch(names)
    if found is None:
        raise ValueError(f"not a worker: {names!r}; expected pipeline.stage, e.g. '1.0'")
    pipelines: list[int] = []
    for part in found[1].split(","):
        first, dash, last = part.partition("-")
        run = range(int(first), int(last if dash else first) + 1)
        if not run or len(pipelines) + len(run) > _MOST_LANES:
            raise ValueError(f"{part!r}: expected first-last, and at most {_MOST_LANES} in all")
        pipelines += run
    return pipelines, int(found[2])


@lru_cache(maxsize=1 << 14)
def _columns(word: str) -> tuple[int, int, int, int]:
    """Kind, stage, micro-batch, and whether that counts from the first one of the pipeline."""
    found = _RELATIVE.fullmatch(word)
    if found is None:
        op = parse_op(word)
        microbatch = NO_MICROBATCH if op.microbatch is None else op.microbatch
        return LANE_KINDS.index(op.kind), op.stage, microbatch, 0
    op = parse_op(f"{found[1]}0")
    return LANE_KINDS.index(op.kind), op.stage, int(found[2]), 1


def _repeated(lane: Ints, firsts: Ints) -> Ints:
    """A lane once for each pipeline, whose first micro-batches are ``firsts``."""
    kind, stage, number, is_relative = lane
    microbatches = number + is_relative * firsts[:, None]
    if (microbatches < np.where(kind == REDUCES, NO_MICROBATCH, 0)).any():
        raise ValueError("a micro-batch before the first one")
    columns = [
        np.broadcast_to(kind, microbatches.shape),
        np.broadcast_to(stage, microbatches.shape),
    ]
    return np.stack([*columns, microbatches]).reshape(3, -1)
