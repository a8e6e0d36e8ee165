"""What every policy is asked: who is there at the start, and what a change makes of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import ClassVar, NamedTuple

from holdfast.baselines.policies.constants import ConstantRow, PolicyConstants, listed
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces


class WorkLost(StrEnum):
    """What a change costs of the work that was done."""

    NOTHING = "nothing"
    OWN_SHARE = "own share"  # what the lost workers had done of the step is done again by others
    STEP = "step"  # the step in flight
    SINCE_CHECKPOINT = "since checkpoint"


class StopRule(StrEnum):
    """What a loss makes of a stop, or of a replay, that is under way. Who comes ends neither."""

    ANEW = "anew"  # it begins anew, with all it was for
    GOES_ON = "goes on"  # what the loss needs is done beside it


class Change(NamedTuple):
    """Workers by their seat: pipeline x stages + stage. A seat that went and came is in both."""

    lost: tuple[int, ...] = ()
    came: tuple[int, ...] = ()
    speeds: Mapping[int, float] = {}  # of whose speed has changed: 1 = normal
    notice_s: float = 0.0
    at_s: float = 0.0  # when it comes
    unfinished_s: float = 0.0  # what is left of a stop, and of work that is done again
    stands: bool = False  # nobody computes, and nobody would without this change


class Stretch(NamedTuple):
    """For so long steps take so long, until what comes next is ready."""

    seconds: float
    period_s: float
    goes_on: bool = True  # if something else changes meanwhile


@dataclass(frozen=True, kw_only=True)
class Reaction:
    period_s: float  # in the long run; inf: it cannot run
    pause_s: float = 0.0  # nobody computes
    work_lost: WorkLost = WorkLost.NOTHING
    replay_s: float = 0.0  # for each step since the checkpoint, instead of losing them
    meanwhile: tuple[Stretch, ...] = ()  # after the pause
    interrupted: StopRule = StopRule.ANEW
    reason: str = ""


class Saving(NamedTuple):
    """Checkpoints: every so many steps all wait so long; 0 steps: never."""

    every_steps: int = 0
    stall_s: float = 0.0

    def step_s(self) -> float:
        """What it adds to a step."""
        return self.stall_s / self.every_steps if self.every_steps else 0.0


@dataclass
class Crew:
    """Who is there, and how fast. Seats that are empty are not in it."""

    speeds: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, live: Sequence[int]) -> "Crew":
        return cls(dict.fromkeys(sorted(live), 1.0))

    def follow(self, change: Change) -> None:
        for worker in change.lost:
            self.speeds.pop(worker, None)
        for worker in change.came:
            self.speeds[worker] = 1.0
        for worker, speed in sorted(change.speeds.items()):
            if worker in self.speeds:
                self.speeds[worker] = speed

    def __len__(self) -> int:
        return len(self.speeds)


class Policy(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    leaves_out: ClassVar[str]  # what the model does not have in it
    constants_type: ClassVar[type[PolicyConstants]] = PolicyConstants

    def __init__(self, job: JobCosts, paces: Paces, constants: PolicyConstants) -> None:
        self.job, self.paces = job, paces
        self.crew = Crew()
        self._given = constants

    @property
    def constants(self) -> tuple[ConstantRow, ...]:
        return listed(self._given)

    def begin(self, live: Sequence[int]) -> Reaction:
        """All that are there have started and hold their state."""
        self.crew = Crew.of(live)
        return self.first()

    def react(self, change: Change) -> Reaction | None:
        """None: nobody takes notice."""
        self.crew.follow(change)
        return self.after(change)

    @abstractmethod
    def first(self) -> Reaction: ...

    @abstractmethod
    def after(self, change: Change) -> Reaction | None: ...

    def saving(self, period_s: float) -> Saving:
        """Checkpoints, for steps of this length."""
        return Saving()

    def cannot(self, why: str) -> Reaction:
        return Reaction(period_s=inf, work_lost=WorkLost.SINCE_CHECKPOINT, reason=why)
