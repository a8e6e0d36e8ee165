"""What is still to do in a half-done step, found by lineage from the facts that are left.

A lost fact is made again from the facts around it; what a live worker still has is not. Knows no
costs and no order: who takes the work that is bound to nobody is decided elsewhere.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from holdfast.arrays import Flags, Ints
from holdfast.cluster import WorkerId
from holdfast.errors import ScheduleError
from holdfast.planner.remainder.facts import Facts, MicrobatchProgress, Place
from holdfast.schedule.operation import Fact, Kind, Op, Shape, What, operation

Kinds = tuple[Kind, ...]
Holders = Mapping[WorkerId, tuple[int, ...]]  # live workers and the stages they hold now


class Task(NamedTuple):
    """Operations of one micro-batch at one stage, all on the same worker, in this order.

    With W they may be fused. Without W they leave nothing behind but the tensor for a neighbour.
    """

    stage: int
    microbatch: int
    kinds: Kinds
    worker: WorkerId | None  # who has what they start from; None: any holder of the stage

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple([operation(self.stage, kind, self.microbatch) for kind in self.kinds])


class Reduction(NamedTuple):
    """R of a stage. ``workers`` are those of its holders that have not stepped yet."""

    stage: int
    workers: tuple[WorkerId, ...]
    copy_from: WorkerId | None  # who has the result already; None: it is still to be reduced

    @property
    def catch_up(self) -> bool:
        return self.copy_from is not None


@dataclass(frozen=True, eq=False)
class TaskTable:
    """Tasks as columns, an entry each. Workers are numbered in sorted order; -1 is nobody.

    In a large cluster there are tens of thousands, and all workers wait for their plan.
    """

    workers: tuple[WorkerId, ...]
    stage: Ints
    microbatch: Ints
    bits: Ints  # which kinds: F 1, B 2, W 4
    owner: Ints

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskTable) and tuple(self.rows()) == tuple(other.rows())

    def at(self, places: Collection[Place]) -> "TaskTable":
        """Those of these stages and micro-batches."""
        width = int(self.microbatch.max(initial=0)) + 1
        wanted = [stage * width + microbatch for stage, microbatch in places if microbatch < width]
        found = np.isin(self.stage * width + self.microbatch, wanted)
        columns = (self.stage, self.microbatch, self.bits, self.owner)
        return TaskTable(self.workers, *(column[found] for column in columns))

    def rows(self) -> Iterator[Task]:
        workers = (*self.workers, None)  # so that -1 is nobody
        return map(
            Task,
            self.stage.tolist(),
            self.microbatch.tolist(),
            map(_KINDS.__getitem__, self.bits.tolist()),
            map(workers.__getitem__, self.owner.tolist()),
        )


@dataclass(frozen=True)
class Todo:
    """``sources``: who has the boundary tensors that the tasks need and that exist already.

    A task at a committed stage runs on the parameters of before the step.
    """

    table: TaskTable  # by micro-batch, then stage
    sources: Mapping[Fact, WorkerId]
    reductions: tuple[Reduction, ...]  # by stage
    committed: tuple[int, ...]  # stages that a live holder has stepped
    forwarded: Ints = field(compare=False)  # [worker, stage]: micro-batches that wait for their B
    graded: Ints = field(compare=False)  # ... for their W

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self.table.rows())


_NOTHING = Facts()
_NOBODY = -1
_BITS = {1: Kind.F, 2: Kind.B, 4: Kind.W}  # the kinds of a task as one number
_KINDS = [tuple(kind for bit, kind in _BITS.items() if code & bit) for code in range(8)]


def still_to_do(shape: Shape, holders: Holders, facts: Mapping[WorkerId, Facts]) -> Todo:
    """The fewest operations that let every stage finish the step.

    ``holders``: all live workers and the stages they hold now. Progress at a stage that a worker
    no longer holds does not count: nobody would ask it for its sum. Its kept tensors do.

    Two steps may be running, as stages may be a version apart: ask once a step, with the facts
    of that step. A stage that has not begun the step has no facts; then all of it is to do.
    """
    _check_live(holders, facts)
    by_stage = _holders_by_stage(shape, holders)
    reductions = [_reduction(stage, who, facts) for stage, who in enumerate(by_stage)]
    committed = tuple(r.stage for r in reductions if r.catch_up)
    left = _gather(shape, sorted(holders), by_stage, facts)
    runs = _runs(left, committed)
    return Todo(
        table=_tasks(left, runs),
        sources=dict(_sources(left, runs, facts)),
        reductions=tuple(r for r in reductions if r.workers),
        committed=committed,
        forwarded=_num_at(left, MicrobatchProgress.FORWARDED),
        graded=_num_at(left, MicrobatchProgress.GRADED),
    )


def _check_live(holders: Holders, facts: Mapping[WorkerId, Facts]) -> None:
    unknown = sorted(facts.keys() - holders.keys())
    if unknown:
        raise ScheduleError(
            f"worker {unknown[0]} tells facts but is not among the live workers: leave them out"
        )


def _holders_by_stage(shape: Shape, holders: Holders) -> list[list[WorkerId]]:
    by_stage: list[list[WorkerId]] = [[] for _ in range(shape.stages)]
    for worker in sorted(holders):
        for stage in holders[worker]:
            by_stage[stage].append(worker)
    lost = [str(stage) for stage, who in enumerate(by_stage) if not who]
    if lost:
        # Without a holder there is nobody who could have committed it: its work is open.
        raise ScheduleError(
            f"the state of stage {', '.join(lost)} is lost: expected at least one live worker "
            "that holds it; get the state back before planning the rest of the step"
        )
    return by_stage


def _reduction(stage: int, holders: list[WorkerId], facts: Mapping[WorkerId, Facts]) -> Reduction:
    stepped = [worker for worker in holders if stage in facts.get(worker, _NOTHING).stepped]
    behind = tuple(worker for worker in holders if stage not in facts.get(worker, _NOTHING).stepped)
    return Reduction(stage, behind, stepped[0] if stepped else None)


@dataclass(frozen=True)
class _Left:
    """The facts of all live workers together: arrays over (stage, micro-batch).

    Workers are numbered in sorted order; -1 is nobody.
    """

    workers: tuple[WorkerId, ...]
    progress: Ints
    owner: Ints  # whose progress it is
    activation: Ints  # the lowest worker that has it
    gradient: Ints


def _gather(
    shape: Shape,
    workers: Sequence[WorkerId],
    by_stage: Sequence[Sequence[WorkerId]],
    facts: Mapping[WorkerId, Facts],
) -> _Left:
    told = [facts.get(worker, _NOTHING) for worker in workers]
    progress = np.zeros((shape.stages, shape.microbatches), np.int64)
    owner = np.full_like(progress, _NOBODY)
    who, stages, microbatches = _places(shape, workers, [one.progress for one in told])
    states = np.fromiter(chain.from_iterable(one.progress.values() for one in told), np.int64)
    counts = (states != MicrobatchProgress.NONE) & _holds(workers, by_stage)[who, stages]
    who, at = who[counts], (stages[counts], microbatches[counts])
    _check_once(shape, workers, who, at)
    progress[at] = states[counts]
    owner[at] = who
    activation = _lowest(shape, workers, [one.activations for one in told])
    gradient = _lowest(shape, workers, [one.gradients for one in told])
    return _Left(tuple(workers), progress, owner, activation, gradient)


def _places(
    shape: Shape, workers: Sequence[WorkerId], groups: Sequence[Collection[Place]]
) -> tuple[Ints, Ints, Ints]:
    """Worker number, stage and micro-batch of each place; a group of places a worker."""
    numbers = chain.from_iterable(chain.from_iterable(groups))
    stages, microbatches = np.fromiter(numbers, np.int64).reshape(-1, 2).T
    who = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    outside = (stages < 0) | (stages >= shape.stages)
    outside |= (microbatches < 0) | (microbatches >= shape.microbatches)
    if outside.any():
        first = int(outside.argmax())
        raise ScheduleError(
            f"worker {workers[who[first]]} tells of micro-batch {microbatches[first]} at stage "
            f"{stages[first]}: expected micro-batch < {shape.microbatches}, stage < {shape.stages}"
        )
    return who, stages, microbatches


def _holds(workers: Sequence[WorkerId], by_stage: Sequence[Sequence[WorkerId]]) -> Flags:
    number = {worker: at for at, worker in enumerate(workers)}
    holds = np.zeros((len(workers), len(by_stage)), np.bool_)
    for stage, holders in enumerate(by_stage):
        holds[[number[worker] for worker in holders], stage] = True
    return holds


def _check_once(
    shape: Shape, workers: Sequence[WorkerId], who: Ints, at: tuple[Ints, Ints]
) -> None:
    index = at[0] * shape.microbatches + at[1]
    times = np.bincount(index, minlength=1)
    if times.max() > 1:
        twice = int(times.argmax())
        stage, microbatch = divmod(twice, shape.microbatches)
        names = " and ".join(str(workers[number]) for number in who[index == twice])
        raise ScheduleError(
            f"micro-batch {microbatch} at stage {stage} has progress on {names}: "
            "expected one worker, as its weight gradient must be summed once"
        )


def _lowest(shape: Shape, workers: Sequence[WorkerId], groups: Sequence[Collection[Place]]) -> Ints:
    """The lowest worker that has each place."""
    lowest = np.full((shape.stages, shape.microbatches), len(workers))
    who, stages, microbatches = _places(shape, workers, groups)
    np.minimum.at(lowest, (stages, microbatches), who)
    return np.where(lowest < len(workers), lowest, _NOBODY)


def _num_at(left: _Left, progress: MicrobatchProgress) -> Ints:
    """[worker, stage]: micro-batches that are so far."""
    found = np.zeros((len(left.workers), len(left.progress)), np.int64)
    stages, microbatches = np.nonzero(left.progress == progress)
    np.add.at(found, (left.owner[stages, microbatches], stages), 1)
    return found


@dataclass(frozen=True)
class _Runs:
    """Which operations are still to run, and which of the needed tensors exist already."""

    forward: Flags
    backward: Flags
    weight: Flags
    activation: Flags  # exists, and the next stage's F needs it
    gradient: Flags  # exists, and the B of the stage before needs it


def _runs(left: _Left, committed: Collection[int]) -> _Runs:
    """Wanted is every missing weight gradient; the rest is what that needs.

    A missing gradient is made by a B, which may need the next stage's: found stage by stage
    upwards. Only then is it known where an F must run, which may need the one before: downwards.
    """
    weight = left.progress != MicrobatchProgress.SUMMED
    weight[list(committed)] = False
    backward = weight & (left.progress != MicrobatchProgress.GRADED)
    for stage in range(1, len(backward)):
        backward[stage] |= backward[stage - 1] & (left.gradient[stage] == _NOBODY)
    forward = backward & (left.progress != MicrobatchProgress.FORWARDED)
    for stage in reversed(range(len(forward) - 1)):
        forward[stage] |= forward[stage + 1] & (left.activation[stage] == _NOBODY)
    activation, gradient = np.zeros_like(forward), np.zeros_like(backward)
    activation[:-1] = forward[1:] & (left.activation[:-1] != _NOBODY)
    gradient[1:] = backward[:-1] & (left.gradient[1:] != _NOBODY)
    return _Runs(forward, backward, weight, activation, gradient)


def _tasks(left: _Left, runs: _Runs) -> TaskTable:
    """What begins with F is free; what begins later is bound to whose stash it begins from."""
    forwarded, graded = (
        left.progress == MicrobatchProgress.FORWARDED,
        left.progress == MicrobatchProgress.GRADED,
    )
    bound_backward, bound_weight = runs.backward & forwarded, runs.weight & (forwarded | graded)
    bound = 2 * bound_backward + 4 * bound_weight
    free = runs.forward + 2 * (runs.backward & ~bound_backward) + 4 * (runs.weight & ~bound_weight)
    codes = np.stack((bound.T, free.T), axis=-1)  # by micro-batch, stage, then this
    microbatches, stages, is_free = np.nonzero(codes)
    owners = np.where(is_free, _NOBODY, left.owner[stages, microbatches])
    bits = codes[microbatches, stages, is_free]
    return TaskTable(left.workers, stages, microbatches, bits, owners)


def _sources(
    left: _Left, runs: _Runs, facts: Mapping[WorkerId, Facts]
) -> Iterator[tuple[Fact, WorkerId]]:
    for stage, microbatch in np.argwhere(runs.activation).tolist():
        source = left.workers[left.activation[stage, microbatch]]
        yield Fact(What.ACTIVATION, stage, microbatch), source
    for stage, microbatch in np.argwhere(runs.gradient).tolist():
        source = left.workers[left.gradient[stage, microbatch]]
        # then the user is known
        if left.progress[stage - 1, microbatch] == MicrobatchProgress.FORWARDED:
            user = left.workers[left.owner[stage - 1, microbatch]]
            source = user if (stage, microbatch) in facts[user].gradients else source
        yield Fact(What.GRADIENT, stage, microbatch), source
