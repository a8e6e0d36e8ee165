"""Placed tasks as a graph of operations that the kernel can put in order: arrays only."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from holdfast.arrays import Flags, Floats, Ints
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.graph import KINDS, Hosts, OperationGraph
from holdfast.planner.remainder.lineage import Holders, Todo
from holdfast.schedule.operation import Kind, What

_F, _B, _W, _BW = (KINDS.index(kind) for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
_QUEUES = np.array([k.FORWARD, k.BACKWARD, k.WEIGHT, k.BACKWARD])  # by kind
_NONE = -1


@dataclass(frozen=True)
class TaskGraph:
    """``worker``: of each task of ``todo``, as ``fleet`` numbers them."""

    fleet: Fleet
    holders: Holders
    todo: Todo
    worker: Ints

    def made(self) -> OperationGraph:
        hosts, kind, stage = self._hosts(), self.kind, self._stage
        ops = np.full((k.NUM_OP_ROWS, len(kind)), _NONE, np.int64)
        ops[k.HOST] = self._host
        ops[k.QUEUE] = _QUEUES[kind]
        ops[k.DURATION] = hosts.durations[kind, self._host]
        ops[k.OWN_NEXT] = own = self._own_next()
        ops[k.TAKES] = np.where(kind == _F, hosts.held[self._host], 0)
        ops[k.GIVES] = self._gives(hosts, own)
        ops[k.NEXT] = following = self._neighbours()
        waits_for = np.bincount(own[own >= 0], minlength=len(kind))
        ops[k.WAITS_FOR] = waits_for + np.bincount(following[following >= 0], minlength=len(kind))
        sends = np.flatnonzero(following >= 0)
        boundary = np.where(kind == _F, stage, stage - 1)[sends]
        ends = self.op_worker[sends], self.op_worker[following[sends]]
        ops[k.DELAY] = 0
        ops[k.DELAY, sends] = self.fleet.units.ticks(self._hops_s(boundary, *ends))
        ops[k.READY] = self.fleet.units.ticks(self._sent_again_s())
        return OperationGraph(hosts, ops, kind, stage, self.microbatch, len(kind))

    # --- the operations ---

    @cached_property
    def _rows(self) -> tuple[Ints, Ints]:
        """Task and kind of each operation, task by task, in the order in which they run."""
        table, costs = self.todo.table, self.fleet.problem.costs
        split_s = np.array(costs.input_s) + np.array(costs.weight_s)
        fuses: Flags = (table.bits >= 6) & (np.array(costs.fused_s) < split_s)[table.stage]
        has = np.zeros((len(table.bits), len(KINDS)), np.bool_)
        has[:, _F] = table.bits & 1 > 0
        has[:, _B] = (table.bits & 2 > 0) & ~fuses
        has[:, _W] = (table.bits & 4 > 0) & ~fuses
        has[:, _BW] = fuses
        tasks, kinds = np.nonzero(has)
        return tasks, kinds

    @property
    def kind(self) -> Ints:
        return self._rows[1]

    @cached_property
    def _stage(self) -> Ints:
        return self.todo.table.stage[self._rows[0]]

    @cached_property
    def microbatch(self) -> Ints:
        return self.todo.table.microbatch[self._rows[0]]

    @cached_property
    def op_worker(self) -> Ints:
        return self.worker[self._rows[0]]

    @cached_property
    def _number(self) -> Ints:
        """[kind, stage, micro-batch]: which operation that is."""
        shape = self.fleet.problem.shape
        number = np.full((len(KINDS), shape.stages, shape.microbatches), _NONE, np.int64)
        number[self.kind, self._stage, self.microbatch] = np.arange(len(self.kind))
        return number

    def _own_next(self) -> Ints:
        """What follows in the same task; a task for others is apart from it."""
        tasks = self._rows[0]
        following = np.full(len(tasks), _NONE, np.int64)
        same = np.flatnonzero(tasks[1:] == tasks[:-1])
        following[same] = same + 1
        return following

    def _gives(self, hosts: Hosts, own: Ints) -> Ints:
        held, pending = hosts.held[self._host], hosts.pending[self._host]
        backward = np.where(own >= 0, pending, 0) - held
        forward = np.where(own >= 0, 0, -held)
        return np.select([self.kind == _F, self.kind == _W], [forward, -pending], backward)

    def _neighbours(self) -> Ints:
        """The operation at the next stage (or the one before) that needs this one's result."""
        last, number = self.fleet.problem.shape.last_stage, self._number
        stage, microbatch, kind = self._stage, self.microbatch, self.kind
        found = np.full(len(kind), _NONE, np.int64)
        up = np.flatnonzero((kind == _F) & (stage < last))
        found[up] = number[_F, stage[up] + 1, microbatch[up]]
        down = np.flatnonzero(((kind == _B) | (kind == _BW)) & (stage > 0))
        before = stage[down] - 1, microbatch[down]
        found[down] = np.maximum(number[(_B, *before)], number[(_BW, *before)])  # one at most
        return found

    def in_order(self, order: Ints) -> tuple[Ints, Ints]:
        """The worker of each operation, and its columns as in a table of lanes."""
        columns = np.stack([self.kind, self._stage, self.microbatch])
        return self.op_worker[order], columns[:, order]

    # --- where they run, and how far that is ---

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Worker and stage of each host."""
        pairs = [
            (number, stage)
            for number, worker in enumerate(self.fleet.workers)
            for stage in sorted(self.holders[worker])
        ]
        workers, stages = np.array(pairs, np.int64).T
        return workers, stages

    @cached_property
    def _host(self) -> Ints:
        workers, stages = self._pairs
        host = np.full((len(self.fleet.workers), self.fleet.problem.shape.stages), _NONE, np.int64)
        host[workers, stages] = np.arange(len(workers))
        return host[self.op_worker, self._stage]

    def _hosts(self) -> Hosts:
        workers, stages = self._pairs
        memory = self.fleet.problem.memory
        used = [
            memory.held_at(stage) * forwarded + memory.pending_at(stage) * graded
            for stage, forwarded, graded in zip(
                stages.tolist(),
                self.todo.forwarded[workers, stages].tolist(),
                self.todo.graded[workers, stages].tolist(),
                strict=True,
            )
        ]
        # What is held already leaves so much less; when it goes there is room again.
        return self.fleet.hosts(
            stage=stages,
            worker=np.unique(workers, return_inverse=True)[1].astype(np.int64),
            speed=self.fleet.speed[workers],
            limit=self.fleet.limit[workers] - np.array(used),
        )

    def _hops_s(self, boundary: Ints, one: Ints, other: Ints) -> Floats:
        problem, workers = self.fleet.problem, self.fleet.workers
        usual_s = self.fleet.times.hop
        hops_s = np.where(one == other, 0.0, usual_s[boundary])
        for at in self._over_unusual_links(one, other).tolist():
            between = workers[one[at]], workers[other[at]]
            hops_s[at] = problem.hop_s(int(boundary[at]), *between)
        return hops_s

    def _over_unusual_links(self, one: Ints, other: Ints) -> Ints:
        number = {worker: at for at, worker in enumerate(self.fleet.workers)}
        width = len(number)
        links = [
            (number[a], number[b])
            for a, b in self.fleet.problem.links.unusual
            if a in number and b in number
        ]
        codes = [a * width + b for a, b in links] + [b * width + a for a, b in links]
        return (
            np.flatnonzero(np.isin(one * width + other, codes)) if links else np.zeros(0, np.int64)
        )

    def _sent_again_s(self) -> Floats:
        """When a tensor that somebody has kept is there, for operations that need one."""
        found = np.zeros(len(self.kind))
        number = {worker: at for at, worker in enumerate(self.fleet.workers)}
        ends: list[tuple[int, int, int]] = []  # operation, boundary, sender
        for (what, stage, microbatch), sender in self.todo.sources.items():
            if what is What.ACTIVATION:
                op, boundary = self._number[_F, stage + 1, microbatch], stage
            else:
                op, boundary = self._number[[_B, _BW], stage - 1, microbatch].max(), stage - 1
            if op >= 0:
                ends.append((int(op), boundary, number[sender]))
        if ends:
            ops, boundaries, senders = np.array(ends, np.int64).T
            found[ops] = self._hops_s(boundaries, senders, self.op_worker[ops])
        return found
