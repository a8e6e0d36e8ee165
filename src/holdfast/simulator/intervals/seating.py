"""From a world to changes of a job's seats: machines that wait take the place of those that go."""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.baselines.policies.policy import Change
from holdfast.errors import ConfigError
from holdfast.simulator.worlds.world import World, WorldEvent, WorldKind

_WELL = 1.0


@dataclass(frozen=True, slots=True)
class SeatChange:
    at_s: float
    change: Change
    live: int  # workers on the job afterwards
    rented: int  # workers on all machines that are there


@dataclass
class _Seats:
    """Machines sit in groups of seats, one group a machine."""

    num_groups: int
    workers_a_machine: int
    group_of: dict[int, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)  # machines, a heap
    speed_of: dict[int, float] = field(default_factory=dict)

    def seats(self, group: int) -> tuple[int, ...]:
        first = group * self.workers_a_machine
        return tuple(range(first, first + self.workers_a_machine))

    def come(self, machines: tuple[int, ...]) -> None:
        for machine in machines:
            heapq.heappush(self.waiting, machine)

    def go(self, machines: tuple[int, ...]) -> tuple[int, ...]:
        lost: list[int] = []
        for machine in machines:
            self.speed_of.pop(machine, None)
            group = self.group_of.pop(machine, None)
            if group is not None:
                lost += self.seats(group)
            elif machine in self.waiting:
                self.waiting.remove(machine)
                heapq.heapify(self.waiting)
        return tuple(lost)

    def fill(self) -> tuple[tuple[int, ...], dict[int, float]]:
        """Empty groups, in order, get whoever waits; a machine its own place, if that is free.

        The seats, and the speeds of those that are slow.
        """
        came: list[int] = []
        taken = set(self.group_of.values())
        for machine in sorted(self.waiting):
            if machine < self.num_groups and machine not in taken:
                self._seat(machine, machine, taken, came)
        free = [group for group in range(self.num_groups) if group not in taken]
        for group, machine in zip(free, sorted(self.waiting), strict=False):
            self._seat(machine, group, taken, came)
        machine_at = {group: machine for machine, group in self.group_of.items()}
        speeds = {
            seat: self.speed_of.get(machine_at[seat // self.workers_a_machine], _WELL)
            for seat in came
        }
        return tuple(came), {seat: speed for seat, speed in speeds.items() if speed != _WELL}

    def _seat(self, machine: int, group: int, taken: set[int], came: list[int]) -> None:
        self.group_of[machine] = group
        taken.add(group)
        self.waiting.remove(machine)
        came += self.seats(group)

    def speeds(self, event: WorldEvent) -> dict[int, float]:
        found: dict[int, float] = {}
        for machine in event.machines:
            self.speed_of[machine] = 1 / event.factor
            if machine in self.group_of:
                seats = self.seats(self.group_of[machine])
                found |= dict.fromkeys(seats, 1 / event.factor)
        return found


def seat_changes(world: World, num_workers: int, boot_s: float) -> Iterator[SeatChange]:
    """The first is who is there at the start. New machines need ``boot_s`` to be of use."""
    if num_workers % world.workers_a_machine or num_workers > world.num_workers:
        raise ConfigError(
            f"{num_workers} workers on {world.machines} machines with {world.workers_a_machine} "
            "each: expected no more workers than there are places, and whole machines"
        )
    seats = _Seats(num_workers // world.workers_a_machine, world.workers_a_machine)
    seats.come(world.alive)
    first, _ = seats.fill()
    rented = len(world.alive) * world.workers_a_machine
    yield SeatChange(0.0, Change(came=first), len(first), rented)
    live = len(first)
    for at_s, kind, event in _moments(world, boot_s):
        lost: tuple[int, ...] = ()
        speeds: dict[int, float] = {}
        if kind is WorldKind.LOSS:
            lost = seats.go(event.machines)
        elif kind is WorldKind.RETURN:
            seats.come(event.machines)
        else:
            speeds = seats.speeds(event)
        came, slow = seats.fill()
        speeds |= slow
        live += len(came) - len(lost)
        rented += _rented(kind, event) * world.workers_a_machine
        if lost or came or speeds:
            yield SeatChange(at_s, Change(lost, came, speeds, event.notice_s), live, rented)


def _rented(kind: WorldKind, event: WorldEvent) -> int:
    sign = {WorldKind.LOSS: -1, WorldKind.RETURN: 1}.get(kind, 0)
    return sign * len(event.machines)


def _moments(world: World, boot_s: float) -> Iterator[tuple[float, WorldKind, WorldEvent]]:
    """Events by time, machines that come when they have booted; who goes before then never was."""
    losses_s: dict[int, deque[float]] = {}  # those that are still to come
    for event in world.events:
        if event.kind is WorldKind.LOSS:
            for machine in event.machines:
                losses_s.setdefault(machine, deque()).append(event.at_s)
    rows: list[tuple[float, str, int, WorldEvent]] = []
    never: set[int] = set()  # machines that are there, and go before they have booted
    for number, event in enumerate(world.events):
        at_s, group = event.at_s, event.machines
        if event.kind is WorldKind.RETURN:
            at_s += boot_s
            never |= {m for m in group if losses_s.get(m) and losses_s[m][0] <= at_s}
        kept = tuple(m for m in group if m not in never)
        if event.kind is WorldKind.LOSS:
            never -= set(group)
            for machine in group:
                losses_s[machine].popleft()
        if kept and (event.kind is not WorldKind.RETURN or at_s < world.length_s):
            rows.append((at_s, event.kind.value, number, _with(event, at_s, kept)))
    for at_s, kind, _, event in sorted(rows, key=lambda row: row[:3]):
        yield at_s, WorldKind(kind), event


def _with(event: WorldEvent, at_s: float, machines: tuple[int, ...]) -> WorldEvent:
    return WorldEvent(at_s, event.kind, machines, event.notice_s, event.factor)
