"""A step that is to be run or ended: lanes, and the tensors of it that exist already.

Says where each operation's input comes from and where its result goes. What a tensor is, and
how it travels, is not known here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from holdfast.cluster import WorkerId
from holdfast.errors import ScheduleError
from holdfast.schedule.operation import Fact, Kind, Op, makes, needs
from holdfast.schedule.schedule import Schedule


@dataclass(frozen=True)
class RunningStep:
    """``schedule``: every member has a lane, maybe an empty one; each is run in its order."""

    step: int
    attempt: int
    schedule: Schedule
    sources: Mapping[Fact, WorkerId] = field(default_factory=dict)
    """Who has the boundary tensors that are needed and that exist already."""
    copies: Mapping[int, WorkerId] = field(default_factory=dict)
    """Stage -> who has its reduced gradient already."""

    def __post_init__(self) -> None:
        # The only way to finish a frozen instance: read-only copies, as indexes depend on them.
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        object.__setattr__(self, "copies", MappingProxyType(dict(self.copies)))

    @classmethod
    def whole(cls, step: int, attempt: int, schedule: Schedule) -> "RunningStep":
        """A step of which nothing exists yet."""
        return cls(step, attempt, schedule)

    # --- what the executor asks, once an operation ---

    def origin(self, op: Op) -> WorkerId | None:
        """Who has or makes the tensor that ``op`` gets from a neighbour stage; None: needs none.

        It may be the asking worker itself.
        """
        fact = self._input(op)
        if fact is None:
            return None
        worker = self.sources.get(fact) or self._makers.get(fact)
        if worker is None:
            raise ScheduleError(
                f"step {self.step}: {op} needs the {fact}, but nobody has it and nobody's lane "
                "makes it; expected a source or an operation for it"
            )
        return worker

    def receivers(self, op: Op) -> tuple[WorkerId, ...]:
        """Whose lane needs what ``op`` makes. Nobody's if it exists already: then it is resent."""
        facts = (fact for fact in makes(op) if fact in self._users and fact not in self.sources)
        return tuple(self._users[fact] for fact in facts)

    def resend(self, worker: WorkerId) -> list[tuple[Fact, WorkerId]]:
        """What ``worker`` has kept and must send again at the start, and to whom."""
        return self._resends.get(worker, [])

    def reducers(self, stage: int) -> tuple[WorkerId, ...]:
        """Who has R of ``stage`` in its lane, sorted: all that reduce, or that get a copy."""
        return self._reducers.get(stage, ())

    # --- indexes, made at the first question ---

    def _input(self, op: Op) -> Fact | None:
        """The one fact of another stage; an own fact is in the worker's stash."""
        if op.kind is Kind.R:
            return None
        others = (fact for fact in needs(op, self.schedule.shape) if fact.stage != op.stage)
        return next(others, None)

    def _entries(self) -> Iterator[tuple[WorkerId, Op]]:
        return ((worker, op) for worker, lane in self.schedule.lanes.items() for op in lane)

    @cached_property
    def _makers(self) -> dict[Fact, WorkerId]:
        return {fact: worker for worker, op in self._entries() for fact in makes(op)}

    @cached_property
    def _users(self) -> dict[Fact, WorkerId]:
        """One at most: a micro-batch's F, and its B or BW, run once at a stage."""
        inputs = ((self._input(op), worker) for worker, op in self._entries())
        return {fact: worker for fact, worker in inputs if fact is not None}

    @cached_property
    def _resends(self) -> dict[WorkerId, list[tuple[Fact, WorkerId]]]:
        resends: dict[WorkerId, list[tuple[Fact, WorkerId]]] = {}
        for fact, worker in self.sources.items():
            user = self._users.get(fact, worker)
            if user != worker:
                resends.setdefault(worker, []).append((fact, user))
        return resends

    @cached_property
    def _reducers(self) -> dict[int, tuple[WorkerId, ...]]:
        reducers: dict[int, tuple[WorkerId, ...]] = {}
        for worker, op in self._entries():
            if op.kind is Kind.R:
                reducers[op.stage] = (*reducers.get(op.stage, ()), worker)
        return reducers
