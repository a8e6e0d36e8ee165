"""From a problem to a plan: roles, then routes, then an order. One at once, better ones later.

Effort is counted in trials, so a question has the same answer on every machine.
"""

from collections.abc import Callable, Iterator
from functools import partial

from holdfast.planner.assign.roles import assign, unmoved
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.order.fusing import fused_where_free
from holdfast.planner.order.order import Order, OrderSearch
from holdfast.planner.order.period import steady_period
from holdfast.planner.plan import Plan
from holdfast.planner.problem import Problem
from holdfast.planner.prove.bounds import Bound, bounds, largest, shared_work_s
from holdfast.planner.reason import reason
from holdfast.planner.route.crossing import home_routes, joined_routes, two_stages
from holdfast.planner.route.routing import Routing, relabelled

# Local search of one routing: trials, and operations laid out in all of them together.
NUM_TRIALS = 300
NUM_TRIED_OPS = 12_000_000
# Relabelled pipelines are small: they are searched from several seeds.
_NUM_SEEDS = 4
# Routes over the whole cluster are looked at up to this size (32 x 16 workers, 64 micro-batches).
_MOST_CROSSING_OPS = 120_000
# Where between what all workers together could do and the period without helpers to aim at.
_HELP_AIMS = (0.2, 0.4, 0.6, 0.8)
# From here on memory is tight: the plan is this much above the bound, the wait at the ramp this
# share of a step.
_TIGHT, _RAMP_SHARE = 1.02, 0.02
# Near enough to the bound to stop looking.
_GOOD_ENOUGH = 1.0005


def first_plan(problem: Problem, *, plain: bool | None = None) -> Plan:
    """A good plan at once: relabelled pipelines, the best order of the portfolio."""
    return _Planning(problem, plain).first()


def refine(
    problem: Problem,
    *,
    plain: bool | None = None,
    between: Callable[[], None] = lambda: None,
) -> Iterator[Plan]:
    """Better and better plans, the first at once. Stop asking at any time.

    ``between`` is called before each trial, many times a plan; what it raises ends the search.
    """
    planning = _Planning(problem, plain, between)
    best = planning.first()
    yield best
    for candidate in planning.more():
        if _pays(candidate, best):
            best = candidate
            yield best
    yield planning.tidied(best)


def best_plan(problem: Problem, *, plain: bool | None = None) -> Plan:
    """The last that ``refine`` has to offer."""
    *_, last = refine(problem, plain=plain)
    return last


def _pays(candidate: Plan, best: Plan) -> bool:
    """Shorter, and by more than the copies for second stages cost over the horizon."""
    problem = candidate.fleet.problem
    gained_s = (best.period_s - candidate.period_s) * problem.horizon_steps
    more_copies = len(candidate.second_stages) - len(best.second_stages)
    shorter = candidate.period_s < best.period_s * (1 - 1e-9)
    return shorter and gained_s > problem.move_s * more_copies


def _period(search: OrderSearch) -> int:
    assert search.best is not None
    return search.best.period


class _Planning:
    def __init__(
        self,
        problem: Problem,
        plain: bool | None,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._problem, self._plain, self._between = problem, plain, between
        self._roles = assign(problem) if problem.may_move else unmoved(problem)
        self._fleet = Fleet.of(problem, self._roles.stage_of)
        found = bounds(self._fleet)
        self._bound, self._work_s = largest(found), found[0].period_s
        self._searches: dict[str, tuple[Routing, OrderSearch]] = {}

    def first(self) -> Plan:
        """Relabelled pipelines; if memory is tight other routes too, which leave it more room."""
        best = self._first(relabelled(self._fleet))
        if self._small and best.period_s > self._bound.period_s * _TIGHT and self._ramp_counts:
            return min([best, *self._crossing()], key=lambda plan: plan.period_s)
        return best

    def _crossing(self) -> list[Plan]:
        return [self._first(make(self._fleet)) for make in (home_routes, joined_routes)]

    def _first(self, routing: Routing) -> Plan:
        search = self._search(routing, self._bound)
        self._searches[routing.name] = routing, search
        return self._plan(routing, search.best, self._bound)

    def more(self) -> Iterator[Plan]:
        routing, search = self._searches.pop("relabelled pipelines")
        for seed in range(_NUM_SEEDS):
            yield self._improved(routing, search, self._bound, seed)
        if not self._small or self._problem.shape.pipelines == 1:
            return
        if not search.done:
            if not self._searches:
                yield from self._crossing()
            routing, search = min(self._searches.values(), key=lambda entry: _period(entry[1]))
            yield self._improved(routing, search, self._bound)
        if self._problem.two_stages and self._problem.may_move:
            yield from self._with_helpers()

    @property
    def _small(self) -> bool:
        shape = self._problem.shape
        return 3 * shape.microbatches * shape.stages <= _MOST_CROSSING_OPS

    @property
    def _ramp_counts(self) -> bool:
        """Whether the wait for the first gradient at stage 0 is long for the memory there is."""
        times, memory = self._fleet.times, self._problem.memory
        forward_s = float(times.kinds[0][0])
        both_s = float((times.kinds[0] + times.soonest)[1:].sum())
        first_s = forward_s + both_s + 2 * float(times.hop.sum())
        admitted = memory.limit / memory.held_at(0)
        return first_s - admitted * forward_s > _RAMP_SHARE * self._bound.period_s

    def _with_helpers(self) -> Iterator[Plan]:
        """Helpers for several aims; the best order of these is improved."""
        least_s = shared_work_s(self._fleet)
        limit = Bound(least_s, "work", "the work of all workers together")
        found = []
        for aim in _HELP_AIMS:
            routing = two_stages(self._fleet, least_s + aim * (self._bound.period_s - least_s))
            if routing is not None:
                search = self._search(routing, limit)
                if search.best is not None:
                    found.append((search.best.period, routing, search))
        if found:
            _, routing, search = min(found, key=lambda entry: entry[0])
            yield self._improved(routing, search, limit)

    def tidied(self, plan: Plan) -> Plan:
        order = fused_where_free(
            plan.routing, plan.order, plan.fleet, plain=self._plain, between=self._between
        )
        return plan if order is plan.order else self._plan(plan.routing, order, plan.bound)

    def _search(self, routing: Routing, limit: Bound) -> OrderSearch:
        # A bound leaves out the one message that holders of equal work wait for.
        message_s = self._problem.costs.link_s
        target = int(self._fleet.units.ticks(limit.period_s * _GOOD_ENOUGH + message_s))
        hosts = routing.template.hosts
        search = OrderSearch(
            routing.template,
            target,
            plain=self._plain,
            between=self._between,
            measure=partial(self._measured, routing) if hosts.shared else None,
        )
        search.first()
        return search

    def _measured(self, routing: Routing, order: Order) -> float:
        return steady_period(routing, order, self._fleet)

    def _improved(self, routing: Routing, search: OrderSearch, limit: Bound, seed: int = 0) -> Plan:
        num_ops = 3 * routing.template.route.size
        search.improve(max(10, min(NUM_TRIALS, NUM_TRIED_OPS // num_ops)), seed)
        return self._plan(routing, search.best, limit)

    def _plan(self, routing: Routing, order: Order | None, limit: Bound) -> Plan:
        assert order is not None, "memory admits a micro-batch a stage, so there is an order"
        period_s = steady_period(routing, order, self._fleet) * self._fleet.units.tick_s
        why = reason(self._fleet, self._roles, routing, period_s, limit, self._work_s)
        return Plan(self._fleet, self._roles.moves, routing, order, period_s, limit, why)
