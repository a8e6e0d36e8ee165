"""The cut and the lanes in use, and for whom they were made. Plans nothing itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.schedule.costs import Costs
from holdfast.schedule.schedule import Schedule


class Steady(NamedTuple):
    """What every whole step runs. ``period_s`` 0: unknown."""

    schedule: Schedule
    period_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Of the layers into stages, with what each stage costs and has room for."""

    layers: tuple[int, ...]
    costs: Costs
    guessed: bool  # the costs are numbers of layers, not seconds
    reason: str
    in_flight: int  # most micro-batches on a worker, if the user has not set it


class CurrentPlan:
    """Made once, when the layers are cut; asked before that, it is a mistake of ours."""

    def __init__(self) -> None:
        self._cut: Cut | None = None
        self._first: Steady | None = None
        self._steady: Steady | None = None
        self._steady_from = 0
        self._planned_for: dict[WorkerId, int] = {}

    @property
    def is_made(self) -> bool:
        return self._cut is not None

    @property
    def cut(self) -> Cut:
        assert self._cut is not None, "the layers are not cut yet"
        return self._cut

    @property
    def first(self) -> Steady:
        """For a run in which nobody is missing."""
        assert self._first is not None, "the layers are not cut yet"
        return self._first

    @property
    def steady(self) -> Steady:
        """The one in use."""
        assert self._steady is not None, "the layers are not cut yet"
        return self._steady

    @property
    def steady_from(self) -> int:
        """The first whole step that runs it."""
        return self._steady_from

    @property
    def planned_for(self) -> Mapping[WorkerId, int]:
        """The stages it counts on."""
        return self._planned_for

    def make(self, cut: Cut, first: Steady, stages: Mapping[WorkerId, int]) -> None:
        self._cut, self._planned_for = cut, dict(stages)
        self._first = self._steady = first

    def replan(self, steady: Steady, stages: Mapping[WorkerId, int]) -> None:
        """For other members."""
        self._steady, self._planned_for = steady, dict(stages)

    def begin_at(self, step: int) -> None:
        self._steady_from = step

    def switch(self, steady: Steady, step: int) -> None:
        """Other lanes for the same members, from a step on."""
        self._steady, self._steady_from = steady, step
