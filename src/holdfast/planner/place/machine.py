"""A machine as a placement sees it: its name, and how many workers it has room for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast import names
from holdfast.errors import Argument, ConfigError
from holdfast.names import MOST_SLOTS

MOST_MACHINES = 4096
_MACHINES = Argument("machines")


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    slots: int  # workers that may run there at one time
    memory_bytes: int | None = None  # for all of them; None: no limit

    def __post_init__(self) -> None:
        if not names.MACHINE.fits(self.name):
            expected = f"expected {names.MACHINE.what}"
            raise ConfigError(_MACHINES, f": name {self.name!r}: {expected}")
        if not 0 <= self.slots <= MOST_SLOTS:
            expected = f"expected 0 to {MOST_SLOTS:,} slots"
            raise ConfigError(_MACHINES, f": {self.name} has {self.slots} slots: {expected}")
        if self.memory_bytes is not None and self.memory_bytes < 0:
            has = f": {self.name} has {self.memory_bytes} bytes of memory"
            raise ConfigError(_MACHINES, f"{has}: expected 0 or more")

    def room(self, stage_memory_bytes: int | None) -> int:
        """Workers that fit, by slots and by memory."""
        if self.memory_bytes is None or not stage_memory_bytes:
            return self.slots
        return min(self.slots, self.memory_bytes // stage_memory_bytes)


def checked(machines: Iterable[Machine]) -> tuple[Machine, ...]:
    """At least one, and no name twice."""
    found = tuple(machines)
    if not 1 <= len(found) <= MOST_MACHINES:
        expected = f"expected 1 to {MOST_MACHINES:,}"
        raise ConfigError(_MACHINES, f": {len(found)} are given: {expected}")
    seen: set[str] = set()
    for machine in found:
        if machine.name in seen:
            raise ConfigError(_MACHINES, f": {machine.name} is given twice: expected it once")
        seen.add(machine.name)
    return found


def equal_machines(number: int, num_workers: int) -> tuple[Machine, ...]:
    """``m0``, ``m1`` and so on, with as many slots as there are workers, divided evenly."""
    most = min(num_workers, MOST_MACHINES)
    if not 1 <= number <= most:
        expected = f"expected 1 to {most:,} for {num_workers:,} workers, one slot each at least"
        raise ConfigError(Argument("machines", number), f": {expected}")
    each, more = divmod(num_workers, number)
    return tuple(Machine(f"m{index}", each + (index < more)) for index in range(number))


def machines_of(given: int | Mapping[str, int], num_workers: int) -> tuple[Machine, ...]:
    """A number of equal machines, or slots by name."""
    if isinstance(given, int):
        return equal_machines(given, num_workers)
    return checked(Machine(name, slots) for name, slots in given.items())
