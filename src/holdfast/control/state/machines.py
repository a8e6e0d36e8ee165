"""Which machines are here, and on which of them each worker was started. Decides nothing."""

from collections.abc import Iterable, Mapping

from holdfast.cluster import WorkerId
from holdfast.planner.place.machine import Machine
from holdfast.planner.place.placement import MachinePlacement
from holdfast.schedule.operation import Shape


class Machines:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._here: dict[str, Machine] = {}
        self._seats: dict[WorkerId, str] = {}
        self.num_seated = 0  # so far
        self._spoke_s: dict[str, float] = {}
        self._draining: frozenset[str] = frozenset()
        self._closed: set[str] = set()  # they may be away
        self._own = ""  # the one that the coordinator is on

    @property
    def here(self) -> Mapping[str, Machine]:
        return self._here

    @property
    def own(self) -> str:
        """The one that the coordinator is on; empty: none, or not known."""
        return self._own

    @property
    def seats(self) -> Mapping[WorkerId, str]:
        return self._seats

    @property
    def are_many(self) -> bool:
        return len(self._here) > 1

    @property
    def open(self) -> Mapping[str, Machine]:
        """Those that workers may be started on."""
        closed = self._draining | self._closed
        return {name: each for name, each in self._here.items() if name not in closed}

    @property
    def draining(self) -> frozenset[str]:
        """Those that are to leave; they may not be back yet."""
        return self._draining

    def drain(self, names: Iterable[str]) -> None:
        """These are to leave, and no others: nobody is started there any more."""
        self._draining = frozenset(names)

    def keep_out(self, names: Iterable[str]) -> None:
        """From now on nobody is started on these, and on no others for that; here or not."""
        self._closed = set(names)

    def came(self, machine: Machine, at_s: float, *, is_own: bool = False) -> None:
        self._here[machine.name] = machine
        self._own = machine.name if is_own else self._own
        self._spoke_s[machine.name] = at_s

    def left(self, name: str) -> list[WorkerId]:
        """Who was there. Its agent may not have come back to a successor."""
        gone = self.on(name)
        self._here.pop(name, None)
        self._spoke_s.pop(name, None)
        self._draining -= {name}
        for worker in gone:
            del self._seats[worker]
        return gone

    # --- who is where ---

    def seat(self, worker: WorkerId, name: str) -> None:
        self._seats[worker] = name
        self.num_seated += 1

    def unseat(self, worker: WorkerId) -> None:
        self._seats.pop(worker, None)

    def of(self, worker: WorkerId) -> str:
        """Empty: it was started by hand, or is a thread."""
        return self._seats.get(worker, "")

    def on(self, name: str) -> list[WorkerId]:
        return sorted(worker for worker, there in self._seats.items() if there == name)

    def room_on(self, name: str) -> int:
        return self._here[name].slots - len(self.on(name))

    def placement(self, held: Mapping[WorkerId, int]) -> MachinePlacement:
        """``held``: the stages of the members."""
        shape, machines = self._shape, tuple(self._here.values())
        seated = {worker: stage for worker, stage in held.items() if worker in self._seats}
        return MachinePlacement(
            shape.pipelines, shape.stages, machines, dict(self._seats), held=seated
        )

    # --- signs of life ---

    def spoke(self, name: str, at_s: float) -> None:
        self._spoke_s[name] = at_s

    def silent_s(self, name: str, at_s: float) -> float:
        return at_s - self._spoke_s[name]

    def forgive(self, seconds: float) -> None:
        """The coordinator was away for so long: nobody could be heard."""
        self._spoke_s = {name: at_s + seconds for name, at_s in self._spoke_s.items()}

    @property
    def names(self) -> str:
        """Of those that are here, for people."""
        return ", ".join(sorted(self._here)) or "none"
