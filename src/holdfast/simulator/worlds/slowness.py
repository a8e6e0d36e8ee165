"""Slow machines in a world, with the published rates and depths. Slow links are not known here."""

from math import prod

from holdfast.cluster import WorkerId
from holdfast.faults.fault import FaultKind
from holdfast.faults.slowdowns import slowdowns
from holdfast.simulator.worlds.world import (
    World,
    WorldEvent,
    WorldKind,
    in_order,
    require_few,
)

_MINUTE_S = 60.0
_WELL = 1.0
_SPELLS_A_MACHINE_H = 0.035  # drawn, about: slow links too, which are not used


def with_slowness(world: World, seed: int) -> World:
    """Its machines also become slow now and then, as often as was published."""
    steps = max(int(world.length_s / _MINUTE_S), 1)
    spells = steps * min(world.machines * _SPELLS_A_MACHINE_H * _MINUTE_S / 3600, 1.0)
    require_few(f"{world.name}, with slow machines", world.num_losses + spells)
    machines = [[WorkerId(number, 0)] for number in range(world.machines)]
    faults = slowdowns(seed, world.machines, 1, steps, _MINUTE_S, machines=machines)
    spans: dict[int, list[tuple[float, float, float]]] = {}
    for fault in faults:
        if fault.kind is not FaultKind.SLOW or fault.lasting is None or fault.worker is None:
            continue
        last, factor = fault.lasting.last_step, fault.lasting.factor
        end_s = world.length_s if last is None else (last + 1) * _MINUTE_S
        spans.setdefault(fault.worker.pipeline, []).append(
            (fault.step * _MINUTE_S, min(end_s, world.length_s), factor)
        )
    slow = [event for number in sorted(spans) for event in _changes(number, spans[number])]
    return _among_the_living(world, slow)


def _changes(number: int, spans: list[tuple[float, float, float]]) -> list[WorldEvent]:
    """Its factor whenever that changes; what overlaps is multiplied."""
    starts: dict[float, list[int]] = {}
    for index, (start_s, end_s, _) in enumerate(spans):
        starts.setdefault(start_s, []).append(index)
        starts.setdefault(end_s, [])
    events, before, now = [], _WELL, list[int]()
    for at_s in sorted(starts):
        now = sorted(index for index in [*now, *starts[at_s]] if at_s < spans[index][1])
        factor = prod((spans[index][2] for index in now), start=_WELL)
        if factor != before:
            kind = WorldKind.WELL if factor == _WELL else WorldKind.SLOW
            events.append(WorldEvent(at_s, kind, (number,), factor=factor))
        before = factor
    return events


def _among_the_living(world: World, slow: list[WorldEvent]) -> World:
    """Nothing is told of machines that are away; who comes back is well."""
    here, kept = set(world.alive), []
    for event in in_order([*world.events, *slow]):
        if event.at_s >= world.length_s:
            continue
        if event.kind is WorldKind.LOSS:
            here -= set(event.machines)
        elif event.kind is WorldKind.RETURN:
            here |= set(event.machines)
        elif not here.issuperset(event.machines):
            continue
        kept.append(event)
    return World(
        f"{world.name}, with slow machines",
        world.machines,
        world.workers_a_machine,
        world.length_s,
        world.alive,
        tuple(kept),
    )
