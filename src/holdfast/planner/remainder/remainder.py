"""The remainder of a half-done step: what lineage says is missing, placed and put in order.

Finished work stays where it is; only what nobody has any more is given out anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from holdfast.arrays import Ints
from holdfast.cluster import WorkerId
from holdfast.errors import MemoryExceeded
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.list_schedule import Board, ListSchedule
from holdfast.planner.order.order import portfolio
from holdfast.planner.problem import Problem
from holdfast.planner.remainder.alike import alike_parts
from holdfast.planner.remainder.facts import Facts
from holdfast.planner.remainder.lineage import Holders, Todo, still_to_do
from holdfast.planner.remainder.placing_tasks import TaskPlacing
from holdfast.planner.remainder.task_graph import TaskGraph
from holdfast.schedule.lane_table import NO_MICROBATCH, REDUCES, LaneTable
from holdfast.schedule.operation import Fact, Op

# Laid out in all trials together, from the most promising policy on: all workers wait for it.
_NUM_TRIED_OPS = 65_536
_FEW_TASKS = 1_000  # of more no other way to place them is tried: pipelines are not alike in it
_NOBODY, _NO_COLUMNS = np.zeros(0, np.int64), np.zeros((3, 0), np.int64)


@dataclass(frozen=True)
class Remainder:
    """Lanes that end the running step. ``sources``: tensors that exist and are sent again."""

    lanes: Mapping[WorkerId, tuple[Op, ...]]
    todo: Todo
    length_s: float
    num_operations: int  # without reductions

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
    workers, columns, length_s = _NOBODY, _NO_COLUMNS, 0.0
    if len(todo.table.stage):
        fleet = Fleet.of(problem, {worker: 0 for worker in holders})
        tasks, order, length = _shortest(fleet, holders, todo, plain)
        workers, columns = tasks.in_order(order)
        length_s = length * fleet.units.tick_s
    reducing, reductions = _reductions(todo)
    lanes = LaneTable.of(
        todo.table.workers,
        np.concatenate([workers, reducing]),
        np.concatenate([columns, reductions], axis=1),
    )
    return Remainder(lanes, todo, length_s, len(workers))


def _reductions(todo: Todo) -> tuple[Ints, Ints]:
    """The worker of each, and its columns."""
    number = {worker: at for at, worker in enumerate(todo.table.workers)}
    rows = [(number[worker], one.stage) for one in todo.reductions for worker in one.workers]
    workers, stages = np.array(rows, np.int64).reshape(-1, 2).T
    others = [np.full_like(stages, value) for value in (REDUCES, NO_MICROBATCH)]
    return workers, np.stack([others[0], stages, others[1]])


def _shortest(
    fleet: Fleet, holders: Holders, todo: Todo, plain: bool | None
) -> tuple[TaskGraph, Ints, int]:
    """Of all ways to place the tasks, and of the orders that the portfolio gives; its length."""
    best, num_tried_ops = None, 0
    ways = TaskPlacing(fleet, holders, plain).ways(todo.table)
    for placed in islice(ways, None if len(todo.table.stage) <= _FEW_TASKS else 1):
        tasks = TaskGraph(fleet, holders, todo, placed)
        whole = tasks.made()
        parts = alike_parts(whole)
        board, num_hosts = Board(parts.graph, plain=plain), len(parts.graph.hosts.stage)
        forward, hop = int(whole.hosts.durations[0].min()), int(whole.ops[k.DELAY].max())
        for policy in portfolio(forward, hop, fleet.problem.shape.stages, num_hosts):
            if best is not None and num_tried_ops >= _NUM_TRIED_OPS:
                break
            num_tried_ops += parts.graph.num_ops
            found = board.lay_out(np.zeros(num_hosts, np.int64), policy)
            if found is not None and (best is None or _end(found) < _end(best[2])):
                best = tasks, parts, found
    if best is None:
        raise MemoryExceeded(
            "the rest of the step does not fit into memory: work that is done again needs room "
            "beside what is held; expected that senders still have what they have sent"
        )
    tasks, parts, layout = best
    return tasks, parts.spread(layout.order), _end(layout)


def _end(layout: ListSchedule) -> int:
    return int(layout.last_end.max())
