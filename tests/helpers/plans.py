"""Planning problems in few words."""

from holdfast.cluster import WorkerId, parse_worker
from holdfast.planner.assign.roles import unmoved
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.problem import LinkCosts, Member, Memory, Problem
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape


def asked(pipelines, stages, share, *, dead=(), slow=None, memory=2.0, link_s=0.0, **more):
    """``share``: micro-batches a pipeline; ``memory``: times the number of stages."""
    speeds = {parse_worker(name): speed for name, speed in (slow or {}).items()}
    gone = set(map(parse_worker, dead))
    everyone = (WorkerId(d, s) for d in range(pipelines) for s in range(stages))
    costs = more.pop("costs", None) or Costs.uniform(stages, link_s=link_s)
    return Problem(
        shape=Shape(pipelines, stages, pipelines * share),
        costs=costs,
        memory=Memory(limit=memory * stages, **more.pop("memory_more", {})),
        members=tuple(Member(w, w.stage, speeds.get(w, 1.0)) for w in everyone if w not in gone),
        links=more.pop("links", LinkCosts()),
        **more,
    )


def fleet_of(problem):
    """As it is, nobody moves."""
    return Fleet.of(problem, unmoved(problem).stage_of)
