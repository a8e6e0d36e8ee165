"""Which schedules can run at all: every operation once, no deadlock, memory kept.

No clock here and no home routes: any worker may run any micro-batch of a stage it holds.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.cluster import WorkerId
from holdfast.errors import ScheduleError
from holdfast.schedule.operation import Fact, Kind, Op, makes, needs
from holdfast.schedule.schedule import Lane, Schedule

_IN_FLIGHT_CHANGE = {Kind.F: 1, Kind.B: 0, Kind.W: -1, Kind.BW: -1, Kind.R: 0}


@dataclass(frozen=True)
class DryRun:
    """``order``: one in which the operations can run. ``missing``: who is stuck on what."""

    order: tuple[tuple[WorkerId, Op], ...]
    missing: Mapping[WorkerId, tuple[Op, Fact]]


def walk(schedule: Schedule, *, staggered: bool = True) -> DryRun:
    """Go through all lanes in order, each operation as soon as the facts it needs exist."""
    order: list[tuple[WorkerId, Op]] = []
    made: set[Fact] = set()
    at = dict.fromkeys(schedule.lanes, 0)
    waiting: dict[Fact, list[WorkerId]] = defaultdict(list)
    missing: dict[WorkerId, tuple[Op, Fact]] = {}
    reductions: dict[Op, deque[Fact]] = {}  # what each lacks: the same for all holders of a stage
    awake = list(schedule.lanes)
    while awake:
        worker = awake.pop()
        missing.pop(worker, None)
        for op in schedule.lanes[worker][at[worker] :]:
            if op.kind is not Kind.R:
                needed: Iterable[Fact] = needs(op, schedule.shape, staggered=staggered)
            elif op in reductions:
                needed = reductions[op]
            else:
                needed = reductions[op] = deque(needs(op, schedule.shape, staggered=staggered))
            lacking = _first_lacking(needed, made)
            if lacking is not None:
                waiting[lacking].append(worker)
                missing[worker] = (op, lacking)
                break
            at[worker] += 1
            order.append((worker, op))
            for fact in makes(op):
                made.add(fact)
                awake.extend(waiting.pop(fact, ()))
    return DryRun(tuple(order), dict(sorted(missing.items())))


def _first_lacking(needed: Iterable[Fact], made: set[Fact]) -> Fact | None:
    """What is made is taken out of a queue: it need not be looked at again."""
    if isinstance(needed, deque):
        while needed and needed[0] in made:
            needed.popleft()
    return next((fact for fact in needed if fact not in made), None)


def in_flight_peak(lane: Lane) -> int:
    """Most micro-batches that are forwarded but do not yet have their weight gradient."""
    now = peak = 0
    for op in lane:
        now += _IN_FLIGHT_CHANGE[op.kind]
        if now > peak:
            peak = now
    return peak


def violations(schedule: Schedule, memory: int | None = None) -> list[str]:
    """Everything that is wrong, in words; empty if the schedule can run.

    ``memory``: how many micro-batches a worker may have in flight.
    """
    return [
        *_outside(schedule),
        *_not_exactly_once(schedule),
        *_wrong_ends(schedule),
        *_stuck(schedule),
        *_over_memory(schedule, memory),
    ]


def check(schedule: Schedule, memory: int | None = None) -> None:
    found = violations(schedule, memory)
    if found:
        raise ScheduleError(f"the schedule cannot run: {'; '.join(found)}")


def _outside(schedule: Schedule) -> list[str]:
    shape = schedule.shape
    return [
        f"worker {worker} has {op}: expected stage < {shape.stages}, "
        f"micro-batch < {shape.microbatches}"
        for worker, lane in schedule.lanes.items()
        for op in lane
        if op.stage >= shape.stages or (op.microbatch or 0) >= shape.microbatches
    ]


def _not_exactly_once(schedule: Schedule) -> list[str]:
    kinds: dict[tuple[int, int], list[Kind]] = defaultdict(list)
    runners: dict[tuple[int, int], set[WorkerId]] = defaultdict(set)
    for worker, lane in schedule.lanes.items():
        for op in lane:
            if op.microbatch is not None:
                kinds[op.stage, op.microbatch].append(op.kind)
                runners[op.stage, op.microbatch].add(worker)
    found = []
    for stage in range(schedule.shape.stages):
        for microbatch in range(schedule.shape.microbatches):
            place = f"micro-batch {microbatch} at stage {stage}"
            got = sorted(kinds[stage, microbatch])
            if got not in ([Kind.BW, Kind.F], [Kind.B, Kind.F, Kind.W]):
                found.append(f"{place} has {' '.join(got) or 'nothing'}: expected F BW or F B W")
            if len(runners[stage, microbatch]) > 1:
                names = ", ".join(map(str, sorted(runners[stage, microbatch])))
                found.append(f"{place} is run by {names}: expected one worker")
    return found


def _wrong_ends(schedule: Schedule) -> list[str]:
    found = []
    for worker, lane in schedule.lanes.items():
        if not lane:
            found.append(f"worker {worker} has an empty lane: expected at least R of its stage")
        reduced = Counter(op.stage for op in lane if op.kind is Kind.R)
        for stage in sorted({op.stage for op in lane}):
            if reduced[stage] != 1:
                found.append(f"worker {worker} has {reduced[stage]} x {stage}R: expected one")
            elif [op for op in lane if op.stage == stage][-1].kind is not Kind.R:
                found.append(f"worker {worker} has operations of stage {stage} after {stage}R")
    return found


def _stuck(schedule: Schedule) -> list[str]:
    return [
        f"worker {worker} never gets to run {op}: nothing before it makes the {fact}"
        for worker, (op, fact) in walk(schedule).missing.items()
    ]


def _over_memory(schedule: Schedule, memory: int | None) -> list[str]:
    if memory is None:
        return []
    peaks = {worker: in_flight_peak(lane) for worker, lane in schedule.lanes.items()}
    return [
        f"worker {worker} has {peak} micro-batches in flight: expected at most {memory}"
        for worker, peak in peaks.items()
        if peak > memory
    ]
