"""A running step as a part of a message, and back."""

from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import ScheduleError
from holdfast.protocol.records import HalfDone, Source
from holdfast.schedule.operation import Fact, What
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import Schedule, loads


def to_record(step: RunningStep) -> HalfDone:
    return HalfDone(
        step=step.step,
        attempt=step.attempt,
        schedule=step.schedule.dumps_relative(),
        sources=[_source(fact, worker) for fact, worker in step.sources.items()],
        copies={stage: str(worker) for stage, worker in step.copies.items()},
    )


def _source(fact: Fact, worker: WorkerId) -> Source:
    assert fact.microbatch is not None, "only what belongs to a micro-batch crosses a boundary"
    at = (fact.stage, fact.microbatch, str(worker))
    is_forward = fact.what is What.ACTIVATION
    return Source("activation", *at) if is_forward else Source("gradient", *at)


def from_record(record: HalfDone) -> RunningStep:
    """ScheduleError if its lanes cannot be read, or do not go with the rest of it."""
    schedule = loads(record.schedule)
    sources = {
        _fact(schedule, source): _member(schedule, source.worker) for source in record.sources
    }
    copies = {
        _below(stage, schedule.shape.stages, "stage"): _member(schedule, worker)
        for stage, worker in record.copies.items()
    }
    return RunningStep(record.step, record.attempt, schedule, sources, copies)


def _fact(schedule: Schedule, source: Source) -> Fact:
    shape = schedule.shape
    stage = _below(source.stage, shape.stages, "stage")
    microbatch = _below(source.microbatch, shape.microbatches, "micro-batch")
    return Fact(What(source.what), stage, microbatch)


def _below(value: int, end: int, what: str) -> int:
    if value >= end:
        raise ScheduleError(f"a half-done step names {what} {value}; its lanes have {end} of them")
    return value


def _member(schedule: Schedule, name: str) -> WorkerId:
    worker = parse_worker(name)
    if worker not in schedule.lanes:
        raise ScheduleError(
            f"a half-done step names worker {name}, which has no lane; expected one for each member"
        )
    return worker
