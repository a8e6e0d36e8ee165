"""Runs the kernel: a graph and a policy in, an order of operations and its windows out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.arrays import Ints
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.compiled import is_plain, plain_twins
from holdfast.planner.kernel.graph import OperationGraph


@dataclass(frozen=True)
class ListSchedule:
    """``order``: operations as started. Windows are a host's."""

    order: Ints
    first_start: Ints
    last_end: Ints


class Board:
    """One graph, laid out again and again with other policies and releases."""

    def __init__(self, graph: OperationGraph, *, plain: bool | None = None) -> None:
        self._plain = is_plain(plain)
        self.graph = graph
        hosts = graph.hosts
        self._first_host = np.searchsorted(hosts.worker, np.arange(hosts.num_workers + 1))
        queues = 3 * graph.ops[k.HOST] + graph.ops[k.QUEUE]
        sizes = np.bincount(queues, minlength=3 * len(hosts.worker))
        self._queue_starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self._at_once = np.flatnonzero(graph.ops[k.WAITS_FOR] == 0)
        self._queues = queues
        names = plain_twins(k) if self._plain else vars(k)
        self._lay_out: Callable[..., int] = names["lay_out"]
        self._replay: Callable[..., None] = names["replay"]

    def lay_out(self, release: Ints, policy: Ints) -> ListSchedule | None:
        """None if memory does not admit all operations. ``policy``: the kernel's last four rows."""
        graph, hosts = self.graph, self.graph.hosts
        num_hosts, num_ops = len(hosts.worker), graph.ops.shape[1]
        ops = graph.ops.copy()
        table = np.empty((k.NUM_HOST_ROWS, num_hosts), np.int64)
        table[k.WORKER], table[k.STAGE], table[k.LIMIT] = hosts.worker, hosts.stage, hosts.limit
        table[k.RELEASE] = release
        table[k.RANKING :] = policy
        at_once = self._at_once
        ops[k.READY, at_once] = np.maximum(ops[k.READY, at_once], release[ops[k.HOST, at_once]])
        slots = np.zeros(num_ops, np.int64)
        heads, tails = self._queue_starts.copy(), self._queue_starts.copy()
        self._enqueue_at_once(ops, slots, tails)
        state = np.zeros((k.NUM_STATE_ROWS, num_hosts), np.int64)
        state[k.FIRST_START] = k.NEVER
        room = 3 * num_ops + hosts.num_workers + 8
        order = np.full(num_ops, -1, np.int64)
        args = [ops, table, self._first_host, state, ops[k.WAITS_FOR].copy(), slots, heads, tails]
        args += [np.full(hosts.num_workers, -1, np.int64), np.zeros(room, np.int64)]
        args += [np.zeros(room, np.int64), np.zeros(1, np.int64), order]
        if self._plain:
            lists: list[Any] = [array.tolist() for array in args]
            num_done = self._lay_out(*lists)
            state, order = np.array(lists[3], np.int64), np.array(lists[-1], np.int64)
        else:
            num_done = self._lay_out(*args)
        if num_done < graph.num_ops:
            return None
        return ListSchedule(order[:num_done], state[k.FIRST_START], state[k.LAST_END])

    def _enqueue_at_once(self, ops: Ints, slots: Ints, tails: Ints) -> None:
        """What waits for nothing stands in its queue from the start, soonest first."""
        at_once, queues = self._at_once, self._queues[self._at_once]
        by_queue = np.lexsort((at_once, ops[k.READY, at_once], queues))
        queue = queues[by_queue]
        first = np.searchsorted(queue, queue)
        slots[tails[queue] + np.arange(len(queue)) - first] = at_once[by_queue]
        tails += np.bincount(queue, minlength=len(tails))

    def replay(self, order: Ints, free: Ints) -> Ints:
        """When each worker is done with its lane, if it is free for it at ``free``."""
        graph, hosts = self.graph, self.graph.hosts
        ready = np.zeros(graph.ops.shape[1], np.int64)
        table = np.zeros((1, len(hosts.worker)), np.int64)
        table[k.WORKER] = hosts.worker
        free = free.copy()
        if self._plain:
            lists: list[Any] = [array.tolist() for array in (graph.ops, table, free, ready)]
            self._replay(order.tolist(), len(order), *lists)
            return np.array(lists[2], np.int64)
        self._replay(order, len(order), graph.ops, table, free, ready)
        return free
