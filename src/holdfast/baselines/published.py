"""Published ways to train on with fewer workers, modelled on the planner's own simulator.

Steady periods only: restarts, copies and reconfiguration cost nothing here, which favours those
that need them most. Oobleck and Bamboo are crude models. Unusual links are not known here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import pairwise
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from holdfast.cluster import WorkerId
from holdfast.planner.assign.roles import Roles, assign, unmoved
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.list_schedule import Board
from holdfast.planner.order.order import Order, OrderSearch
from holdfast.planner.order.period import steady_period
from holdfast.planner.problem import LinkCosts, Member, Memory, Problem
from holdfast.planner.prove.bounds import bound
from holdfast.planner.route.crossing import home_routes, round_robin
from holdfast.planner.route.routing import Routing
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape

# Oobleck cuts layers anew, so stages must be made of some; and shorter pipelines need the room.
_LAYERS_A_STAGE, _LEAST_DEPTH = 4, 0.75


class PublishedPolicy(NamedTuple):
    """``period_s``: inf if it cannot run, as no pipeline is left."""

    name: str
    period_s: Callable[[Problem], float]
    note: str


@dataclass(frozen=True)
class _Line:
    """A pipeline by itself, an entry a stage. Its workers have 1F1B's memory."""

    costs: Costs
    speeds: tuple[float, ...]
    boundary_bytes: tuple[int, ...]
    bytes_s: float

    def slowest_s(self) -> float:
        """What a micro-batch more costs."""
        rows = zip(self.costs.forward_s, self.costs.fused_s, self.speeds, strict=True)
        return max((forward_s + fused_s) / speed for forward_s, fused_s, speed in rows)

    def redundant_s(self) -> float:
        """The same if every worker also runs the forwards of the next stage."""
        forward_s = self.costs.forward_s
        following_s = (*forward_s[1:], forward_s[0])
        rows = zip(forward_s, self.costs.fused_s, following_s, self.speeds, strict=True)
        return max(sum(times_s) / speed for *times_s, speed in rows)

    def period_s(self, num_microbatches: int) -> float:
        """A step of 1F1B with a global optimizer."""
        depth = len(self.speeds)
        members = tuple(Member(WorkerId(0, s), s, self.speeds[s]) for s in range(depth))
        in_flight = {member.worker: float(depth - s) for s, member in enumerate(members)}
        problem = Problem(
            shape=Shape(1, depth, num_microbatches),
            costs=self.costs,
            memory=Memory(limit=float(depth), limits=in_flight),
            members=members,
            links=LinkCosts(bytes_s=self.bytes_s, boundary_bytes=self.boundary_bytes),
            staggered=False,
        )
        return _fused_s(problem)


def fault_free_s(problem: Problem) -> float:
    """1F1B with every worker alive and well."""
    shape = problem.shape
    line = _line(problem, [range(stage, stage + 1) for stage in range(shape.stages)])
    return _together_s(problem, [line] * shape.pipelines, shape.microbatches_per_pipeline)


def rerouted_s(problem: Problem) -> float:
    """Micro-batches of the dead go to their peers in turn; 1F1B's rule, a global optimizer."""
    return _fused_s(replace(problem, staggered=False))


def split_s(problem: Problem) -> float:
    return _routed_s(replace(problem, staggered=False), unmoved(problem))


def staggered_s(problem: Problem) -> float:
    return _routed_s(replace(problem, staggered=True), unmoved(problem))


def normalised_s(problem: Problem) -> float:
    return _routed_s(replace(problem, staggered=True), assign(problem))


def dropped_s(problem: Problem) -> float:
    """Pipelines that lost a worker stand idle, the others share their micro-batches evenly."""
    lines = [_patched(problem, speeds) for speeds in _pipelines(problem) if all(speeds)]
    return _together_s(problem, lines, _share(problem, len(lines)))


def bamboo_s(problem: Problem) -> float:
    """Redundant forwards, free as far as they fit in bubbles; the better of two answers to a death.

    Crude. A dead worker's neighbour runs both stages, as one longer stage, unless two neighbours
    died; or the pipeline is dropped.
    """
    pipelines = _pipelines(problem)
    answers = ([all(p) for p in pipelines], [_is_patchable(p) for p in pipelines])
    found_s = []
    for kept in answers:
        lines = [_patched(problem, p) for p, keep in zip(pipelines, kept, strict=True) if keep]
        num = _share(problem, len(lines))
        redundant_s = max((num * line.redundant_s() for line in lines), default=inf)
        found_s.append(max(_together_s(problem, lines, num), redundant_s))
    return min(found_s)


def oobleck_s(problem: Problem) -> float:
    """A pipeline that lost workers is cut anew over the rest; too short ones repair others.

    Crude. A stage is four equal layers, a pipeline has at least 3/4 of the stages. Micro-batches
    go by what a pipeline can do, and the new cut costs nothing: real ones are slower.
    """
    lines = [_cut_anew(problem, speeds) for speeds in _repaired(problem)]
    if not lines:
        return inf
    counts = _dealt(problem, lines)
    used = dict.fromkeys((line, n) for line, n in zip(lines, counts, strict=True) if n)
    return max(line.period_s(n) for line, n in used) + _meeting_s(problem, len(lines))


POLICIES = (
    PublishedPolicy("re-routing only", rerouted_s, "round-robin, fused backward, global optimizer"),
    PublishedPolicy("+ split backward", split_s, "global optimizer"),
    PublishedPolicy("+ staggered optimizer", staggered_s, "ReCycle"),
    PublishedPolicy("+ normalised", normalised_s, "ReCycle, with stages given anew"),
    PublishedPolicy(
        "dropping damaged pipelines", dropped_s, "checkpoint and drop, 1F1B, its memory"
    ),
    PublishedPolicy(
        "Oobleck-like", oobleck_s, "crude model: pipelines cut anew for free, 1F1B, its memory"
    ),
    PublishedPolicy("Bamboo-like", bamboo_s, "crude model: redundant forwards, 1F1B, its memory"),
)


def _fused_s(problem: Problem) -> float:
    """Backward first, never split: with 1F1B's memory that is 1F1B."""
    fleet = Fleet.of(problem, unmoved(problem).stage_of)
    routing = round_robin(fleet)
    template = routing.template
    board = Board(template.graph(np.ones(template.route.shape, np.bool_)))
    stage = template.hosts.stage
    policy = np.repeat([[k.BACKWARD_FIRST], [k.NEVER], [0], [0]], len(stage), axis=1)
    layout = board.lay_out(np.zeros_like(stage), policy)
    assert layout is not None, "memory admits a micro-batch a stage, so there is an order"
    whole = int((layout.last_end + template.tails[stage]).max() - layout.first_start.min())
    nothing = np.zeros((2, template.num_stages), np.int64)
    order = Order(whole, nothing[0], policy, nothing, layout, board)
    return _seconds(routing, order, fleet)


def _routed_s(problem: Problem, roles: Roles) -> float:
    """The whole portfolio of orders, for the better of two ways to deal out micro-batches."""
    fleet = Fleet.of(problem, roles.stage_of)
    target = int(fleet.units.ticks(bound(fleet).period_s))
    found_s = []
    for routing in (round_robin(fleet), home_routes(fleet)):
        search = OrderSearch(routing.template, target)
        search.first()
        found_s.append(_seconds(routing, search.improve(0), fleet))
    return min(found_s)


def _seconds(routing: Routing, order: Order, fleet: Fleet) -> float:
    return steady_period(routing, order, fleet) * fleet.units.tick_s


def _pipelines(problem: Problem) -> list[tuple[float, ...]]:
    """The speed of each stage's holder, 0 if there is none."""
    stage_of, shape = unmoved(problem).stage_of, problem.shape
    speeds = [[0.0] * shape.stages for _ in range(shape.pipelines)]
    for member in problem.members:
        pipeline, stage = member.worker.pipeline, stage_of.get(member.worker)
        if stage is not None and pipeline < shape.pipelines:
            speeds[pipeline][stage] = max(speeds[pipeline][stage], member.speed)
    return [tuple(of_pipeline) for of_pipeline in speeds]


def _share(problem: Problem, num_pipelines: int) -> int:
    return ceil(problem.shape.microbatches / max(num_pipelines, 1))


def _together_s(problem: Problem, lines: Sequence[_Line], num_microbatches: int) -> float:
    """Pipelines that all run as many; inf if there is none."""
    longest_s = max((line.period_s(num_microbatches) for line in dict.fromkeys(lines)), default=inf)
    return longest_s + _meeting_s(problem, len(lines))


def _meeting_s(problem: Problem, num_pipelines: int) -> float:
    """A message to the peers before the next step, as in the simulator."""
    return problem.costs.link_s if num_pipelines > 1 else 0.0


def _line(
    problem: Problem, parts: Sequence[range], speeds: Sequence[float] = (), layers: int = 1
) -> _Line:
    """``parts``: the layers of each of its workers; ``layers``: how many a stage has."""
    costs, links = problem.costs, problem.links

    def cut(row: Sequence[float]) -> tuple[float, ...]:
        return tuple(sum(row[at // layers] / layers for at in part) for part in parts)

    boundaries = (links.bytes_at((part.stop - 1) // layers) for part in parts[:-1])
    return _Line(
        costs=Costs(
            forward_s=cut(costs.forward_s),
            input_s=cut(costs.input_s),
            weight_s=cut(costs.weight_s),
            fused_s=cut(costs.fused_s),
            step_s=cut(costs.step_s),
            link_s=costs.link_s,
        ),
        speeds=tuple(speeds) or (1.0,) * len(parts),
        boundary_bytes=tuple(boundaries),
        bytes_s=links.bytes_s,
    )


def _is_patchable(speeds: Sequence[float]) -> bool:
    return any(speeds) and all(one or other for one, other in pairwise(speeds))


def _patched(problem: Problem, speeds: Sequence[float]) -> _Line:
    """A dead worker's stage is run by the one before it; stage 0 by the one after."""
    live = [stage for stage, speed in enumerate(speeds) if speed]
    firsts = [0, *live[1:], len(speeds)]
    parts = [range(one, other) for one, other in pairwise(firsts)]
    return _line(problem, parts, [speeds[stage] for stage in live])


def _repaired(problem: Problem) -> list[tuple[float, ...]]:
    """Speeds of the workers of each pipeline, after the too short ones have been dissolved."""
    stages = problem.shape.stages
    live = [tuple(speed for speed in speeds if speed) for speeds in _pipelines(problem)]
    live.sort(key=len, reverse=True)
    while live and len(live[-1]) < ceil(_LEAST_DEPTH * stages):
        spare = live.pop()
        for at in reversed(range(len(live))):
            room = stages - len(live[at])
            live[at], spare = live[at] + spare[:room], spare[room:]
    return live


def _cut_anew(problem: Problem, speeds: Sequence[float]) -> _Line:
    least, more = divmod(problem.shape.stages * _LAYERS_A_STAGE, len(speeds))
    parts, first = [], 0
    for at in range(len(speeds)):
        parts.append(range(first, first + least + (at < more)))
        first = parts[-1].stop
    return _line(problem, parts, speeds, layers=_LAYERS_A_STAGE)


def _dealt(problem: Problem, lines: Sequence[_Line]) -> list[int]:
    """One micro-batch after the other to the pipeline that would be done with it first.

    Times are exact for an equal share; from there on each goes by its slowest stage.
    """
    equal = problem.shape.microbatches_per_pipeline
    kinds = dict.fromkeys(lines)
    each_s = {line: line.slowest_s() for line in kinds}
    first_s = {line: line.period_s(equal) - (equal - 1) * each_s[line] for line in kinds}
    queue = [(first_s[line], at) for at, line in enumerate(lines)]
    heapify(queue)
    counts = [0] * len(lines)
    for _ in range(problem.shape.microbatches):
        end_s, at = queue[0]
        counts[at] += 1
        heapreplace(queue, (end_s + each_s[lines[at]], at))
    return counts
