"""A world: machines that are there at the start, and what happens to them. Decides nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from holdfast.errors import ConfigError

MOST_MACHINES = 200_000
MOST_FAILURES = 1_000_000  # with maintenance and spells of slowness
MOST_DAYS = 10_000


class WorldKind(StrEnum):
    """The values are in files."""

    LOSS = "loss"  # machines go
    RETURN = "return"  # machines come (back)
    SLOW = "slow"  # from now on they take ``factor`` times as long
    WELL = "well"  # they are as fast as they should be again


@dataclass(frozen=True, slots=True, order=True)
class WorldEvent:
    at_s: float
    kind: WorldKind
    machines: tuple[int, ...]
    notice_s: float = 0.0  # of a loss: so long before it is known
    factor: float = 1.0  # of slowness

    def __post_init__(self) -> None:
        if not (isfinite(self.at_s) and self.at_s >= 0):
            raise ConfigError(f"an event at {self.at_s} s: expected a time of 0 or more")
        if not (isfinite(self.notice_s) and self.notice_s >= 0):
            raise ConfigError(f"notice of {self.notice_s} s: expected a time of 0 or more")
        if not (isfinite(self.factor) and 1 <= self.factor <= 1000):
            raise ConfigError(f"slower by {self.factor}: expected a factor from 1 to 1000")
        if not self.machines:
            raise ConfigError(f"{self.kind.value} at {self.at_s} s: expected at least one machine")


@dataclass(frozen=True, slots=True)
class World:
    """``events`` are in order of time; ``alive``: the machines that are there at the start."""

    name: str
    machines: int
    workers_a_machine: int
    length_s: float
    alive: tuple[int, ...]
    events: tuple[WorldEvent, ...]

    def __post_init__(self) -> None:
        require_count("machines", self.machines)
        require_count("workers a machine", self.workers_a_machine)
        if not 0 < self.length_s <= MOST_DAYS * 86400:
            raise ConfigError(
                f"{self.name}: length {self.length_s:g} s: expected a time above 0 and at most "
                f"{MOST_DAYS:,} days"
            )
        self._check_order()
        self._check_lives()

    def _check_order(self) -> None:
        times_s = [event.at_s for event in self.events]
        if times_s != sorted(times_s):
            raise ConfigError(f"{self.name}: events are out of order: expected them by time")
        named = [number for event in self.events for number in event.machines]
        wrong = [number for number in [*self.alive, *named] if not 0 <= number < self.machines]
        if wrong:
            raise ConfigError(
                f"{self.name}: machine {wrong[0]}: expected a number from 0 to {self.machines - 1}"
            )

    def _check_lives(self) -> None:
        """Who goes was there, and who comes was not."""
        here = set(self.alive)
        for event in self.events:
            group = set(event.machines)
            wrong = group & here if event.kind is WorldKind.RETURN else group - here
            if wrong or len(group) != len(event.machines):
                odd = min(wrong, default=event.machines[0])
                raise ConfigError(
                    f"{self.name}: {event.kind.value} of machine {odd} at {event.at_s:g} s: "
                    "expected machines that are there to go or be slow, others to come, each once"
                )
            if event.kind is WorldKind.LOSS:
                here -= group
            elif event.kind is WorldKind.RETURN:
                here |= group

    @property
    def num_workers(self) -> int:
        return self.machines * self.workers_a_machine

    @property
    def num_losses(self) -> int:
        return sum(event.kind is WorldKind.LOSS for event in self.events)

    def cut_to(self, length_s: float) -> "World":
        """The first part of it."""
        if length_s > self.length_s * (1 + 1e-9):
            raise ConfigError(
                f"{self.name} ends after {self.length_s / 3600:.2f} h, before the "
                f"{length_s / 3600:.2f} h that were asked for: expected a shorter run or "
                "a longer trace"
            )
        events = tuple(event for event in self.events if event.at_s < length_s)
        return World(self.name, self.machines, self.workers_a_machine, length_s, self.alive, events)

    def mean_alive(self) -> float:
        """Machines, over the time."""
        number, last_s, sum_s = len(self.alive), 0.0, 0.0
        for event in self.events:
            sum_s += number * (event.at_s - last_s)
            last_s = event.at_s
            if event.kind is WorldKind.LOSS:
                number -= len(event.machines)
            elif event.kind is WorldKind.RETURN:
                number += len(event.machines)
        return (sum_s + number * (self.length_s - last_s)) / self.length_s


def require_count(what: str, number: int) -> None:
    """Of machines or of workers; to be called before anything is made for each of them."""
    if not 1 <= number <= MOST_MACHINES:
        raise ConfigError(f"{what} {number:,}: expected a number from 1 to {MOST_MACHINES:,}")


def require_few(what: str, number: float) -> None:
    if not number <= MOST_FAILURES:
        raise ConfigError(
            f"{what}: {number:.3g} failures, maintenance windows and slow spells: expected at most "
            f"{MOST_FAILURES:,}; ask for fewer days or machines, or for rarer ones"
        )


def in_order(events: Iterable[WorldEvent]) -> tuple[WorldEvent, ...]:
    """By time; at the same moment losses come first."""
    return tuple(sorted(events, key=lambda event: (event.at_s, event.kind.value, event.machines)))


def scaled(world: World, machines: int) -> World:
    """The same story with another number of machines: each stands for several, or for a part."""

    def group(number: int) -> range:
        return range(number * machines // world.machines, (number + 1) * machines // world.machines)

    def grown(numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(new for number in numbers for new in group(number))

    events = (
        WorldEvent(event.at_s, event.kind, grown(event.machines), event.notice_s, event.factor)
        for event in world.events
        if grown(event.machines)
    )
    return World(
        world.name,
        machines,
        world.workers_a_machine,
        world.length_s,
        grown(world.alive),
        tuple(events),
    )
