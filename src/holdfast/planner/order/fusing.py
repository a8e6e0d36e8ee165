"""Joins B and W wherever the period does not get longer: splitting a backward costs compute."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from holdfast.arrays import Flags, Ints
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.list_schedule import Board
from holdfast.planner.order.order import Order
from holdfast.planner.order.period import steady_period
from holdfast.planner.route.routing import Routing

_NUM_TRIALS = 48


def fused_where_free(
    routing: Routing,
    order: Order,
    fleet: Fleet,
    *,
    plain: bool | None = None,
    between: Callable[[], None] = lambda: None,
) -> Order:
    """Tries whole stages first and halves what does not fit. A W that comes earlier is free.

    ``between`` is called before each trial and ends them by raising.
    """
    limit = steady_period(routing, order, fleet)
    size = routing.template.route.size
    backwards = order.board.graph.kind[size : 2 * size].reshape(routing.template.route.shape)
    fused = backwards == 3
    split = [np.flatnonzero(~fused[:, stage]) for stage in range(fused.shape[1])]
    trials = [(stage, rows) for stage, rows in enumerate(split) if len(rows)][::-1]
    for _ in range(_NUM_TRIALS):
        if not trials:
            break
        between()
        stage, rows = trials.pop()
        tried = fused.copy()
        tried[rows, stage] = True
        candidate = _with_fused(routing, order, tried, plain)
        if steady_period(routing, candidate, fleet) <= limit:
            order, fused = candidate, tried
        elif len(rows) > 1:
            half = len(rows) // 2
            trials[:0] = [(stage, rows[half:]), (stage, rows[:half])]
    return order


def _with_fused(routing: Routing, order: Order, fused: Flags, plain: bool | None) -> Order:
    """The same lanes, without the W that are now part of their B. Its windows may be longer."""
    board = Board(routing.template.graph(fused), plain=plain)
    was: Ints = order.layout.order
    is_weight = order.board.graph.ops[k.QUEUE, was] == k.WEIGHT
    gone = is_weight & fused.reshape(-1)[was % fused.size]
    layout = replace(order.layout, order=was[~gone])
    return replace(order, layout=layout, board=board, period=k.NEVER)
