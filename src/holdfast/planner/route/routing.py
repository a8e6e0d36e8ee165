"""Which holder of each stage runs which micro-batch: relabelled pipelines, or home routes.

Holders of a stage have the same parameters, so a pipeline is only a matching of workers. Orders
and periods are not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.graph import Template

_ROUNDING = 1e-9
# Kinds of pipeline that are put in order one by one; more are merged to the slower one.
_MOST_CLASSES = 24
_MOST_EXACT_CLASSES = 6


@dataclass(frozen=True)
class Group:
    """Like pipelines (or, once, the whole cluster) that follow the same part of the template."""

    first_host: int
    first_row: int
    members: Ints  # [copy, host of the part]: index of the worker in the fleet
    numbers: Ints  # [copy, row of the part]: the micro-batch; -1: this copy has one fewer


@dataclass(frozen=True)
class Routing:
    name: str
    template: Template
    groups: tuple[Group, ...]


def relabelled(fleet: Fleet) -> Routing:
    """Equal speed ranks of all stages form a pipeline; its share goes by its slowest member."""
    members = _ranks(fleet)
    classes = _classes(fleet, members)
    counts = _pipeline_shares(fleet, members, classes)
    return _assemble(fleet, members, classes, counts)


def _ranks(fleet: Fleet) -> Ints:
    """[pipeline, stage]: the fastest of all stages first. Who is left over is a hot spare."""
    num_pipelines = min(len(held) for held in fleet.by_stage)
    members = np.stack([held[:num_pipelines] for held in fleet.by_stage], axis=1)
    if fleet.problem.links.unusual:
        _avoid_unusual_links(fleet, members)
    return members


def _avoid_unusual_links(fleet: Fleet, members: Ints) -> None:
    """Swap workers of equal speed so that an unusual link joins no two of a pipeline."""
    for one, other in sorted(fleet.problem.links.unusual):
        for pipeline in range(len(members)):
            names = [fleet.workers[index] for index in members[pipeline]]
            for boundary in range(len(names) - 1):
                if {names[boundary], names[boundary + 1]} == {one, other}:
                    # Either end may be the one that has a like; one swap is enough.
                    ends = (boundary + 1, boundary)
                    any(_swap_with_like(fleet, members, pipeline, end) for end in ends)


def _swap_with_like(fleet: Fleet, members: Ints, pipeline: int, stage: int) -> bool:
    speeds = fleet.speed[members[:, stage]]
    for like in np.flatnonzero(speeds == speeds[pipeline]).tolist():
        if like != pipeline:
            pair = [pipeline, like]
            members[pair, stage] = members[pair[::-1], stage]
            if not (
                _has_unusual_link(fleet, members[pipeline])
                or _has_unusual_link(fleet, members[like])
            ):
                return True
            members[pair, stage] = members[pair[::-1], stage]
    return False


def _has_unusual_link(fleet: Fleet, pipeline: Ints) -> bool:
    names = [fleet.workers[index] for index in pipeline]
    unusual = fleet.problem.links.unusual
    return any((one, other) in unusual or (other, one) in unusual for one, other in pairwise(names))


@dataclass(frozen=True)
class _Class:
    """Pipelines that are planned as one, as slow at each stage as the slowest of them."""

    pipelines: Ints
    speed: Floats  # [stage]
    limit: Floats  # [stage]
    hop_s: Floats  # [stage]


def _classes(fleet: Fleet, members: Ints) -> list[_Class]:
    """By the time of a micro-batch at the slowest stage, and memory; unusual links are apart."""
    unit_s = _alike(fleet.times.each / fleet.speed[members])
    apart = np.array(
        [fleet.problem.links.unusual and _has_unusual_link(fleet, row) for row in members]
    )
    keys = np.where(apart, -1.0 - np.arange(len(members)), _merged(unit_s))
    limits = -_merged(-fleet.limit[members].min(axis=1))
    found = []
    for key, limit in sorted(set(zip(keys.tolist(), limits.tolist(), strict=True)), reverse=True):
        rows = np.flatnonzero((keys == key) & (limits == limit))
        of_class = members[rows]
        found.append(
            _Class(
                pipelines=rows,
                speed=fleet.speed[of_class].min(axis=0),
                limit=fleet.limit[of_class].min(axis=0),
                hop_s=_hops_s(fleet, of_class[0]) if key < 0 else fleet.times.hop,
            )
        )
    return found


def _alike(each_s: Floats) -> Floats:
    """A number for each pipeline by its slowest stage; if there are few kinds, by all of them."""
    slowest_s: Floats = each_s.max(axis=1)
    kinds, kind = np.unique(each_s, axis=0, return_inverse=True)
    if len(kinds) <= _MOST_EXACT_CLASSES:
        # A shade apart, in the order of the slowest stages.
        slowest_s = slowest_s * (1 + _ROUNDING * kind.reshape(-1))
    return slowest_s


def _merged(unit_s: Floats) -> Floats:
    """The same number for equal times; if there are too many kinds, for similar ones."""
    kinds = np.unique(unit_s)
    if len(kinds) <= _MOST_CLASSES:
        return unit_s
    edges = kinds[np.linspace(0, len(kinds) - 1, _MOST_CLASSES).astype(np.int64)]
    return edges[np.searchsorted(edges, unit_s)]


def _hops_s(fleet: Fleet, pipeline: Ints) -> Floats:
    names = [fleet.workers[index] for index in pipeline]
    pairs = enumerate(pairwise(names))
    hops = [fleet.problem.hop_s(boundary, one, other) for boundary, (one, other) in pairs]
    return np.array([*hops, 0.0])


def _pipeline_shares(fleet: Fleet, members: Ints, classes: Sequence[_Class]) -> Ints:
    """Micro-batches of each pipeline: the shortest period by work, way and memory of each class."""
    total = fleet.problem.shape.microbatches
    sizes = np.array([len(kind.pipelines) for kind in classes])
    capacity = _Capacity(fleet, classes)
    low = high = total * float(fleet.times.each.max()) / len(members)
    while int((capacity.most(high) * sizes).sum()) < total:
        low, high = high, high * 1.5
    while high - low > _ROUNDING * high:
        middle = (low + high) / 2
        enough = int((capacity.most(middle) * sizes).sum()) >= total
        low, high = (low, middle) if enough else (middle, high)
    return _without_surplus(capacity.most(high), classes, len(members), total)


class _Capacity:
    """How many micro-batches a pipeline of each class could get through, by the bounds on it."""

    def __init__(self, fleet: Fleet, classes: Sequence[_Class]) -> None:
        times, memory = fleet.times, fleet.problem.memory
        speed = np.stack([kind.speed for kind in classes])
        forward, self._each = times.kinds[0] / speed, times.each / speed
        self._both = forward + times.soonest / speed
        hops = np.stack([kind.hop_s for kind in classes])
        way = np.cumsum(self._both + 2 * hops, axis=1)
        way_there = way - self._both - 2 * hops
        # After the last way back stage 0 still has the rest of a backward to do.
        self._besides_path = way_there + (self._each - self._both)[:, :1]
        held = np.array([memory.held_at(stage) for stage in range(len(times.each))])
        admitted = np.floor(np.stack([kind.limit for kind in classes]) / held + _ROUNDING)
        first = forward + way[:, -1:] - way + 2 * hops
        self._besides_work = times.step + np.maximum(0.0, first - admitted * forward)
        # How long a micro-batch counts in memory at least, and when the next one may begin.
        self._admitted, self._forward, self._step = admitted, forward, times.step
        pending = np.array([memory.pending_at(stage) for stage in range(len(times.each))])
        kept = np.where(pending == held, self._each - forward, self._both - forward)
        self._held = first + kept

    def most(self, period_s: float) -> Ints:
        room_s = period_s * (1 + _ROUNDING)
        by_path = (room_s - self._besides_path) / self._both
        by_work = (room_s - self._besides_work) / self._each
        least = np.floor(np.minimum(by_path, by_work))
        least = np.minimum(least, self._by_memory(room_s)).min(axis=1)
        most: Ints = np.maximum(0, least).astype(np.int64)
        return most

    def _by_memory(self, room_s: float) -> Floats:
        """One after the other in each place of memory; counts where tensors are long under way."""
        room = room_s - self._step
        rounds = np.floor(room / self._held)
        left = room - rounds * self._held
        # In the first round places are taken one forward after the other.
        num: Floats = np.minimum(self._admitted, 1 + np.floor(left / self._forward))
        return np.where(rounds > 0, (rounds - 1) * self._admitted + num, 0.0)


def _without_surplus(most: Ints, classes: Sequence[_Class], num_pipelines: int, total: int) -> Ints:
    """Every pipeline the most of its class, then one fewer here and there, the slow ones first."""
    counts = np.zeros(num_pipelines, np.int64)
    for kind, count in zip(classes, most, strict=True):
        counts[kind.pipelines] = min(int(count), total)
    surplus = int(counts.sum()) - total
    order = np.concatenate([kind.pipelines[::-1] for kind in classes])
    while surplus > 0:
        takers = order[counts[order] > 0][:surplus]
        counts[takers] -= 1
        surplus -= len(takers)
    return counts


def _assemble(fleet: Fleet, members: Ints, classes: Sequence[_Class], counts: Ints) -> Routing:
    used = [kind for kind in classes if counts[kind.pipelines].max() > 0]
    stages, units = fleet.problem.shape.stages, fleet.units
    firsts = np.concatenate([[0], np.cumsum(counts)])
    groups, routes, turns, hops = [], [], [], []
    first_row = 0
    for at, kind in enumerate(used):
        size = int(counts[kind.pipelines].max())
        row = np.arange(size)
        numbers = firsts[kind.pipelines][:, None] + row
        numbers = np.where(row < counts[kind.pipelines][:, None], numbers, -1)
        groups.append(Group(at * stages, first_row, members[kind.pipelines], numbers))
        routes.append(np.tile(at * stages + np.arange(stages), (size, 1)))
        turns.append(row)
        hops.append(np.tile(units.ticks(kind.hop_s), (size, 1)))
        first_row += size
    num_hosts = len(used) * stages
    hosts = fleet.hosts(
        stage=np.tile(np.arange(stages), len(used)),
        worker=np.arange(num_hosts),
        speed=np.concatenate([kind.speed for kind in used]),
        limit=np.concatenate([kind.limit for kind in used]),
    )
    template = Template(
        hosts=hosts,
        route=np.concatenate(routes),
        hops=np.concatenate(hops),
        turns=np.concatenate(turns),
        tails=fleet.tails(),
        fusing_pays=fleet.fusing_pays,
        staggered=fleet.problem.staggered,
    )
    return Routing("relabelled pipelines", template, tuple(groups))
