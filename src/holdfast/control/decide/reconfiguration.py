"""One change of who does what, from the halt until everyone is at work again: one table.

Pure: no messages are sent here and nothing is planned. Which phase comes next is decided
elsewhere; whether it may come is known here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.control.inventory.lost_work import Dead
from holdfast.control.join.joiner import Joiner
from holdfast.control.state.transition import moved
from holdfast.protocol import messages
from holdfast.protocol.records import VerdictRow


class ReconfigurationPhase(Enum):
    HALTING = auto()  # all are told to stop, and to say what they have
    REBUILDING = auto()  # a stage that nobody holds is computed again; the members stand still
    STRANDED = auto()  # only a rollback helps, and it is not clear yet who is left for it
    ROLLING_BACK = auto()  # all build anew, from a checkpoint
    RESUMING = auto()  # there is a plan; until all are at work again
    COMPLETE = auto()


_Phase = ReconfigurationPhase
_NEXT: dict[ReconfigurationPhase, frozenset[ReconfigurationPhase]] = {
    _Phase.HALTING: frozenset(set(_Phase) - {_Phase.COMPLETE}),  # to itself: all are halted anew
    _Phase.REBUILDING: frozenset(
        {_Phase.HALTING, _Phase.REBUILDING, _Phase.STRANDED, _Phase.ROLLING_BACK}
    ),
    _Phase.STRANDED: frozenset(set(_Phase) - {_Phase.COMPLETE}),
    _Phase.ROLLING_BACK: frozenset({_Phase.RESUMING}),
    _Phase.RESUMING: frozenset({_Phase.HALTING, _Phase.COMPLETE}),
    _Phase.COMPLETE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """What a reconfiguration is for, besides a death."""

    cause: str
    entering: tuple[WorkerId, ...] = ()
    leaving: tuple[tuple[WorkerId, Joiner], ...] = ()  # who, and what it will be instead
    about: tuple[WorkerId, ...] = ()  # others whom it concerns


class LostMember(NamedTuple):
    worker: WorkerId
    stage: int  # that it held
    fault_s: float  # when it happened, or was noticed


@dataclass
class Reconfiguration:
    """Change it only through its methods."""

    notice_s: float
    fault_s: float
    phase: ReconfigurationPhase = ReconfigurationPhase.HALTING
    causes: list[str] = field(default_factory=list)
    workers: list[WorkerId] = field(default_factory=list)  # lost, joined or moved
    dead: list[tuple[WorkerId, int]] = field(default_factory=list)  # and the stage each held
    left: list[tuple[WorkerId, int]] = field(default_factory=list)  # and the stage each gave up
    lost_work: dict[WorkerId, list[Dead]] = field(default_factory=dict)
    entering: set[WorkerId] = field(default_factory=set)
    leaving: dict[WorkerId, Joiner] = field(default_factory=dict)
    halted_s: float = 0.0
    busy_s: dict[WorkerId, float] = field(default_factory=dict)  # last seen so, since it was told
    inventories: dict[WorkerId, messages.Inventory] = field(default_factory=dict)
    heard: dict[WorkerId, dict[int, VerdictRow]] = field(default_factory=dict)
    """Verdicts, by who has told of them since it began. They stay true when their teller is gone,
    and a stage may have been rebuilt with one that nobody else has heard."""
    plan_s: float = 0.0
    step: int = 0
    redone: int = 0
    operations: int = 0
    num_lost: int = 0
    thrown_away: int = 0  # finished steps that will be trained again
    resumed_s: dict[WorkerId, float] = field(default_factory=dict)

    @property
    def is_resuming(self) -> bool:
        """There is a plan."""
        return self.phase is ReconfigurationPhase.RESUMING

    def enter(self, phase: ReconfigurationPhase) -> None:
        self.phase = moved("a reconfiguration", _NEXT, self.phase, phase)

    # --- what it is for ---

    def add(self, cause: str, *workers: WorkerId) -> None:
        self.causes += [cause] if cause not in self.causes else []
        self.workers += [worker for worker in workers if worker not in self.workers]

    def request(self, wanted: ChangeRequest) -> None:
        self.add(wanted.cause, *wanted.entering, *wanted.about)
        self.entering |= set(wanted.entering)
        self.leaving = dict(wanted.leaving)
        self.add(wanted.cause, *self.leaving)

    def lose(self, worker: WorkerId, stage: int, fault_s: float) -> None:
        """A member is gone."""
        self.fault_s = min(self.fault_s, fault_s)
        self.add("death", worker)
        self.dead.append((worker, stage))
        self.num_lost += 1
        self.leaving.pop(worker, None)

    def fault_was(self, worker: WorkerId, fault_s: float) -> None:
        """The word of a fault may come after the notice of what it did."""
        if worker in self.workers:
            self.fault_s = min(self.fault_s, fault_s)

    def give_up_stage(self, worker: WorkerId, stage: int) -> None:
        """A member is to hold another stage; of what it has told only the verdicts count."""
        self.left.append((worker, stage))
        self.add("move", worker)

    def let_in(self, workers: Iterable[WorkerId]) -> None:
        self.entering |= set(workers)

    def leave_out(self, worker: WorkerId) -> None:
        """A joiner is gone: nobody waits for it."""
        self.entering.discard(worker)

    def drop_requests(self) -> None:
        """Nobody comes or goes any more."""
        self.entering, self.leaving = set(), {}

    # --- stop and tell ---

    def halt(self, at_s: float) -> None:
        """From the start: all are asked again."""
        self.enter(ReconfigurationPhase.HALTING)
        self.halted_s = at_s
        self.inventories.clear()
        self.busy_s.clear()
        self.resumed_s.clear()

    def note_inventory(self, worker: WorkerId, inventory: messages.Inventory) -> None:
        self.inventories[worker] = inventory
        self.heard.setdefault(worker, {}).update(inventory.verdicts)

    def note_busy(self, worker: WorkerId, at_s: float) -> None:
        self.busy_s[worker] = at_s

    def note_lost_work(self, worker: WorkerId, work: list[Dead]) -> None:
        """Before anybody comes under its name. What was noted first is right."""
        self.lost_work.setdefault(worker, work)

    # --- plan and go ---

    def throw_away(self, num_steps: int) -> None:
        self.thrown_away += num_steps

    def resume(self, step: int, *, redone: int, operations: int, at_s: float) -> None:
        """The plan is made; now it is seen through. ``step``: that it falls into."""
        self.enter(ReconfigurationPhase.RESUMING)
        self.step, self.operations = step, operations
        self.redone += redone
        self.drop_requests()
        self.dead.clear()
        self.left.clear()
        self.lost_work.clear()
        self.heard.clear()
        self.plan_s = at_s

    def note_resumed(self, worker: WorkerId, at_s: float) -> None:
        self.resumed_s.setdefault(worker, at_s)

    def complete(self) -> float:
        """All are at work again: since when."""
        self.enter(ReconfigurationPhase.COMPLETE)
        return max(self.resumed_s.values())
