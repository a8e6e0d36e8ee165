"""Makes a failing world small: fewer faults, fewer steps, fewer workers, as long as it still fails.

The same kind of failure counts: what fails otherwise is another story.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from holdfast.cluster import parse_worker
from holdfast.errors import ConfigError
from holdfast.faults.fault import parse_fault
from holdfast.schedule.operation import Shape
from holdfast.simulator.hunt.hunting import WorldOutcome, judge
from holdfast.simulator.messages.scenario import DEED_WORDS, Deed, OperationCosts, Scenario

MOST_TRIES = 300
_Row = TypeVar("_Row")
_NEEDED = ("workers.start_limit_s", "machines.wait_s")  # else a run that hangs takes for ever


def shrunk(
    failing: WorldOutcome,
    judged: Callable[[Scenario], WorldOutcome] = judge,
    most: int = MOST_TRIES,
) -> WorldOutcome:
    """The smallest that was found."""
    best, num_tried, is_done = failing, 0, False
    while not is_done and num_tried < most:
        is_done = True
        for smaller in _smaller(best.scenario):
            num_tried += 1
            try:
                found = judged(smaller)
            except ConfigError:
                continue  # there is no such run
            if found.wrong and found.kind == failing.kind:
                best, is_done = found, False
                break
            if num_tried >= most:
                break
    return best


def _smaller(one: Scenario) -> Iterator[Scenario]:
    """The largest bites first."""
    yield from _fewer_happenings(one)
    yield from _fewer_workers(one)
    for steps in sorted({one.steps // 2, one.steps - 1} - {0}):
        yield _fitting(replace(one, steps=steps))
    yield from _plainer(one)


def _fewer_happenings(one: Scenario) -> Iterator[Scenario]:
    for number in range(len(one.deeds)):
        yield replace(one, deeds=_without(one.deeds, number))
    for number in range(len(one.faults)):
        yield replace(one, faults=_without(one.faults, number))
    for number in range(len(one.bad)):
        yield replace(one, bad=_without(one.bad, number))


def _fewer_workers(one: Scenario) -> Iterator[Scenario]:
    shape = one.shape
    each = shape.microbatches_per_pipeline
    if shape.pipelines > 1:
        fewer = shape.pipelines - 1
        yield _fitting(replace(one, shape=Shape(fewer, shape.stages, fewer * each)))
    if shape.stages > 1:
        fewer = shape.stages - 1
        yield _fitting(replace(one, shape=Shape(shape.pipelines, fewer, shape.microbatches)))
    if each > 1:
        fewer = shape.pipelines * (each - 1)
        yield replace(one, shape=Shape(shape.pipelines, shape.stages, fewer))
    if one.machines and not any("machine" in DEED_WORDS[deed.what] for deed in one.deeds):
        kept = tuple(text for text in one.settings if not text.startswith("machines."))
        yield replace(one, machines=(), settings=kept)


def _plainer(one: Scenario) -> Iterator[Scenario]:
    for number, text in enumerate(one.settings):
        if not text.startswith(_NEEDED):
            yield replace(one, settings=_without(one.settings, number))
    if one.refined_s >= 0:
        yield replace(one, refined_s=-1.0)
    if one.costs != OperationCosts():
        yield replace(one, costs=OperationCosts())


def _fitting(one: Scenario) -> Scenario:
    """Without what happens to workers, or in steps, that are not there any more."""
    faults = tuple(text for text in one.faults if _fits(text, one))
    deeds = tuple(deed for deed in one.deeds if _has_place(deed, one.shape))
    bad = tuple(row for row in one.bad if row[0] < one.steps - 1)
    return replace(one, faults=faults, deeds=deeds, bad=bad)


def _fits(text: str, one: Scenario) -> bool:
    fault = parse_fault(text)
    workers = [worker for worker in (fault.worker, fault.peer) if worker is not None]
    is_there = all(
        worker.pipeline < one.shape.pipelines and worker.stage < one.shape.stages
        for worker in workers
    )
    return is_there and fault.step < one.steps


def _has_place(deed: Deed, shape: Shape) -> bool:
    if "worker" not in DEED_WORDS[deed.what]:
        return True
    worker = parse_worker(deed.words[0])
    return worker.pipeline < shape.pipelines and worker.stage < shape.stages


def _without(rows: tuple[_Row, ...], number: int) -> tuple[_Row, ...]:
    return rows[:number] + rows[number + 1 :]
