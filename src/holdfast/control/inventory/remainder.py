"""From what all live members have told to the lanes that end every half-done step.

Pure: Inventories in, the content of a Proceed out. Knows nothing of epochs, connections or time,
and not what runs after the half-done steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from holdfast.cluster import WorkerId
from holdfast.control.inventory.inventory import MemberInventory, attempt_of, verdicts_of
from holdfast.control.inventory.lost_work import Dead
from holdfast.errors import MemoryExceeded, ScheduleError
from holdfast.planner.problem import Problem
from holdfast.planner.remainder.facts import Facts
from holdfast.planner.remainder.remainder import Remainder, remainder_of_step
from holdfast.protocol.messages import Inventory
from holdfast.protocol.records import VerdictRow
from holdfast.schedule.operation import Kind, Op, operation
from holdfast.schedule.running import RunningStep
from holdfast.schedule.schedule import Schedule

_MOST_DOUBLINGS = 20
_MOST_APART = 8  # steps: stages are one apart, whoever lies could make it a million
_PARTS = {Kind.BW: (Kind.B, Kind.W)}


@dataclass(frozen=True)
class Remainders:
    """What ends all half-done steps, and from which step on the steady schedule runs."""

    running: tuple[RunningStep, ...]  # the oldest first
    first_step: int
    verdicts: dict[int, VerdictRow]  # all that anyone has heard
    redone: tuple[Op, ...]  # finished by the dead and lost with them; BW as B and W
    num_operations: int  # in all lanes, without R
    length_s: float  # of all steps one after the other, without the reductions


def remainders(
    problem: Problem,
    stages: Mapping[WorkerId, int],
    inventories: Mapping[WorkerId, Inventory],
    *,
    staggered: bool,
    end_step: int,
    dead: Sequence[Dead] = (),
    heard: Mapping[WorkerId, Mapping[int, VerdictRow]] = MappingProxyType({}),
) -> Remainders:
    """``stages``: every member and the stage it holds; ``inventories``: one of each of them.
    ``heard``: verdicts that were told before, also by some who are no members any more.

    ScheduleError if the members cannot end the steps: then only going back helps.
    """
    _check_members(problem, stages, inventories)
    everyone = [
        MemberInventory.read(worker, stages[worker], inventories[worker])
        for worker in sorted(stages)
    ]
    verdicts = verdicts_of(everyone, heard)
    newest = max(member.reduced for member in everyone)
    if newest - min(member.reduced for member in everyone) > _MOST_APART:
        raise ScheduleError(f"members are more than {_MOST_APART} steps apart: go back")
    planned: list[tuple[RunningStep, Remainder]] = []
    for step in range(min(member.reduced for member in everyone), min(newest + 1, end_step)):
        attempt = attempt_of(step, everyone, verdicts, staggered=staggered)
        if step < newest or _begun(everyone, step, attempt):
            planned.append(_planned(problem, everyone, step, attempt))
    running = tuple(one for one, _ in planned)
    first_step = running[-1].step + 1 if running else newest
    attempt = attempt_of(first_step, everyone, verdicts, staggered=staggered)
    begun = (d for d in dead if d.step >= first_step and d.attempt in (None, attempt))
    redone = [op for one, remainder in planned for op in _redone(one, remainder, dead)]
    return Remainders(
        running=running,
        first_step=first_step,
        verdicts=verdicts,
        redone=(*redone, *(part for one in begun for op in one.done for part in _parts(op))),
        num_operations=sum(remainder.num_operations for _, remainder in planned),
        length_s=sum(remainder.length_s for _, remainder in planned),
    )


def _check_members(
    problem: Problem, stages: Mapping[WorkerId, int], inventories: Mapping[WorkerId, Inventory]
) -> None:
    live = {member.worker for member in problem.members if member.speed > 0}
    for who, found in (("told", inventories.keys()), ("is in the planner's problem", live)):
        differ = sorted(stages.keys() ^ found)
        if differ or not stages:
            name = f"worker {differ[0]}" if differ else "nobody"
            raise ScheduleError(
                f"{name} is a member or {who}, but not both: expected the same workers"
            )


def _begun(everyone: Sequence[MemberInventory], step: int, attempt: int) -> bool:
    """Whether anything of the step exists. If not, the steady schedule can run all of it."""
    return any(
        any(facts.progress.values()) or facts.activations or facts.gradients
        for facts in (member.facts(step, attempt) for member in everyone)
    )


def _planned(
    problem: Problem, everyone: Sequence[MemberInventory], step: int, attempt: int
) -> tuple[RunningStep, Remainder]:
    # Whoever stands aside holds nothing here, but can still send again what it has kept.
    holders = {
        member.worker: () if _stands_aside(member, everyone, step) else (member.stage,)
        for member in everyone
    }
    facts = {member.worker: member.facts(step, attempt) for member in everyone}
    remainder = _remainder(problem, holders, facts)
    copies = {r.stage: r.copy_from for r in remainder.todo.reductions if r.copy_from is not None}
    running = RunningStep(
        step, attempt, Schedule(problem.shape, remainder.lanes), dict(remainder.sources), copies
    )
    _check_weights(running, everyone)
    return running, remainder


def _stands_aside(member: MemberInventory, everyone: Sequence[MemberInventory], step: int) -> bool:
    """It is past the step and has not the weights of before it, but somebody else has them.

    So it is with a worker that joined after the step: it has neither those nor the gradients.
    """
    return not member.can_run(step) and any(
        other.stage == member.stage and other.can_run(step) for other in everyone
    )


def _remainder(
    problem: Problem, holders: Mapping[WorkerId, tuple[int, ...]], facts: Mapping[WorkerId, Facts]
) -> Remainder:
    """Finishing beats a limit that only models memory: it is doubled until the rest fits."""
    for _ in range(_MOST_DOUBLINGS):
        try:
            return remainder_of_step(problem, holders, facts)
        except MemoryExceeded:
            problem = _with_twice_the_memory(problem)
    return remainder_of_step(problem, holders, facts)


def _with_twice_the_memory(problem: Problem) -> Problem:
    memory = problem.memory
    limits = {worker: 2 * limit for worker, limit in memory.limits.items()}
    return replace(problem, memory=replace(memory, limit=2 * memory.limit, limits=limits))


def _check_weights(running: RunningStep, everyone: Sequence[MemberInventory]) -> None:
    """Old operations on new weights would run, and give other bits."""
    unable = {member.worker for member in everyone if not member.can_run(running.step)}
    for worker in sorted(unable):
        lane = running.schedule.lanes.get(worker, ())
        op = next((op for op in lane if op.kind is not Kind.R), None)
        if op is not None:
            raise ScheduleError(
                f"{op} of step {running.step} must run again, but no live worker has the weights "
                f"that stage {op.stage} had before that step: go back to a checkpoint"
            )


def _redone(running: RunningStep, remainder: Remainder, dead: Sequence[Dead]) -> Iterator[Op]:
    """In the order of the tasks."""
    gone = [
        one for one in dead if one.step == running.step and one.attempt in (None, running.attempt)
    ]
    lost = {part for one in gone for op in one.done for part in _parts(op)}
    tasks = remainder.todo.table.at(
        {(op.stage, op.microbatch) for op in lost if op.microbatch is not None}
    )
    return (op for task in tasks.rows() for op in task.ops if op in lost)


def _parts(op: Op) -> tuple[Op, ...]:
    kinds = _PARTS.get(op.kind, (op.kind,))
    return tuple([operation(op.stage, kind, op.microbatch) for kind in kinds])
