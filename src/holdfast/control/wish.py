"""What a change of who does what is for, and how far it has got. Data only."""

from dataclasses import dataclass, field

from holdfast.cluster import WorkerId
from holdfast.control.joiner import Joiner
from holdfast.control.recovery import Dead
from holdfast.protocol import messages


@dataclass(frozen=True, slots=True)
class Wish:
    """What a change is for, besides a death."""

    cause: str
    entering: tuple[WorkerId, ...] = ()
    leaving: tuple[tuple[WorkerId, Joiner], ...] = ()  # who, and what it will be instead
    about: tuple[WorkerId, ...] = ()  # others whom it concerns


@dataclass
class Change:
    notice_s: float
    fault_s: float
    causes: list[str] = field(default_factory=list)
    workers: list[WorkerId] = field(default_factory=list)  # lost, joined or moved
    dead: list[tuple[WorkerId, int]] = field(default_factory=list)  # and the stage each held
    left: list[tuple[WorkerId, int]] = field(default_factory=list)  # and the stage each gave up
    work: dict[WorkerId, list[Dead]] = field(default_factory=dict)  # lost; noted before a rebuild
    entering: set[WorkerId] = field(default_factory=set)
    leaving: dict[WorkerId, Joiner] = field(default_factory=dict)
    stopping: bool = True  # until there is a plan; then everyone takes up work again
    halted_s: float = 0.0
    busy_s: dict[WorkerId, float] = field(default_factory=dict)  # last seen so, since it was told
    tells: dict[WorkerId, messages.Tell] = field(default_factory=dict)
    plan_s: float = 0.0
    step: int = 0
    redone: int = 0
    operations: int = 0
    num_lost: int = 0
    thrown_away: int = 0  # finished steps that will be trained again
    resumed_s: dict[WorkerId, float] = field(default_factory=dict)

    def add(self, cause: str, *workers: WorkerId) -> None:
        self.causes += [cause] if cause not in self.causes else []
        self.workers += [worker for worker in workers if worker not in self.workers]
