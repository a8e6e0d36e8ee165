"""A machine has left or come: who starts where, and who must move for it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.planner.place.machine import Machine, checked
from holdfast.planner.place.placement import MachinePlacement
from holdfast.planner.place.seats import filled

_MOST_NAMED = 8  # workers in a reason


class MachineMove(NamedTuple):
    worker: WorkerId
    from_machine: str
    to_machine: str


@dataclass(frozen=True)
class Refill:
    placement: MachinePlacement  # afterwards, without those that wait
    starts: Mapping[WorkerId, str]  # who is to be started, and where
    moves: tuple[MachineMove, ...]
    waiting: tuple[WorkerId, ...]  # there is no room for these
    reason: str


def refill(
    placement: MachinePlacement,
    machines: Iterable[Machine],
    *,
    dead: Collection[WorkerId] = (),
    hot_spares: Mapping[str, int] | None = None,
    may_move: bool = True,
) -> Refill:
    """Start who is missing: was on a machine that has left, is ``dead``, or had no place so far.

    ``machines``: all that are there now. If there is too little room, stages with the fewest
    holders come first. Then in this order: as few stages as possible on one machine, as few moves
    of workers that run, and as few starts without a hot spare. Neighbours and balance follow.
    ``hot_spares``: processes by machine that are started already and hold nothing.
    """
    found = checked(machines)
    rooms = {machine.name: machine.room(placement.stage_memory_bytes) for machine in found}
    _require_hot(hot_spares or {}, rooms)
    kept = {
        worker: name
        for worker, name in placement.where.items()
        if name in rooms and worker not in dead
    }
    crowded = [name for name, number in Counter(kept.values()).items() if number > rooms[name]]
    if crowded:
        name = min(crowded)
        runs = f"{name} runs {Counter(kept.values())[name]} workers"
        raise ConfigError(f"machines: {runs}: expected at least so many slots, not {rooms[name]}")
    stage_of = {worker: placement.stage_of(worker) for worker in kept}
    starts, waiting = _starting(placement, stage_of, sum(rooms.values()))
    stage_of |= {worker: worker.stage for worker in starts}
    where = filled(
        rooms,
        kept,
        starts,
        stage_of,
        stages=placement.stages,
        hot_spares=hot_spares,
        may_move=may_move,
    )
    moves = tuple(MachineMove(w, kept[w], where[w]) for w in sorted(kept) if where[w] != kept[w])
    held = {worker: stage for worker, stage in placement.held.items() if worker in kept}
    after = replace(placement, machines=found, where=where, held=held)
    by_worker = {worker: where[worker] for worker in sorted(starts)}
    return Refill(after, by_worker, moves, waiting, _reason(after, by_worker, moves, waiting))


def _require_hot(hot_spares: Mapping[str, int], rooms: Mapping[str, int]) -> None:
    for name, number in hot_spares.items():
        if not 0 <= number <= rooms.get(name, -1):
            has = f"{name} with {number} hot spares"
            raise ConfigError(f"hot_spares: {has}: expected a machine that has room for them")


def _starting(
    placement: MachinePlacement, kept: Mapping[WorkerId, int], room: int
) -> tuple[list[WorkerId], tuple[WorkerId, ...]]:
    """Who can be started and who waits: stages with the fewest holders come first."""
    missing: dict[int, list[WorkerId]] = {}
    for stage in range(placement.stages):
        names = (WorkerId(d, stage) for d in reversed(range(placement.pipelines)))
        missing[stage] = [worker for worker in names if worker not in kept]
    holders = Counter(kept.values())
    queue = [(holders[stage], stage) for stage in missing if missing[stage]]
    heapify(queue)
    starts: list[WorkerId] = []
    while queue and len(kept) + len(starts) < room:
        number, stage = heappop(queue)
        starts.append(missing[stage].pop())
        if missing[stage]:
            heappush(queue, (number + 1, stage))
    return starts, tuple(sorted(worker for workers in missing.values() for worker in workers))


def _reason(
    after: MachinePlacement,
    starts: Mapping[WorkerId, str],
    moves: Collection[MachineMove],
    waiting: Collection[WorkerId],
) -> str:
    started = f"{_named(starts)} to be started on {', '.join(sorted(set(starts.values())))}"
    moving = _named([move.worker for move in moves])
    moved = f"{moving} to be moved, so that fewer stages are on one machine"
    left = f"no room for {_named(waiting)}"
    said = ((starts, started), (moves, moved), (waiting, left))
    return "; ".join([*(text for of_whom, text in said if of_whom), after.reason])


def _named(workers: Collection[WorkerId]) -> str:
    if len(workers) > _MOST_NAMED:
        return f"{len(workers)} workers"
    return ", ".join(map(str, sorted(workers)))
