"""Parts of a graph that have nothing to do with each other, and of like ones only the first.

Pipelines that nothing happened to share no worker and no tensor, and have the same left to do: what
is a good order for one of them is one for all.
"""

from dataclasses import dataclass, replace

import numpy as np

from holdfast.arrays import Ints
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.graph import Hosts, OperationGraph

_POINTS = [k.NEXT, k.OWN_NEXT]  # rows that have numbers of operations


@dataclass(frozen=True)
class AlikeParts:
    graph: OperationGraph  # one part of each kind
    _like: tuple[Ints, ...]  # of each: [part, operation], numbered as in the whole graph
    _kind: Ints  # of each operation of ``graph``: which of them
    _place: Ints  # ... and its place there

    def spread(self, order: Ints) -> Ints:
        """All operations of the whole graph, those of a worker as ``order`` has them."""
        kinds, places = self._kind[order], self._place[order]
        parts = [like[:, places[kinds == kind]] for kind, like in enumerate(self._like)]
        return np.concatenate([part.reshape(-1) for part in parts])


def alike_parts(graph: OperationGraph) -> AlikeParts:
    parts = _Parts(graph)
    like = tuple(np.stack([parts.ops_of(part) for part in kind]) for kind in parts.kinds())
    sizes = [one.shape[1] for one in like]
    first = np.concatenate([one[0] for one in like])
    kind = np.repeat(np.arange(len(like)), sizes)
    place = np.concatenate([np.arange(size) for size in sizes])
    return AlikeParts(_reduced(graph, first), like, kind, place)


class _Parts:
    """Operations and hosts of a graph by the part that they belong to."""

    def __init__(self, graph: OperationGraph) -> None:
        hosts, ops = graph.hosts, graph.ops
        of_worker = _joined(hosts.num_workers, *_sent_between(graph))
        of_op = of_worker[hosts.worker[ops[k.HOST]]]
        self._order, self._starts = _grouped(of_op, hosts.num_workers)
        host_order, self._host_starts = _grouped(of_worker[hosts.worker], hosts.num_workers)
        place, host_place = _inverse(self._order), _inverse(host_order)
        self._rows = ops[:, self._order]
        starts = self._starts[of_op[self._order]]
        self._rows[k.HOST] = host_place[self._rows[k.HOST]] - self._host_starts[of_op[self._order]]
        for row in _POINTS:
            to = self._rows[row]
            self._rows[row] = np.where(to >= 0, place[to] - starts, to)
        self._rows = np.concatenate([self._rows, graph.kind[None, self._order]])
        self._hosts = np.stack(
            [
                hosts.worker - hosts.worker[host_order[self._host_starts[of_worker[hosts.worker]]]],
                hosts.stage,
                hosts.limit,
            ]
        )[:, host_order]

    def ops_of(self, part: int) -> Ints:
        return self._order[self._starts[part] : self._starts[part + 1]]

    def kinds(self) -> list[list[int]]:
        """Like parts together, by the first of each; without those that have nothing to do."""
        found: dict[tuple[bytes, bytes], list[int]] = {}
        for part in np.flatnonzero(np.diff(self._starts)).tolist():
            ops = self._rows[:, self._starts[part] : self._starts[part + 1]]
            hosts = self._hosts[:, self._host_starts[part] : self._host_starts[part + 1]]
            found.setdefault((ops.tobytes(), hosts.tobytes()), []).append(part)
        return list(found.values())


def _sent_between(graph: OperationGraph) -> tuple[Ints, Ints]:
    """Workers of which one sends something to the other."""
    worker = graph.hosts.worker[graph.ops[k.HOST]]
    sends = np.flatnonzero(graph.ops[k.NEXT] >= 0)
    width = graph.hosts.num_workers
    pairs = np.unique(worker[sends] * width + worker[graph.ops[k.NEXT, sends]])
    return pairs // width, pairs % width


def _joined(num_workers: int, one: Ints, other: Ints) -> Ints:
    """The part of each worker: the lowest of those that pairs join it to."""
    part = np.arange(num_workers)
    while True:
        before = part.copy()
        lowest = np.minimum(part[one], part[other])
        np.minimum.at(part, one, lowest)
        np.minimum.at(part, other, lowest)
        part = part[part]  # as far as that one has come
        if (part == before).all():
            return part


def _grouped(part: Ints, num_parts: int) -> tuple[Ints, Ints]:
    """The members of each part one after the other, and where each part begins."""
    counts = np.bincount(part, minlength=num_parts)
    return np.argsort(part, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def _inverse(order: Ints) -> Ints:
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def _reduced(graph: OperationGraph, chosen: Ints) -> OperationGraph:
    """These operations alone, with the hosts that they run on. All that they point to is there."""
    hosts = graph.hosts
    kept = np.unique(graph.ops[k.HOST, chosen])
    number = np.full(graph.ops.shape[1], -1, np.int64)
    number[chosen] = np.arange(len(chosen))
    ops = graph.ops[:, chosen]
    ops[k.HOST] = np.searchsorted(kept, ops[k.HOST])
    for row in _POINTS:
        ops[row] = np.where(ops[row] >= 0, number[ops[row]], ops[row])
    return replace(
        graph,
        hosts=Hosts(
            worker=np.unique(hosts.worker[kept], return_inverse=True)[1].astype(np.int64),
            stage=hosts.stage[kept],
            durations=hosts.durations[:, kept],
            limit=hosts.limit[kept],
            held=hosts.held[kept],
            pending=hosts.pending[kept],
        ),
        ops=np.ascontiguousarray(ops),
        kind=graph.kind[chosen],
        stage=graph.stage[chosen],
        microbatch=graph.microbatch[chosen],
        num_ops=len(chosen),
    )
