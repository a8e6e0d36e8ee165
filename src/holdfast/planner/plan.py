"""The answer: who holds what, who runs what in which order, how long a step takes, and why."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from holdfast.arrays import Ints
from holdfast.cluster import WorkerId
from holdfast.planner.assign.roles import Move
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.order.order import Order
from holdfast.planner.prove.bounds import Bound
from holdfast.planner.route.routing import Group, Routing
from holdfast.schedule.lane_table import NO_MICROBATCH, REDUCES, LaneTable
from holdfast.schedule.schedule import Schedule


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
        workers, columns = list[Ints](), list[Ints]()
        for group in self.routing.groups:
            for slot, (kind, stage, row) in self._template_lanes(group).items():
                number = group.numbers[:, row]
                is_run = number >= 0
                workers.append(np.repeat(group.members[:, slot], is_run.sum(1)))
                table = np.broadcast_arrays(kind, stage, number)
                columns.append(np.stack([column[is_run] for column in table]))
        reducing, stages = self._reductions()
        workers.append(reducing)
        columns.append(
            np.stack([np.full_like(stages, REDUCES), stages, np.full_like(stages, NO_MICROBATCH)])
        )
        lanes = LaneTable.of(
            self.fleet.workers, np.concatenate(workers), np.concatenate(columns, axis=1)
        )
        return Schedule(self.fleet.problem.shape, lanes)

    def _reductions(self) -> tuple[Ints, Ints]:
        """Worker and stage of each."""
        if not self.routing.template.hosts.shared:
            return np.arange(len(self.fleet.workers)), self.fleet.stage
        number = {worker: at for at, worker in enumerate(self.fleet.workers)}
        pairs = [(number[worker], stage) for worker, held in self.holders.items() for stage in held]
        workers, stages = np.array(pairs, np.int64).T
        return workers, stages

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
