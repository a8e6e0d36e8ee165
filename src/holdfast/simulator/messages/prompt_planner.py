"""The real planner without a thread: what it would find later is there after a virtual while."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from holdfast.control.plans import SomePlan
from holdfast.planner.plan import Plan
from holdfast.planner.planning import first_plan, refine
from holdfast.planner.problem import Problem
from holdfast.planner.service import question
from holdfast.schedule.operation import Op, operation
from holdfast.schedule.schedule import Schedule
from holdfast.simulator.messages.virtual_time import VirtualTime

_MOST_KEPT = 4096
_known: dict[Hashable, Plan] = {}  # a question has one answer, whoever asks
_refined: dict[Hashable, tuple[tuple[int, Plan], ...]] = {}


def planned(problem: Problem) -> Plan:
    key = question(problem)
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST_KEPT:
            _known.clear()
        found = _known[key] = first_plan(problem)
    return replace(found, fleet=replace(found.fleet, problem=problem))


@dataclass(frozen=True)
class TurnedPlan:
    """Other lanes for the same members, said to be better: micro-batches change places."""

    plan: Plan
    turn: int
    reason: str = "micro-batches change places"

    @property
    def period_s(self) -> float:
        return self.plan.period_s / 2

    def schedule(self) -> Schedule:
        found = self.plan.schedule()
        number = found.shape.microbatches

        def turned(op: Op) -> Op:
            if op.microbatch is None:
                return op
            return operation(op.stage, op.kind, (op.microbatch + self.turn) % number)

        lanes = {worker: tuple(turned(op) for op in lane) for worker, lane in found.lanes.items()}
        return Schedule(found.shape, lanes)


class PromptPlanner:
    """``refined_s``: after so long something better is found; below 0: never."""

    def __init__(self, time: VirtualTime, refined_s: float = -1.0) -> None:
        self._time, self._refined_s = time, refined_s
        self._due: tuple[float, Problem] | None = None
        self._turn = 0

    def plan_now(self, problem: Problem) -> Plan:
        self._due = None
        return planned(problem)

    def refine_in_background(self, problem: Problem) -> None:
        if self._refined_s >= 0:
            self._due = self._time.now_s + self._refined_s, problem

    def better(self) -> SomePlan | None:
        if self._due is None or self._time.now_s < self._due[0]:
            return None
        problem, self._due = self._due[1], None
        self._turn += 1
        return TurnedPlan(planned(problem), self._turn)

    def prepare(self, problem: Problem) -> None:
        """Nothing: a plan takes no virtual time."""

    def stop(self, timeout_s: float) -> None:
        """There is no thread."""


class SearchingPlanner:
    """Finds what the real one finds, after as many virtual seconds as its trials take."""

    def __init__(self, time: VirtualTime, trial_s: float) -> None:
        self._time, self._trial_s = time, trial_s
        self._asked: tuple[Hashable, float] | None = None  # what is refined, since when
        self._due: list[tuple[float, Plan]] = []
        self._given_s = 0.0  # period of the plan that was given out last

    def plan_now(self, problem: Problem) -> Plan:
        if self._asked is not None and self._asked[0] != question(problem):
            self._asked, self._due = None, []
        found = planned(problem)
        self._given_s = found.period_s
        return found

    def refine_in_background(self, problem: Problem) -> None:
        key, now_s = question(problem), self._time.now_s
        if self._asked is None or self._asked[0] != key:
            self._asked = key, now_s
            self._due = [(now_s + n * self._trial_s, plan) for n, plan in refined(problem)]

    def better(self) -> SomePlan | None:
        """The newest that is ready by now, if it is better than the one given out last."""
        ready = [plan for at_s, plan in self._due if at_s <= self._time.now_s]
        self._due = self._due[len(ready) :]
        if not ready or ready[-1].period_s > self._given_s:
            return None
        self._given_s = ready[-1].period_s
        return ready[-1]

    def prepare(self, problem: Problem) -> None:
        """Nothing: the first plan takes no virtual time."""

    def stop(self, timeout_s: float) -> None:
        """There is no thread."""


def refined(problem: Problem) -> tuple[tuple[int, Plan], ...]:
    """All that the search finds, each with the trials that it has taken until then."""
    key, trials = question(problem), 0

    def count() -> None:
        nonlocal trials
        trials += 1

    if key not in _refined:
        if len(_refined) >= _MOST_KEPT:
            _refined.clear()
        _refined[key] = tuple((trials, plan) for plan in refine(problem, between=count))
    return _refined[key]
