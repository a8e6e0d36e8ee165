"""Lanes of a step that need no planning: GPipe and 1F1B.

Each works out one pipeline and repeats it for the others with their own micro-batch numbers.
"""

from collections.abc import Iterator, Sequence

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Lane, Schedule

_OnePipeline = Sequence[Lane]  # one lane a stage, without R, micro-batches from 0


def default_memory(stages: int) -> int:
    """Micro-batches in flight a worker that let zero-bubble lanes reach the bound."""
    return 2 * stages


def gpipe(shape: Shape, memory: int | None = None) -> Schedule:
    """All forwards, then all backwards; in waves of ``memory`` micro-batches if that is fewer."""
    count = shape.microbatches_per_pipeline
    wave = _admitted(count, memory)
    lanes = []
    for stage in range(shape.stages):
        lane: list[Op] = []
        for first in range(0, count, wave):
            numbers = range(first, min(first + wave, count))
            lane += (Op(stage, Kind.F, m) for m in numbers)
            lane += (Op(stage, Kind.BW, m) for m in numbers)
        lanes.append(tuple(lane))
    return _repeat(shape, lanes)


def one_f_one_b(shape: Shape, memory: int | None = None) -> Schedule:
    """Warm-up forwards to the end of the pipeline, then forwards and backwards by turns."""
    count = shape.microbatches_per_pipeline
    lanes = []
    for stage in range(shape.stages):
        warm_up = min(_admitted(count, memory), shape.stages - stage)
        forwards = [Op(stage, Kind.F, m) for m in range(count)]
        lane = forwards[:warm_up]
        for m in range(count):
            lane.append(Op(stage, Kind.BW, m))
            lane += forwards[warm_up + m : warm_up + m + 1]
        lanes.append(tuple(lane))
    return _repeat(shape, lanes)


def _admitted(microbatches: int, memory: int | None) -> int:
    if memory is None:
        return microbatches
    if memory < 1:
        raise ConfigError(f"memory = {memory}: expected at least 1 micro-batch in flight a worker")
    return min(memory, microbatches)


def _repeat(shape: Shape, lanes: _OnePipeline) -> Schedule:
    share = shape.microbatches_per_pipeline
    return Schedule(
        shape,
        {
            WorkerId(pipeline, stage): (*_renumbered(lane, pipeline * share), Op(stage, Kind.R))
            for pipeline in range(shape.pipelines)
            for stage, lane in enumerate(lanes)
        },
    )


def in_every_pipeline(shape: Shape, one: Schedule) -> Schedule:
    """The lanes of a single pipeline for each of ``shape``, with its own micro-batches."""
    return _repeat(shape, _without_r(one))


def _renumbered(lane: Lane, first: int) -> Iterator[Op]:
    for op in lane:
        assert op.microbatch is not None
        yield Op(op.stage, op.kind, op.microbatch + first)


def _without_r(schedule: Schedule) -> _OnePipeline:
    return [lane[:-1] for lane in schedule.lanes.values()]
