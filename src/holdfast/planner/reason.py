"""A plan's reason in words: what is missing, what is done about it, and what limits it now."""

from holdfast.planner.assign.roles import Roles
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.prove.bounds import Bound
from holdfast.planner.route.routing import Routing


def reason(
    fleet: Fleet, roles: Roles, routing: Routing, period_s: float, limit: Bound, work_s: float
) -> str:
    """``work_s``: the period if micro-batches could be cut."""
    parts = [_who(fleet), roles.reason, _routes(fleet, routing), _limited(period_s, limit, work_s)]
    return "; ".join(part for part in parts if part)


def _who(fleet: Fleet) -> str:
    shape = fleet.problem.shape
    missing = shape.pipelines * shape.stages - len(fleet.workers)
    slow = int((fleet.speed < 1).sum())
    of_all = f"of {shape.pipelines * shape.stages} workers"
    lack = f"{missing} {of_all} {'is' if missing == 1 else 'are'} missing" if missing > 0 else ""
    late = f"{slow} {'runs' if slow == 1 else 'run'} below normal speed" if slow else ""
    return " and ".join(filter(None, (lack, late))) or "all workers are there, at normal speed"


def _routes(fleet: Fleet, routing: Routing) -> str:
    hosts = routing.template.hosts
    num_helpers = len(hosts.worker) - hosts.num_workers
    if num_helpers:
        return f"{num_helpers} workers hold a second stage to help there"
    if routing.name == "joined routes":
        return "micro-batches change pipelines only between stages with unlike numbers of holders"
    if routing.name == "home routes":
        return "micro-batches keep to their pipelines, what is over goes to peers by their speed"
    num_pipelines = sum(len(group.members) for group in routing.groups)
    spare = len(fleet.workers) - num_pipelines * fleet.problem.shape.stages
    idle = f", {_count(spare, 'hot spare')}" if spare else ""
    return f"workers of equal speed rank form {_count(num_pipelines, 'pipeline')}{idle}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _limited(period_s: float, limit: Bound, work_s: float) -> str:
    text = f"{period_s / limit.period_s:.3f} x the bound, which is {limit.reason}"
    if limit.limit != "granularity":
        return text
    gain = 100 * (limit.period_s / work_s - 1)
    return f"{text}; more and smaller micro-batches could gain up to {gain:.1f} %"
