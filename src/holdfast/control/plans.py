"""Asks the planner: which question, with which costs, and whether an answer is worth a change."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Protocol

from holdfast.cluster import WorkerId
from holdfast.control.state.current_plan import Steady
from holdfast.control.state.run import Run
from holdfast.control.state.timeouts import NUM_MEASURED
from holdfast.control.state.workers.known_health import HEALTHY
from holdfast.detection.diagnosis import Health
from holdfast.errors import WaitTimeout
from holdfast.planner.assign.roles import Move, assign
from holdfast.planner.assign.swaps import eased, pace
from holdfast.planner.problem import LinkCost, LinkCosts, Member, Memory, Problem
from holdfast.planner.service import Planner
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.timeline import Pace, steady_period_s
from holdfast.schedule.validity import in_flight_peak

_PAYS_BACK = 5  # a change for a better plan must gain so many times what it costs
_SHORTER = 0.99
_STOP_LIMIT_S = 2.0
_LEAST_STEP_S = 1e-6
_ROWS = ("forward_s", "input_s", "weight_s", "fused_s", "step_s")


class SomePlan(Protocol):
    @property
    def period_s(self) -> float: ...

    @property
    def reason(self) -> str: ...

    def schedule(self) -> Schedule: ...


class SomePlanner(Protocol):
    """As ``planner.service.Planner``."""

    def plan_now(self, problem: Problem) -> SomePlan: ...

    def refine_in_background(self, problem: Problem) -> None: ...

    def better(self) -> SomePlan | None: ...

    def prepare(self, problem: Problem) -> None: ...

    def stop(self, timeout_s: float) -> None: ...


class Plans:
    def __init__(self, run: Run, planner: SomePlanner | None) -> None:
        self._run = run
        self._given = planner
        self._costs: Costs | None = None
        self._refining = False
        self._to_refine: Problem | None = None
        self._peak: tuple[Schedule, float] | None = None  # of lanes, and the most in flight there

    @property
    def _planner(self) -> SomePlanner:
        if self._given is None:
            self._given = Planner()
        return self._given

    def close(self) -> None:
        if self._given is not None:
            with suppress(WaitTimeout):  # it compiles for the first time on this machine
                self._given.stop(_STOP_LIMIT_S)

    def problem(
        self,
        stages: Mapping[WorkerId, int | None],
        *,
        may_move: bool = False,
        steps_left: int = 0,
        health: Health | None = None,
    ) -> Problem:
        """``health``: as what was found out is only told (observe), or another than that."""
        run = self._run
        acted_on = HEALTHY if run.config.mitigation.only_observes else run.health.now
        speeds, slow_links = acted_on if health is None else health
        return Problem(
            shape=run.shape,
            costs=self._costs_s(),
            memory=Memory(limit=self._memory()),
            members=tuple(
                Member(worker, stage, speeds.get(worker, 1.0))
                for worker, stage in sorted(stages.items())
            ),
            links=self._links(stages, slow_links),
            staggered=run.settings.staggered,
            may_move=may_move,
            two_stages=False,
            horizon_steps=steps_left,
            move_s=run.times.copy_s if may_move else 0.0,
        )

    def _links(
        self,
        stages: Mapping[WorkerId, int | None],
        slow: Mapping[tuple[WorkerId, WorkerId], float],
    ) -> LinkCosts:
        usual_s = self._costs_s().link_s
        here = {pair: excess_s for pair, excess_s in slow.items() if stages.keys() >= set(pair)}
        return LinkCosts(
            unusual={pair: LinkCost(usual_s + more_s) for pair, more_s in here.items()}
        )

    def steady(self, problem: Problem) -> Steady:
        """For the members as they are, at once."""
        run = self._run
        self.stop_refining()
        found: list[Steady] = []
        if run.stages == run.first_stages:
            first = run.plan.first
            found.append(first._replace(period_s=self.period_s(first.schedule)))
            if not self.is_slow:  # as the user has chosen
                return found[0]
        self._to_refine = problem
        found.insert(0, self.planned(problem))
        if self._run.health.now.links:
            found.append(self.planned(eased(problem)))
        return min(found, key=lambda one: one.period_s)

    def stop_refining(self) -> None:
        """Other lanes come: nothing better is looked for until they run."""
        self._refining, self._to_refine = False, None

    def for_members(self) -> Steady:
        """What is in use, planned anew if the members are others than it was made for."""
        run = self._run
        if run.stages != run.plan.planned_for:
            self.replan()
        return run.plan.steady

    def replan(self) -> Steady:
        run = self._run
        run.plan.replan(self.steady(self.problem(run.stages)), run.stages)
        return run.plan.steady

    def planned(self, problem: Problem) -> Steady:
        """What the planner says at once; nothing is looked for later."""
        return self._as_steady(self._planner.plan_now(problem))

    def healthy_s(self) -> float:
        """Of a step, if nobody were slow."""
        run = self._run
        if run.stages == run.first_stages:
            return self.period_s(run.plan.first.schedule, HEALTHY)
        plan = self._planner.plan_now(self.problem(run.stages, health=HEALTHY))
        return plan.period_s

    @property
    def is_slow(self) -> bool:
        return any(self._run.health.now)

    def look_ahead(self) -> None:
        """When all are at work again: look for a better plan, and plan for the next death."""
        if self._to_refine is not None:
            self._planner.refine_in_background(self._to_refine)
            self._to_refine, self._refining = None, True
        self._planner.prepare(self.problem(self._run.stages))

    def without(self, idle: Collection[WorkerId]) -> Steady:
        """For the same members, but these only reduce: they can go then, and nothing is lost."""
        run = self._run
        self.stop_refining()
        others = {worker: stage for worker, stage in run.stages.items() if worker not in idle}
        steady = self._as_steady(self._planner.plan_now(self.problem(others)))
        idling = {worker: (Op(run.stages[worker], Kind.R),) for worker in idle}
        lanes = {**steady.schedule.lanes, **idling}
        return steady._replace(schedule=Schedule(run.shape, lanes))

    def better(self, steps_left: int) -> Steady | None:
        """A plan that is worth a change for the steps that are left."""
        plan = self._planner.better() if self._refining else None
        if plan is None or self.unknown_unit:
            return None
        better, old_s = self._as_steady(plan), self._run.plan.steady.period_s
        gained_s = (old_s - better.period_s) * steps_left
        pays = (
            better.period_s <= _SHORTER * old_s and gained_s > _PAYS_BACK * self._run.times.stop_s
        )
        return better if pays else None

    def moves(self, steps_left: int) -> tuple[tuple[Move, ...], str]:
        """Who should hold another stage, and why."""
        run = self._run
        if (
            run.times.steps_s
            and steps_left * median(run.times.steps_s) < _PAYS_BACK * run.times.copy_s
        ):
            return (), ""
        roles = assign(self.problem(run.stages, may_move=True, steps_left=steps_left))
        return roles.moves, roles.reason

    def stage_for(self, joiner: WorkerId, taken: Mapping[WorkerId, int], steps_left: int) -> int:
        """``taken``: members and earlier joiners. Where one more worker helps most."""
        counts = [list(taken.values()).count(stage) for stage in range(self._run.shape.stages)]
        if not all(counts):
            return counts.index(0)
        asked: dict[WorkerId, int | None] = {**taken, joiner: None}
        roles = assign(self.problem(asked, may_move=True, steps_left=steps_left))
        if all(move.worker == joiner for move in roles.moves):
            return roles.stage_of[joiner]
        # The best is a chain of moves; one at a time, the stage with the fewest holders gains.
        return counts.index(min(counts))

    def _as_steady(self, plan: SomePlan) -> Steady:
        schedule = plan.schedule()
        period_s = plan.period_s
        if self.is_slow:  # the planner takes links for reductions to be as usual
            period_s = self.period_s(schedule)
        return Steady(schedule, 0.0 if self.unknown_unit else period_s, plan.reason)

    @property
    def operation_s(self) -> float:
        return min(self._costs_s().forward_s)

    def _memory(self) -> float:
        run = self._run
        if run.config.schedule.memory:
            return run.config.schedule.memory
        schedule = run.plan.first.schedule
        if self._peak is None or self._peak[0] is not schedule:
            peaks = map(in_flight_peak, schedule.lanes.values())
            self._peak = schedule, max(run.plan.cut.in_flight, *peaks)
        return self._peak[1]

    def period_s(self, schedule: Schedule, health: Health | None = None) -> float:
        """Of a step in the long run, with those who are slow as slow as they are; 0: unknown."""
        if self.unknown_unit:
            return 0.0
        costs, staggered = self._costs_s(), self._run.settings.staggered
        pace = self._pace(self._run.health.now if health is None else health)
        return steady_period_s(schedule, costs, staggered=staggered, pace=pace)

    def _pace(self, health: Health) -> Pace | None:
        if not any(health):
            return None
        return pace(self.problem(self._run.stages, health=health))

    @property
    def unknown_unit(self) -> bool:
        """Whether costs are not yet seconds."""
        return self._run.plan.cut.guessed and len(self._run.times.steps_s) < NUM_MEASURED

    def _costs_s(self) -> Costs:
        """Guessed costs are made seconds as soon as steps are measured."""
        run = self._run
        if not run.plan.cut.guessed or self.unknown_unit:
            return run.plan.cut.costs
        if self._costs is None:
            schedule, costs = run.plan.first.schedule, run.plan.cut.costs
            step_s = max(median(run.times.steps_s), _LEAST_STEP_S)
            factor = step_s / steady_period_s(schedule, costs, staggered=run.settings.staggered)
            self._costs = scaled(costs, factor)
        return self._costs


def scaled(costs: Costs, factor: float) -> Costs:
    rows = {row: tuple(factor * seconds for seconds in getattr(costs, row)) for row in _ROWS}
    return replace(costs, link_s=factor * costs.link_s, **rows)
