"""Who runs where: the answer, and what can be read off it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.cluster import WorkerId
from holdfast.planner.place.machine import Machine


@dataclass(frozen=True)
class MachinePlacement:
    pipelines: int
    stages: int
    machines: tuple[Machine, ...]
    where: Mapping[WorkerId, str]  # the machine of each worker, by its name
    stage_memory_bytes: int | None = None  # of the largest stage: any worker may come to hold it
    held: Mapping[WorkerId, int] = field(default_factory=dict)  # another stage than its name says

    def stage_of(self, worker: WorkerId) -> int:
        return self.held.get(worker, worker.stage)

    @cached_property
    def by_machine(self) -> Mapping[str, tuple[WorkerId, ...]]:
        found: dict[str, list[WorkerId]] = {machine.name: [] for machine in self.machines}
        for worker in sorted(self.where):
            found[self.where[worker]].append(worker)
        return {name: tuple(workers) for name, workers in found.items()}

    @cached_property
    def spare(self) -> Mapping[str, int]:
        """Workers that each machine has room for besides those it runs."""
        return {
            machine.name: machine.room(self.stage_memory_bytes) - len(self.by_machine[machine.name])
            for machine in self.machines
        }

    @cached_property
    def stages_on_one_machine(self) -> tuple[int, ...]:
        """Stages whose holders are all on one machine: its loss would lose them."""
        machines: dict[int, set[str]] = {}
        for worker, name in self.where.items():
            machines.setdefault(self.stage_of(worker), set()).add(name)
        return tuple(sorted(stage for stage, names in machines.items() if len(names) == 1))

    @cached_property
    def num_split(self) -> int:
        """Neighbours of a pipeline, ``d.s`` and ``d.s+1``, that are on two machines."""
        return sum(
            self.where.get(WorkerId(pipeline, stage + 1), name) != name
            for (pipeline, stage), name in self.where.items()
        )

    @cached_property
    def reason(self) -> str:
        """What was to be had, and what could not be helped, in words."""
        num_pairs = self.pipelines * (self.stages - 1)
        near = "every pipeline is on one machine"
        if self.num_split:
            near = f"{self.num_split} of {num_pairs} neighbours of a pipeline are on two machines"
        num_spare = sum(self.spare.values())
        spare = f"{num_spare} {'slot is' if num_spare == 1 else 'slots are'} spare"
        return "; ".join([self._apart, *([near] if num_pairs else []), spare])

    @property
    def _apart(self) -> str:
        alone = self.stages_on_one_machine
        if not alone:
            return "every stage is on two machines or more"
        head = f"{stage_words(alone)} on one machine only, which cannot be helped"
        if self.pipelines == 1:
            return f"{head}: there is one pipeline"
        rooms = {each.name: each.room(self.stage_memory_bytes) for each in self.machines}
        largest = max(rooms, key=lambda name: rooms[name])
        beside = sum(rooms.values()) - rooms[largest]
        if beside < self.stages:
            has = f"besides {largest} there is room for {beside} of {self.stages} stages"
            return f"{head}: {has}"
        return f"{head}: too little room is left beside the workers that are there"


def stage_words(stages: Sequence[int]) -> str:
    """E.g. ``stage 2 is``, or ``stages 0-3, 7 are``."""
    if len(stages) == 1:
        return f"stage {stages[0]} is"
    return f"stages {number_words(stages)} are"


def number_words(numbers: Sequence[int]) -> str:
    """E.g. ``0-3, 7``: rising numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
