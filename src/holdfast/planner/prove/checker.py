"""Is a plan sound? Says in words what is wrong with its lanes, whoever made them.

Judges orders only: no clock here, no opinion on how good a plan is, and no code in common with
the part that makes plans.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from holdfast.cluster import WorkerId
from holdfast.planner.problem import Memory, Problem
from holdfast.schedule import validity
from holdfast.schedule.operation import Fact, Kind, Op, What, makes, needs
from holdfast.schedule.schedule import Lane, Schedule

Holders = Mapping[WorkerId, tuple[int, ...]]

_TOLERANCE = 1e-9  # of a memory limit: sums of the same amounts differ by rounding only

# What an operation adds to a worker's (activations held, weight gradients pending). F's share is
# there from its start and the others' goes at their end, so the peak is seen after each of them.
_CHANGES = {Kind.F: (1, 0), Kind.B: (-1, 1), Kind.W: (0, -1), Kind.BW: (-1, 0), Kind.R: (0, 0)}


def violations(schedule: Schedule, problem: Problem, holders: Holders) -> list[str]:
    """Everything that is wrong, in words; empty if the plan can run.

    ``holders``: the stages that each live worker holds.
    """
    if schedule.shape != problem.shape:
        return [f"the schedule is for {schedule.shape}: expected {problem.shape}"]
    found = validity.violations(schedule)
    # Who meets whom is only defined where every operation is there once and in a possible order.
    meetings = [] if found else [*_never_meet(schedule, problem), *_out_of_order(schedule)]
    return [
        *found,
        *_not_alive(schedule, problem, holders),
        *_too_many_stages(problem, holders),
        *_not_held(schedule, holders),
        *_not_stepped(schedule, holders),
        *memory_violations(schedule, problem),
        *meetings,
    ]


def memory_violations(schedule: Schedule, problem: Problem) -> list[str]:
    """Each stage of a worker has the worker's limit for itself."""
    memory = problem.memory
    found = []
    for worker, lane in schedule.lanes.items():
        limit = memory.limit_of(worker)
        for stage in _known_stages(lane, schedule):
            peak = max(_amounts([op for op in lane if op.stage == stage], memory))
            if peak > limit * (1 + _TOLERANCE):
                found.append(
                    f"worker {worker} needs memory {peak:g} for stage {stage}: "
                    f"expected at most {limit:g}"
                )
    return found


def memory_peaks(schedule: Schedule, problem: Problem) -> dict[WorkerId, float]:
    """The most that each worker ever needs at one time, all its stages together."""
    return {
        worker: max(_amounts(lane, problem.memory), default=0.0)
        for worker, lane in schedule.lanes.items()
    }


def _amounts(lane: Lane | list[Op], memory: Memory) -> Iterator[float]:
    """Memory in use after each operation. Counts, not running sums: no rounding piles up."""
    counts: dict[int, tuple[int, int]] = {}
    for op in lane:
        num_held, num_pending = counts.get(op.stage, (0, 0))
        more_held, more_pending = _CHANGES[op.kind]
        counts[op.stage] = (num_held + more_held, num_pending + more_pending)
        yield sum(
            held * memory.held_at(stage) + pending * memory.pending_at(stage)
            for stage, (held, pending) in counts.items()
        )


def _known_stages(lane: Lane, schedule: Schedule) -> list[int]:
    return sorted({op.stage for op in lane if op.stage < schedule.shape.stages})


def _not_alive(schedule: Schedule, problem: Problem, holders: Holders) -> list[str]:
    alive = {member.worker for member in problem.members if member.speed > 0}
    return [
        *(
            f"worker {worker} has a lane but is not alive: expected a member with speed > 0"
            for worker in schedule.lanes
            if worker not in alive
        ),
        *(
            f"worker {worker} is said to hold stages {holders[worker]} but is not alive"
            for worker in sorted(holders)
            if holders[worker] and worker not in alive
        ),
    ]


def _too_many_stages(problem: Problem, holders: Holders) -> list[str]:
    most = 2 if problem.two_stages else 1
    return [
        f"worker {worker} holds stages {holders[worker]}: expected at most {most}"
        for worker in sorted(holders)
        if len(holders[worker]) > most
    ]


def _not_held(schedule: Schedule, holders: Holders) -> list[str]:
    return [
        f"worker {worker} runs operations of stage {stage}: expected only stages it holds, "
        f"{holders.get(worker, ())}"
        for worker, lane in schedule.lanes.items()
        for stage in sorted({op.stage for op in lane})
        if stage not in holders.get(worker, ())
    ]


def _not_stepped(schedule: Schedule, holders: Holders) -> list[str]:
    """A holder without work must reduce too: its parameters have to stay those of its peers.

    Holders that have work of the stage in their lane are the business of ``validity``.
    """
    return [
        f"worker {worker} holds stage {stage} but has no {stage}R: expected one"
        for worker in sorted(holders)
        for stage in holders[worker]
        if all(op.stage != stage for op in schedule.lanes.get(worker, ()))
    ]


def _never_meet(schedule: Schedule, problem: Problem) -> list[str]:
    """A reduction ends for no holder before all have come to it: one node of the graph for all.

    ``validity`` asks only for what R needs at its start, so two workers that reduce the same two
    stages in opposite orders pass there, and hang.
    """
    makers = {fact: op for lane in schedule.lanes.values() for op in lane for fact in makes(op)}
    waits: dict[Op, set[Op]] = {}
    for lane in schedule.lanes.values():
        for turn, op in enumerate(lane):
            if op not in waits:
                needed = needs(op, schedule.shape, staggered=problem.staggered)
                waits[op] = {makers[fact] for fact in needed}
            waits[op].update(lane[turn - 1 : turn] if turn else ())
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        cycle = error.args[1]
        first = cycle.index(min(cycle, key=str))  # told the same way wherever the search began
        names = " ".join(map(str, [*cycle[first:-1], *cycle[:first], cycle[first]]))
        return [f"operations wait for each other in a ring: {names}"]
    return []


def _out_of_order(schedule: Schedule) -> list[str]:
    """Tensors of one stage from one worker to another must be used in the order they are made.

    Then the next tensor in a channel is always the one its receiver waits for, so a channel that
    has no tags and only hands over in order does what one with tags does, and the walk through
    the lanes has already shown that nobody hangs. There is no need to walk again with such
    channels, as long as a sender is not held up: the room in a channel must be enough for
    what memory lets a sender be ahead.
    """
    found = []
    for (sender, receiver, what, _stage), used in _channels(schedule).items():
        made = sorted(used)
        wrong = next((i for i, fact in enumerate(used) if fact != made[i]), None)
        if wrong is not None:
            found.append(
                f"worker {receiver} uses the {used[wrong][1]} from {sender} before "
                f"the {made[wrong][1]}: expected the {what.value}s in the order {sender} makes them"
            )
    return found


def _channels(
    schedule: Schedule,
) -> dict[tuple[WorkerId, WorkerId, What, int], list[tuple[int, Fact]]]:
    """For each channel the tensors in the order of use, each with its turn in the maker's lane."""
    turns = {
        fact: (turn, worker)
        for worker, lane in schedule.lanes.items()
        for turn, op in enumerate(lane)
        for fact in makes(op)
    }
    channels: dict[tuple[WorkerId, WorkerId, What, int], list[tuple[int, Fact]]] = defaultdict(list)
    for receiver, lane in schedule.lanes.items():
        for op in lane:
            for fact in () if op.kind is Kind.R else needs(op, schedule.shape):
                turn, sender = turns[fact]
                if sender != receiver:
                    channels[sender, receiver, fact.what, fact.stage].append((turn, fact))
    return channels
