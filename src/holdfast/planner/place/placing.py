"""Place workers: all of a run, or those that are missing beside those that stay."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from holdfast.cluster import WorkerId
from holdfast.errors import Argument, ConfigError
from holdfast.planner.place.fresh import fresh
from holdfast.planner.place.machine import Machine, checked
from holdfast.planner.place.placement import MachinePlacement
from holdfast.planner.place.seats import filled

_MACHINES, _TAKEN = Argument("machines"), Argument("taken")
_MOST_NAMED = 8  # machines in a message


def place(
    pipelines: int,
    stages: int,
    machines: Iterable[Machine],
    *,
    stage_memory_bytes: int | None = None,
    taken: Mapping[WorkerId, str] | None = None,
) -> MachinePlacement:
    """The machine of every worker. In this order of importance:

    1. No machine runs more workers than it has slots, and memory for; ConfigError if all together
       are too small.
    2. As few stages as possible have all their holders on one machine.
    3. Neighbours of a pipeline are on one machine, as far as the search gets.
    4. Machines are equally full.

    ``stage_memory_bytes``: what a worker needs at the largest stage, as any may come to hold it.
    ``taken``: workers that run already, and where; they stay.
    """
    if pipelines < 1 or stages < 1:
        raise ConfigError(f"{pipelines} x {stages} workers: expected at least 1 x 1")
    if stage_memory_bytes is not None and stage_memory_bytes < 0:
        given = Argument("stage_memory_bytes", stage_memory_bytes)
        raise ConfigError(given, ": expected 0 or more")
    found, kept = checked(machines), dict(taken or {})
    rooms = {machine.name: machine.room(stage_memory_bytes) for machine in found}
    _require_room(pipelines * stages, found, rooms, stage_memory_bytes)
    everyone = [WorkerId(d, s) for d in range(pipelines) for s in range(stages)]
    if kept:
        _require_known(kept, WorkerId(pipelines - 1, stages - 1), rooms)
        missing = [worker for worker in everyone if worker not in kept]
        stage_of = {worker: worker.stage for worker in everyone}
        where = filled(rooms, kept, missing, stage_of, stages=stages, may_move=False)
    else:
        numbers = fresh(pipelines, stages, list(rooms.values()))
        where = {worker: found[numbers[worker[0]][worker[1]]].name for worker in everyone}
    return MachinePlacement(pipelines, stages, found, where, stage_memory_bytes)


def _require_room(
    number: int, machines: Sequence[Machine], rooms: Mapping[str, int], memory_bytes: int | None
) -> None:
    if sum(rooms.values()) >= number:
        return
    named = ", ".join(_room_words(each, rooms[each.name]) for each in machines[:_MOST_NAMED])
    more = f" and {len(machines) - _MOST_NAMED} more" if len(machines) > _MOST_NAMED else ""
    short = any(rooms[each.name] < each.slots for each in machines)
    size = f" of {memory_bytes} bytes each" if short else ""
    has = f"room for {sum(rooms.values())} workers{size}"
    raise ConfigError(_MACHINES, f": {named}{more}: {has}: expected room for {number}")


def _room_words(machine: Machine, room: int) -> str:
    if room < machine.slots:
        return f"{machine.name} has memory for {room} of its {machine.slots} slots"
    return f"{machine.name} has {machine.slots} slot{'' if machine.slots == 1 else 's'}"


def _require_known(taken: Mapping[WorkerId, str], last: WorkerId, rooms: Mapping[str, int]) -> None:
    for worker, name in taken.items():
        if not (0 <= worker.pipeline <= last.pipeline and 0 <= worker.stage <= last.stage):
            raise ConfigError(_TAKEN, f": no such worker: {worker}: expected 0.0 to {last}")
        if name not in rooms:
            raise ConfigError(_TAKEN, f": {worker} runs on {name}: expected one of the machines")
    for name, number in Counter(taken.values()).items():
        if number > rooms[name]:
            has = f"{name} runs {number} workers and has room for {rooms[name]}"
            raise ConfigError(_TAKEN, f": {has}: expected no more than that")
