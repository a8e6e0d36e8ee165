"""How short could the steady period of a routing be at all? An exact solver's answer.

For small cases, never on the way of a recovery: it may take minutes. Keeps who runs what, asks only
for the order, and knows nothing of how plans are made. Loads OR-Tools when it is asked something.
"""

from dataclasses import dataclass
from math import ceil
from types import ModuleType

from holdfast.errors import Argument, ConfigError
from holdfast.planner.problem import Problem
from holdfast.planner.prove.checker import memory_violations
from holdfast.planner.prove.fixed_routing import NOISE, FixedRouting
from holdfast.planner.prove.solver_model import SolverModel
from holdfast.schedule import validity
from holdfast.schedule.schedule import Schedule

MOST_OPERATIONS = 6000
_CERTIFY = Argument("certify")
_SURELY_CUT_SHORT = 0.8  # of the limit; without a proof the solver goes on to its end
_ROUNDED = 1e-3  # how far rounded costs may keep an optimum from its bound


@dataclass(frozen=True)
class Certificate:
    """``proven``: both are the same; where costs had to be rounded, up to 0.1 %."""

    optimum_s: float | None  # the shortest period found; None: none within the limit
    bound_s: float  # no order of this routing has a shorter one
    proven: bool
    took_s: float


def certify(
    schedule: Schedule,
    problem: Problem,
    *,
    limit_s: float,
    num_threads: int = 2,
    known_period_s: float | None = None,
) -> Certificate:
    """The least steady period over all orders of the operations, each at its worker.

    The period is that of lanes that just run, each with its reductions at the end; a worker with
    two stages makes one after the other. ``known_period_s`` is known to be possible: nothing longer
    is looked for. If nothing as short is there, ``bound_s`` comes out above it.
    """
    _check(schedule, problem, limit_s, num_threads)
    cp = _solver_library()
    routing = FixedRouting(schedule, problem)
    scale = routing.scale()
    search = SolverModel(cp, routing, scale)
    if known_period_s is not None:
        search.limit(ceil(known_period_s / scale.tick * (1 - NOISE)))
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = num_threads
    solver.parameters.random_seed = 1
    status = solver.solve(search.model)
    if status in (cp.FEASIBLE, cp.UNKNOWN) and solver.wall_time < _SURELY_CUT_SHORT * limit_s:
        raise KeyboardInterrupt  # the solver takes Ctrl-C for its own and ends early
    optimum_s = None
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        optimum_s = _confirmed_s(search.found(solver), routing)
    elif status == cp.MODEL_INVALID:
        raise AssertionError(search.model.validate())
    bound = search.most + 1 if status == cp.INFEASIBLE else solver.best_objective_bound
    bound_s = max(scale.bound(bound), routing.work_bound(routing.table))
    agree = 1 + (NOISE if scale.exact else _ROUNDED)
    proven = optimum_s is not None and optimum_s <= bound_s * agree
    return Certificate(optimum_s, bound_s, proven, solver.wall_time)


def _check(schedule: Schedule, problem: Problem, limit_s: float, num_threads: int) -> None:
    num_operations = 3 * problem.shape.stages * problem.shape.microbatches
    if num_operations > MOST_OPERATIONS:
        raise ConfigError(
            _CERTIFY,
            f": the step has {num_operations} operations: expected at most {MOST_OPERATIONS}; "
            "ask for fewer micro-batches, stages or pipelines",
        )
    if not (limit_s > 0 and num_threads >= 1):
        raise ConfigError(
            _CERTIFY, f": limit {limit_s} s, {num_threads} threads: expected both above 0"
        )
    validity.check(schedule)
    problem.costs.require_stages(schedule.shape.stages)
    broken = memory_violations(schedule, problem)
    speeds = {member.worker: member.speed for member in problem.members}
    broken += [f"worker {w} is not alive" for w in schedule.lanes if not speeds.get(w)]
    if broken:
        raise ConfigError(_CERTIFY, f": {broken[0]}; give it a schedule that can run")


def _solver_library() -> ModuleType:
    try:
        from ortools.sat.python import cp_model  # takes 0.6 s: only for those who ask
    except ImportError as error:
        raise ConfigError(_CERTIFY, " needs OR-Tools: pip install 'holdfast[certify]'") from error
    return cp_model


def _confirmed_s(found: Schedule, routing: FixedRouting) -> float | None:
    """The period of the order found, None if ticks hid that it cannot run or breaks memory."""
    if validity.walk(found).missing or memory_violations(found, routing.problem):
        return None
    return routing.period_s(found)
