"""The answer: who holds what, who runs what in which order, how long a step takes, and why."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from holdfast.arrays import Ints
from holdfast.cluster import WorkerId
from holdfast.planner.assign.roles import Move
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.graph import KINDS
from holdfast.planner.order.order import Order
from holdfast.planner.prove.bounds import Bound
from holdfast.planner.route.routing import Group, Routing
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.schedule import Lane, Schedule


@dataclass(frozen=True)
class Plan:
    """Kept as a template and who follows it; lanes are written out on demand."""

    fleet: Fleet  # after the moves
    moves: tuple[Move, ...]
    routing: Routing
    order: Order
    period_s: float
    bound: Bound
    reason: str

    @property
    def holders(self) -> dict[WorkerId, tuple[int, ...]]:
        """The stages of every live worker, hot spares too."""
        held = {
            worker: {int(stage)}
            for worker, stage in zip(self.fleet.workers, self.fleet.stage, strict=True)
        }
        stages = self.routing.template.hosts.stage
        for group in self.routing.groups:
            for copy in group.members:
                for slot, index in enumerate(copy):
                    held[self.fleet.workers[index]].add(int(stages[group.first_host + slot]))
        return {worker: tuple(sorted(of_worker)) for worker, of_worker in held.items()}

    @cached_property
    def second_stages(self) -> tuple[Move, ...]:
        """The copies that workers need who take a second stage, each from a holder of it."""
        hosts = self.routing.template.hosts
        if not hosts.shared:
            return ()
        (group,) = self.routing.groups
        movers = {move.worker for move in self.moves}
        found = []
        for index, stage in zip(group.members[0].tolist(), hosts.stage.tolist(), strict=True):
            own = int(self.fleet.stage[index])
            if stage != own:
                holders = (self.fleet.workers[i] for i in self.fleet.by_stage[stage].tolist())
                source = next(worker for worker in holders if worker not in movers)
                found.append(Move(self.fleet.workers[index], own, stage, source))
        return tuple(found)

    def schedule(self) -> Schedule:
        lanes: dict[WorkerId, Lane] = {}
        holders = self.holders
        ops = self._ops()
        for worker, stages in holders.items():
            reductions = tuple(Op(stage, Kind.R) for stage in stages)
            lanes[worker] = (*ops.get(worker, ()), *reductions)
        return Schedule(self.fleet.problem.shape, lanes)

    def _ops(self) -> dict[WorkerId, Lane]:
        found: dict[WorkerId, Lane] = {}
        for worker, table in self.tables().items():
            found[worker] = tuple(
                Op(stage, KINDS[kind], number) for kind, stage, number in table.T.tolist()
            )
        return found

    def tables(self) -> dict[WorkerId, Ints]:
        """Every lane as a table, without reductions: rows kind, stage, micro-batch."""
        workers, found = self.fleet.workers, {}
        for group in self.routing.groups:
            lanes = self._template_lanes(group)
            for copy, numbers in zip(group.members, group.numbers, strict=True):
                for index, lane in lanes.items():
                    number = numbers[lane[2]]
                    table = np.stack([lane[0], lane[1], number])
                    found[workers[copy[index]]] = table[:, number >= 0]
        return found

    def _template_lanes(self, group: Group) -> dict[int, Ints]:
        """Slot of the worker's first host: [kind, stage, row of the group][operation]."""
        graph, hosts = self.order.board.graph, self.routing.template.hosts
        order = self.order.layout.order
        workers = hosts.worker[graph.ops[k.HOST, order]]
        width = group.members.shape[1]
        lanes, seen = {}, set()
        for slot in range(width):
            worker = int(hosts.worker[group.first_host + slot])
            if worker in seen:
                continue
            seen.add(worker)
            ops = order[workers == worker]
            rows = graph.microbatch[ops] - group.first_row
            lanes[slot] = np.stack([graph.kind[ops], graph.stage[ops], rows])
        return lanes
