"""A schedule: for each worker the operations of one step, in order. Data with a text form.

Says who does what; ``validity`` says whether that can run, ``timeline`` how long it takes.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import ConfigError, ScheduleError
from holdfast.schedule.operation import Op, Shape, parse_op

Lane = tuple[Op, ...]
_RELATIVE = re.compile(r"([0-9]+[A-Z]+)([+-][0-9]{1,9})")


@dataclass(frozen=True)
class Schedule:
    """One lane a worker: its operations of ONE step in order, ending with R of its stage."""

    shape: Shape
    lanes: Mapping[WorkerId, Lane]
    _routes: Mapping[tuple[int, int], WorkerId] = field(init=False, repr=False, compare=False)
    _holders: Mapping[int, tuple[WorkerId, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lanes = {worker: tuple(self.lanes[worker]) for worker in sorted(self.lanes)}
        # The only way to finish a frozen instance: a read-only copy, and two indexes over it.
        object.__setattr__(self, "lanes", MappingProxyType(lanes))
        object.__setattr__(self, "_routes", _routes(lanes))
        object.__setattr__(self, "_holders", _holders(lanes))

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
        return self._text(lambda worker, op: str(op))

    def dumps_relative(self) -> str:
        """The same with micro-batches counted from the first one of the worker's pipeline.

        Lanes of different pipelines are then mostly the same words, and compress well.
        """
        of_pipeline = self.shape.microbatches_per_pipeline

        def relative(worker: WorkerId, op: Op) -> str:
            if op.microbatch is None:
                return str(op)
            return f"{op.stage}{op.kind.value}{op.microbatch - worker.pipeline * of_pipeline:+d}"

        return self._text(relative)

    def _text(self, word: Callable[[WorkerId, Op], str]) -> str:
        shape = self.shape
        head = (
            f"schedule pipelines={shape.pipelines} stages={shape.stages} "
            f"microbatches={shape.microbatches}"
        )
        lines = (
            f"{worker}: {' '.join(word(worker, op) for op in lane)}".rstrip()
            for worker, lane in self.lanes.items()
        )
        return "\n".join((head, *lines)) + "\n"


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


def _parse_lanes(lines: Iterable[str], of_pipeline: int) -> dict[WorkerId, Lane]:
    lanes: dict[WorkerId, Lane] = {}
    for line in lines:
        name, colon, ops = line.partition(":")
        if not colon:
            raise ScheduleError(f"line {line!r}: expected 'worker: operations', e.g. '0.1: 1F0'")
        try:
            worker = parse_worker(name.strip())
            first = worker.pipeline * of_pipeline
            lane = tuple(_parse_op(word, first) for word in ops.split())
        except ValueError as error:
            raise ScheduleError(f"line {line!r}: {error}") from error
        if worker in lanes:
            raise ScheduleError(f"line {line!r}: worker {worker} already has a lane")
        lanes[worker] = lane
    return lanes


def _parse_op(word: str, first: int) -> Op:
    """``first``: micro-batch that relative numbers count from."""
    found = _RELATIVE.fullmatch(word)
    return parse_op(word if found is None else f"{found[1]}{first + int(found[2])}")
