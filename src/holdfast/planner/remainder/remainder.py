"""The remainder of a half-done step: what lineage says is missing, placed and put in order.

Finished work stays where it is; only what nobody has any more is given out anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from holdfast.cluster import WorkerId
from holdfast.errors import MemoryExceeded
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.graph import KINDS, Hosts, OperationGraph
from holdfast.planner.kernel.list_schedule import Board
from holdfast.planner.order.order import portfolio
from holdfast.planner.problem import Problem
from holdfast.planner.remainder.lineage import (
    Facts,
    Holders,
    Kinds,
    MicrobatchProgress,
    Place,
    Task,
    Todo,
    still_to_do,
)
from holdfast.schedule.operation import Fact, Kind, Op, What
from holdfast.schedule.schedule import Lane

_Rows = list[list[int]]
_DIGITS = 12  # sums of the same durations in another order are the same
_ALIKE_S = 1e-11
_QUEUE = {Kind.F: k.FORWARD, Kind.B: k.BACKWARD, Kind.BW: k.BACKWARD, Kind.W: k.WEIGHT}


@dataclass(frozen=True)
class Remainder:
    """Lanes that end the running step. ``sources``: tensors that exist and are sent again."""

    lanes: Mapping[WorkerId, Lane]
    todo: Todo
    length_s: float

    @property
    def sources(self) -> Mapping[Fact, WorkerId]:
        return self.todo.sources


def remainder_of_step(
    problem: Problem,
    holders: Holders,
    facts: Mapping[WorkerId, Facts],
    *,
    plain: bool | None = None,
) -> Remainder:
    """``holders``: live workers and the stages they hold now; ``facts`` of one running step.

    Stages may be a step apart: ask for each running step, the older first, and join the lanes.
    """
    todo = still_to_do(problem.shape, holders, facts)
    placed = _Placement(problem, holders).place(todo.tasks)
    lanes = {worker: list[Op]() for worker in sorted(holders)}
    length_s = 0.0
    if placed:
        length_s = _Order(problem, holders, facts, todo, placed).write(lanes, plain)
    for reduction in todo.reductions:
        for worker in reduction.workers:
            lanes[worker].append(Op(reduction.stage, Kind.R))
    return Remainder({worker: tuple(lane) for worker, lane in lanes.items()}, todo, length_s)


class _Placement:
    """Gives tasks that are bound to nobody to the holder who is done with them first."""

    def __init__(self, problem: Problem, holders: Holders) -> None:
        self._problem = problem
        speeds = {member.worker: member.speed for member in problem.members}
        self._workers = sorted(holders)
        self._number = {worker: number for number, worker in enumerate(self._workers)}
        self._speed = np.array([speeds[worker] for worker in self._workers])
        self._load_s = np.zeros(len(self._workers))
        by_stage: dict[int, list[int]] = {}
        for worker in self._workers:
            for stage in holders[worker]:
                by_stage.setdefault(stage, []).append(self._number[worker])
        self._by_stage = {stage: np.array(numbers) for stage, numbers in by_stage.items()}
        self._at_home: dict[Place, list[int]] = {}  # stage and pipeline -> places in the above
        for stage, numbers in by_stage.items():
            for place, number in enumerate(numbers):
                key = (stage, self._workers[number].pipeline)
                self._at_home.setdefault(key, []).append(place)
        self._taken_s: dict[tuple[int, Kinds], float] = {}  # at speed 1

    def place(self, tasks: Sequence[Task]) -> list[Task]:
        for task in tasks:
            if task.worker is not None:
                number = self._number[task.worker]
                self._load_s[number] += self._takes_s(task) / self._speed[number]
        return [task if task.worker is not None else self._given(task) for task in tasks]

    def _given(self, task: Task) -> Task:
        """In doubt to one of its own pipeline, or else to the first by name."""
        home = task.microbatch // self._problem.shape.microbatches_per_pipeline
        numbers = self._by_stage[task.stage]
        done_s = self._load_s[numbers] + self._takes_s(task) / self._speed[numbers]
        first_s = float(done_s.min())
        first = round(first_s, _DIGITS)
        at_home = self._at_home.get((task.stage, home), [])
        others = map(int, np.flatnonzero(done_s <= first_s + _ALIKE_S))
        alike = (p for p in chain(at_home, others) if round(float(done_s[p]), _DIGITS) == first)
        number = numbers[next(alike)]
        self._load_s[number] += self._takes_s(task) / self._speed[number]
        return task._replace(worker=self._workers[number])

    def _takes_s(self, task: Task) -> float:
        key = (task.stage, task.kinds)
        if key not in self._taken_s:
            costs = self._problem.costs
            self._taken_s[key] = sum(costs.duration_s(op) for op in task.ops)
        return self._taken_s[key]


class _Order:
    """The tasks as a graph; the shortest of the portfolio's orders."""

    def __init__(
        self,
        problem: Problem,
        holders: Holders,
        facts: Mapping[WorkerId, Facts],
        todo: Todo,
        placed: Sequence[Task],
    ) -> None:
        self._problem, self._todo = problem, todo
        self._fleet = Fleet.of(problem, {worker: 0 for worker in holders})
        self._pairs = sorted((w, stage) for w, held in holders.items() for stage in held)
        self._host = {pair: number for number, pair in enumerate(self._pairs)}
        self._ops: list[tuple[WorkerId, Op]] = []
        self._follows: dict[Op, Op] = {}  # within a task; a task for others is apart from it
        for task in placed:
            ops = self._written(task)
            self._follows |= dict(pairwise(ops))
            self._ops += ((task.worker, op) for op in ops if task.worker)
        self._number = {op: number for number, (_, op) in enumerate(self._ops)}
        self._used = self._memory_in_use(facts)

    def _written(self, task: Task) -> tuple[Op, ...]:
        """Fused where that is cheaper."""
        costs, stage = self._problem.costs, task.stage
        whole = task.kinds[-2:] == (Kind.B, Kind.W)
        if whole and costs.fused_s[stage] < costs.input_s[stage] + costs.weight_s[stage]:
            return (*task.ops[:-2], Op(stage, Kind.BW, task.microbatch))
        return task.ops

    def _memory_in_use(self, facts: Mapping[WorkerId, Facts]) -> np.ndarray:
        memory = self._problem.memory
        used = np.zeros(len(self._pairs))
        for worker, known in facts.items():
            for (stage, _), progress in known.progress.items():
                host = self._host.get((worker, stage))
                if host is not None and progress is MicrobatchProgress.FORWARDED:
                    used[host] += memory.held_at(stage)
                elif host is not None and progress is MicrobatchProgress.GRADED:
                    used[host] += memory.pending_at(stage)
        return used

    def write(self, lanes: Mapping[WorkerId, list[Op]], plain: bool | None) -> float:
        """Append each worker's operations to its lane; how long the longest takes."""
        graph = self._graph()
        board = Board(graph, plain=plain)
        num_hosts = len(self._pairs)
        forward, hop = int(graph.hosts.durations[0].min()), int(graph.ops[k.DELAY].max())
        best = None
        for policy in portfolio(forward, hop, self._problem.shape.stages, num_hosts):
            layout = board.lay_out(np.zeros(num_hosts, np.int64), policy)
            if layout is not None and (best is None or layout.last_end.max() < best.last_end.max()):
                best = layout
        if best is None:
            raise MemoryExceeded(
                "the rest of the step does not fit into memory: work that is done again needs room "
                "beside what is held; expected that senders still have what they have sent"
            )
        for number in best.order.tolist():
            worker, op = self._ops[number]
            lanes[worker].append(op)
        return float(best.last_end.max()) * self._fleet.units.tick_s

    def _graph(self) -> OperationGraph:
        hosts = self._hosts()
        # Lists: an element of an array takes ten times as long, and there are many.
        empty = {row: 0 for row in (k.TAKES, k.GIVES, k.WAITS_FOR)}
        rows = [[empty.get(row, -1)] * len(self._ops) for row in range(k.NUM_OP_ROWS)]
        durations, memory = hosts.durations.tolist(), (hosts.held.tolist(), hosts.pending.tolist())
        for number, (worker, op) in enumerate(self._ops):
            host = self._host[worker, op.stage]
            rows[k.HOST][number], rows[k.QUEUE][number] = host, _QUEUE[op.kind]
            rows[k.DURATION][number] = durations[KINDS.index(op.kind)][host]
            self._account(rows, number, op, memory[0][host], memory[1][host])
        waits_s = [self._join(rows, number) for number in range(len(self._ops))]
        ops = np.array(rows, np.int64)
        ops[[k.DELAY, k.READY]] = self._fleet.units.ticks(waits_s).T
        kinds = np.array([KINDS.index(op.kind) for _, op in self._ops])
        stages = np.array([op.stage for _, op in self._ops])
        microbatches = np.array([op.microbatch for _, op in self._ops])
        return OperationGraph(hosts, ops, kinds, stages, microbatches, len(self._ops))

    def _hosts(self) -> Hosts:
        index = {worker: number for number, worker in enumerate(self._fleet.workers)}
        workers = np.array([index[worker] for worker, _ in self._pairs])
        # What is held already leaves so much less; when it goes there is room again.
        limit = self._fleet.limit[workers] - self._used
        return self._fleet.hosts(
            stage=np.array([stage for _, stage in self._pairs]),
            worker=np.unique(workers, return_inverse=True)[1].astype(np.int64),
            speed=self._fleet.speed[workers],
            limit=limit,
        )

    def _account(self, rows: _Rows, number: int, op: Op, held: int, pending: int) -> None:
        if op.kind is Kind.F:
            rows[k.TAKES][number] = held
            rows[k.GIVES][number] = 0 if self._own(op) is not None else -held
        elif op.kind is Kind.W:
            rows[k.GIVES][number] = -pending
        else:
            rows[k.GIVES][number] = (pending if self._own(op) is not None else 0) - held

    def _own(self, op: Op) -> int | None:
        """What follows for the same micro-batch in the same task."""
        following = self._follows.get(op)
        return None if following is None else self._number[following]

    def _join(self, rows: _Rows, number: int) -> tuple[float, float]:
        """Seconds until its result is where it is needed, and until what it needs is here."""
        hop_s = 0.0
        worker, op = self._ops[number]
        own, neighbour = self._own(op), self._neighbour(op)
        if own is not None:
            rows[k.OWN_NEXT][number] = own
            rows[k.WAITS_FOR][own] += 1
        if neighbour is not None:
            rows[k.NEXT][number] = neighbour
            rows[k.WAITS_FOR][neighbour] += 1
            boundary = op.stage if op.kind is Kind.F else op.stage - 1
            hop_s = self._problem.hop_s(boundary, worker, self._ops[neighbour][0])
        return hop_s, self._sent_again_s(worker, op)

    def _neighbour(self, op: Op) -> int | None:
        """The operation at the next stage (or the one before) that needs this one's result."""
        if op.kind is Kind.F:
            return self._number.get(Op(op.stage + 1, Kind.F, op.microbatch))
        if op.kind in (Kind.B, Kind.BW) and op.stage:
            before = Op(op.stage - 1, Kind.BW, op.microbatch)
            return self._number.get(
                before, self._number.get(Op(op.stage - 1, Kind.B, op.microbatch))
            )
        return None

    def _sent_again_s(self, worker: WorkerId, op: Op) -> float:
        """When a tensor that somebody has kept is here, if the operation needs one."""
        if op.kind is Kind.F and op.stage:
            needed, boundary = Fact(What.ACTIVATION, op.stage - 1, op.microbatch), op.stage - 1
        elif op.kind in (Kind.B, Kind.BW) and op.stage < self._problem.shape.last_stage:
            needed, boundary = Fact(What.GRADIENT, op.stage + 1, op.microbatch), op.stage
        else:
            return 0.0
        source = self._todo.sources.get(needed)
        return 0.0 if source is None else self._problem.hop_s(boundary, source, worker)
