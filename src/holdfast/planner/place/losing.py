"""What the loss of a machine would cost: all its workers are gone at once.

Step times are predicted by the planner, as for any other workers that are gone.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.planner.place.placement import MachinePlacement
from holdfast.planner.place.refilling import refill
from holdfast.planner.planning import best_plan, first_plan
from holdfast.planner.problem import Member, Problem

Outcome = Literal["goes on", "rebuilds", "stops"]


@dataclass(frozen=True)
class MachineLoss:
    """``rebuilds``: the state of a stage is gone with the machine, and comes from its log, or all
    go back to the last checkpoint. ``stops``: there is no room for a holder of every stage."""

    machine: str
    workers: tuple[WorkerId, ...]  # that are gone with it
    holders: tuple[int, ...]  # that each stage keeps
    lost_stages: tuple[int, ...]
    outcome: Outcome
    period_s: float | None  # predicted, with those that are left; None: too few for all stages
    started_again: tuple[WorkerId, ...]  # that other machines have spare slots for
    refilled_period_s: float | None  # predicted, with these too; None: there are none

    @property
    def survives(self) -> bool:
        return self.outcome != "stops"


class LossCosts:
    """Of one machine after another: what is known of one is not planned again.

    Stages with as many holders, of the same speeds, are taken for equal, whatever their pipelines.
    """

    def __init__(
        self, placement: MachinePlacement, problem: Problem, *, refined: bool = True
    ) -> None:
        """``problem``: the step to plan, with all who live. Not ``refined``: planned at once."""
        shape = problem.shape
        if (shape.pipelines, shape.stages) != (placement.pipelines, placement.stages):
            raise ConfigError(
                f"a step of {shape.pipelines} x {shape.stages} workers: expected "
                f"{placement.pipelines} x {placement.stages}, as they are placed"
            )
        self._placement, self._problem = placement, problem
        self._plan = best_plan if refined else first_plan
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, machine: str) -> MachineLoss:
        if machine not in self._placement.by_machine:
            known = ", ".join(self._placement.by_machine)
            raise ConfigError(f"machine {machine!r}: expected one of {known}")
        stages, where = self._problem.shape.stages, self._placement.where
        live = [member for member in self._problem.members if member.speed > 0]
        gone = [member for member in live if where.get(member.worker) == machine]
        left = [member for member in live if where.get(member.worker) != machine]
        again = self._started_again(machine, [member.worker for member in gone])
        holders = Counter(member.stage for member in left)
        lost = tuple(stage for stage in range(stages) if not holders[stage])
        refilled = [*left, *(Member(worker, worker.stage) for worker in again)]
        enough = len(refilled) >= stages
        return MachineLoss(
            machine=machine,
            workers=tuple(sorted(member.worker for member in gone)),
            holders=tuple(holders[stage] for stage in range(stages)),
            lost_stages=lost,
            outcome="goes on" if not lost else "rebuilds" if enough else "stops",
            period_s=self._period_s(left),
            started_again=again,
            refilled_period_s=self._period_s(refilled) if again else None,
        )

    def _started_again(self, machine: str, gone: Collection[WorkerId]) -> tuple[WorkerId, ...]:
        others = [each for each in self._placement.machines if each.name != machine]
        if not others or not any(self._placement.spare[each.name] for each in others):
            return ()
        starts = refill(self._placement, others, may_move=False).starts
        return tuple(sorted(starts.keys() & set(gone)))

    def _period_s(self, members: Iterable[Member]) -> float | None:
        covered = _with_every_stage(list(members), self._problem.shape.stages)
        if covered is None:
            return None
        alike = not self._problem.links.unusual and not self._problem.memory.limits
        who = covered if not alike else sorted((m.stage or 0, m.speed) for m in covered)
        key = tuple(who)
        if key not in self._known:
            problem = replace(self._problem, members=tuple(covered))
            self._known[key] = self._plan(problem).period_s
        return self._known[key]


def _with_every_stage(members: list[Member], stages: int) -> list[Member] | None:
    """Once a stage that nobody holds is rebuilt, by one of the stage with the most holders."""
    if len(members) < stages:
        return None
    found = list(members)
    for stage in range(stages):
        holders = Counter(member.stage for member in found)
        if holders[stage]:
            continue
        most = max(range(stages), key=lambda each: holders[each])
        index = max(i for i, member in enumerate(found) if member.stage == most)
        found[index] = found[index]._replace(stage=stage)
    return found
