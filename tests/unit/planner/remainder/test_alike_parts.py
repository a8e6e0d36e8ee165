"""Like pipelines are put in order once: nothing of the order, or of its length, is another."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.half_done import World, cross_routed, grid
from holdfast.cluster import WorkerId
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.list_schedule import Board
from holdfast.planner.order.order import portfolio
from holdfast.planner.problem import Member, Memory, Problem
from holdfast.planner.remainder.alike import alike_parts
from holdfast.planner.remainder.lineage import still_to_do
from holdfast.planner.remainder.placing_tasks import TaskPlacing
from holdfast.planner.remainder.task_graph import TaskGraph
from holdfast.schedule.costs import Costs
from holdfast.schedule.generate import one_f_one_b
from holdfast.schedule.operation import Shape


def graph_of(world, speeds=None, limits=None):
    problem = Problem(
        shape=world.shape,
        costs=Costs.uniform(world.shape.stages, link_s=0.1),
        memory=Memory(limit=100.0, limits=limits or {}),
        members=tuple(
            Member(one, held[0], (speeds or {}).get(one, 1.0))
            for one, held in world.holders.items()
        ),
    )
    fleet = Fleet.of(problem, dict.fromkeys(world.holders, 0))
    todo = still_to_do(world.shape, world.holders, world.facts())
    if not len(todo.table.stage):
        return None
    placed = next(TaskPlacing(fleet, world.holders).ways(todo.table))
    return TaskGraph(fleet, world.holders, todo, placed).made()


def lanes(graph, order):
    workers = graph.hosts.worker[graph.ops[k.HOST, order]]
    return {w: order[workers == w].tolist() for w in np.unique(workers).tolist()}


def check(graph):
    """The number of operations that are laid out instead of all."""
    parts = alike_parts(graph)
    for number in (0, 5, 6):
        found = []
        for one in (graph, parts.graph):
            num_hosts = len(one.hosts.stage)
            policy = portfolio(1 << 20, 1 << 17, 3, num_hosts)[number]
            found.append(Board(one).lay_out(np.zeros(num_hosts, np.int64), policy))
        whole, reduced = found
        assert reduced.last_end.max() == whole.last_end.max()
        assert lanes(graph, parts.spread(reduced.order)) == lanes(graph, whole.order)
    return parts.graph.num_ops


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_the_order_of_each_worker_is_that_of_the_whole_graph(seed):
    random = Random(seed)
    if random.random() < 0.5:
        shape, holders, lanes_before = cross_routed(random)
    else:
        shape = Shape(random.choice([2, 5]), 3, 20)
        holders, lanes_before = grid(shape.pipelines, 3), one_f_one_b(shape).lanes
    world = World(shape, holders, {one: list(lane) for one, lane in lanes_before.items()})
    world.run_some(random, random.randint(0, 60))
    world.kill(random)
    graph = graph_of(world, {one: random.choice([1.0, 0.5]) for one in world.holders})
    if graph is not None:
        assert 0 < check(graph) <= graph.num_ops


def fresh(pipelines):
    shape = Shape(pipelines, 2, 4 * pipelines)
    return World(shape, grid(pipelines, 2), one_f_one_b(shape).lanes)


def test_pipelines_that_are_all_alike_are_one():
    graph = graph_of(fresh(6))
    assert check(graph) == graph.num_ops // 6


@pytest.mark.parametrize("differs", ["speeds", "limits"])
def test_one_that_differs_is_put_in_order_by_itself(differs):
    graph = graph_of(fresh(6), **{differs: {WorkerId(4, 1): 0.999 if differs == "speeds" else 50}})
    assert check(graph) == 2 * (graph.num_ops // 6)
