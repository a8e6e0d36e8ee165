"""Routes over the whole cluster: home routes with quotas, and helpers that hold a second stage.

A micro-batch keeps to its home pipeline as far as the shares allow; what is over is dealt out
evenly in time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.planner.kernel.fleet import Fleet
from holdfast.planner.kernel.graph import Template
from holdfast.planner.route.routing import Group, Routing
from holdfast.planner.route.shares import shares

_ROUNDING = 1e-9
_NOBODYS = -1


class Share(NamedTuple):
    """What one worker runs of one stage. ``pipeline``: whose micro-batches it takes first."""

    worker: int  # index in the fleet
    stage: int
    pipeline: int
    num: int


def home_routes(fleet: Fleet) -> Routing:
    """Every stage shared out by the speeds of its holders."""
    dealt = [
        share
        for stage, held in enumerate(fleet.by_stage)
        for share in _stage_shares(fleet, stage, shares(_total(fleet), _unit_s(fleet, stage, held)))
    ]
    return _routing("home routes", fleet, dealt)


def joined_routes(fleet: Fleet) -> Routing:
    """As home routes, but gaps are all in the last pipelines, and who has changed over stays.

    So micro-batches cross only where two stages have unlike numbers of holders.
    """
    dealt = []
    for stage, held in enumerate(fleet.by_stage):
        counts = shares(_total(fleet), _unit_s(fleet, stage, held))
        for rank, (index, count) in enumerate(zip(held.tolist(), counts.tolist(), strict=True)):
            dealt.append(Share(index, stage, rank, count))
    return _routing("joined routes", fleet, dealt, stay=True)


def round_robin(fleet: Fleet) -> Routing:
    """The micro-batches of a missing holder go to its peers in turn, whatever their speed."""
    per_pipeline = fleet.problem.shape.microbatches_per_pipeline
    dealt = []
    for stage, held in enumerate(fleet.by_stage):
        counts = np.full(len(held), per_pipeline)
        left = _total(fleet) - int(counts.sum())
        counts += left // len(held)
        counts[: left % len(held)] += 1
        dealt += _stage_shares(fleet, stage, counts)
    return _routing("home routes", fleet, dealt)


def _total(fleet: Fleet) -> int:
    return fleet.problem.shape.microbatches


def _unit_s(fleet: Fleet, stage: int, held: Ints) -> Floats:
    unit_s: Floats = fleet.times.each[stage] / fleet.speed[held]
    return unit_s


def _stage_shares(fleet: Fleet, stage: int, counts: Ints) -> list[Share]:
    """``counts``: of the stage's holders, in the fleet's order of them."""
    held = fleet.by_stage[stage]
    pipelines = _pipelines(fleet, stage)
    return [
        Share(int(index), stage, pipelines[int(index)], int(count))
        for index, count in zip(held, counts, strict=True)
    ]


def _pipelines(fleet: Fleet, stage: int) -> dict[int, int]:
    """Home pipeline of each holder; one that has moved here fills a gap, if there is one."""
    held = sorted(fleet.by_stage[stage].tolist())
    at_home = {
        index: fleet.workers[index].pipeline
        for index in held
        if fleet.workers[index].stage == stage
        and fleet.workers[index].pipeline < fleet.problem.shape.pipelines
    }
    gaps = iter(sorted(set(range(fleet.problem.shape.pipelines)) - set(at_home.values())))
    return {index: at_home[index] if index in at_home else next(gaps, _NOBODYS) for index in held}


def _routing(name: str, fleet: Fleet, dealt: Sequence[Share], *, stay: bool = False) -> Routing:
    """Rows of the template are the micro-batches turn by turn, over all pipelines.

    ``stay``: a micro-batch that has come to another pipeline belongs to it from there on.
    """
    shape, units = fleet.problem.shape, fleet.units
    dealt = sorted(dealt, key=lambda share: (share.worker, share.stage))
    turns, pipelines = np.divmod(np.arange(shape.microbatches), shape.pipelines)
    belongs = pipelines
    route = np.empty((shape.microbatches, shape.stages), np.int64)
    for stage in range(shape.stages):
        of_stage = [(host, share) for host, share in enumerate(dealt) if share.stage == stage]
        route[:, stage] = _deal(belongs, of_stage)
        if stay:
            belongs = np.array([share.pipeline for share in dealt])[route[:, stage]]
    members = np.array([share.worker for share in dealt])
    hosts = fleet.hosts(
        stage=np.array([share.stage for share in dealt]),
        worker=np.unique(members, return_inverse=True)[1].astype(np.int64),
        speed=fleet.speed[members],
        limit=fleet.limit[members],
    )
    template = Template(
        hosts=hosts,
        route=route,
        hops=units.ticks(_hops_s(fleet, members, route)),
        turns=turns,
        tails=fleet.tails(),
        fusing_pays=fleet.fusing_pays,
        staggered=fleet.problem.staggered,
    )
    numbers = pipelines * shape.microbatches_per_pipeline + turns
    return Routing(name, template, (Group(0, 0, members[None], numbers[None]),))


def _hops_s(fleet: Fleet, members: Ints, route: Ints) -> Floats:
    """[micro-batch, stage] to the next stage; nothing to send if the next is the same worker."""
    hops = np.zeros(route.shape)
    for boundary in range(route.shape[1] - 1):
        one, other = members[route[:, boundary]], members[route[:, boundary + 1]]
        hops[:, boundary] = np.where(one == other, 0.0, fleet.times.hop[boundary])
    for (first, second), _link in fleet.problem.links.unusual.items():
        for boundary in range(route.shape[1] - 1):
            for a, b in ((first, second), (second, first)):
                if a in fleet.workers and b in fleet.workers:
                    sender, receiver = members[route[:, boundary]], members[route[:, boundary + 1]]
                    from_a = sender == fleet.workers.index(a)
                    hops[from_a & (receiver == fleet.workers.index(b)), boundary] = (
                        fleet.problem.hop_s(boundary, a, b)
                    )
    return hops


def _deal(pipelines: Ints, of_stage: Sequence[tuple[int, Share]]) -> Ints:
    """The host of every row at one stage."""
    column = np.full(len(pipelines), -1, np.int64)
    over = []
    for host, share in of_stage:
        rows = np.flatnonzero(pipelines == share.pipeline)
        kept = min(share.num, len(rows))
        if kept:
            column[rows[np.arange(kept) * len(rows) // kept]] = host
        over.append(share.num - kept)
    hosts = np.repeat([host for host, _ in of_stage], over)
    when = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in over])
    column[column < 0] = hosts[np.argsort(when, kind="stable")]
    return column


@dataclass(frozen=True)
class _Help:
    worker: int
    stage: int
    count: int


def two_stages(fleet: Fleet, period_s: float) -> Routing | None:
    """Workers of stages with time to spare help at those that lack it, to meet ``period_s``.

    None if nobody needs help, or one second stage a worker does not suffice.
    """
    helpers = _helpers(fleet, period_s)
    if not helpers:
        return None
    dealt = []
    for stage, held in enumerate(fleet.by_stage):
        own = _total(fleet) - sum(help_.count for help_ in helpers if help_.stage == stage)
        room = _room(fleet, stage, held, helpers, period_s)
        if own < 0 or int(room.sum()) < own:
            return None
        dealt += _stage_shares(fleet, stage, _filled(room, own))
    dealt += [Share(h.worker, h.stage, _NOBODYS, h.count) for h in helpers]
    return _routing("two stages on some workers", fleet, dealt)


def _helpers(fleet: Fleet, period_s: float) -> list[_Help]:
    """Neighbours help neighbours, so that time to spare far away comes near step by step.

    Windows of far stages lie apart in time, so nobody helps further away.
    """
    found: list[_Help] = []
    taken: set[int] = set()
    for (donor, stage), lacking_s in sorted(_flows_s(fleet, period_s).items()):
        count = ceil(lacking_s / fleet.times.each[stage] - _ROUNDING)
        for worker in reversed(fleet.by_stage[donor].tolist()):
            most = _most_help(fleet, worker, donor, stage, period_s)
            if count > 0 and most > 0 and worker not in taken:
                taken.add(worker)
                found.append(_Help(worker, stage, min(most, count)))
                count -= min(most, count)
        if count > 0:
            return []
    return found


def _flows_s(fleet: Fleet, period_s: float) -> dict[tuple[int, int], float]:
    """Seconds of work, at speed 1, that a stage's holders do for the one next to it.

    Each stage that lacks time gets it from the nearest ones that have some to spare.
    """
    each_s = fleet.times.each
    spare_s = [_spare(fleet, stage, period_s) * each_s[stage] for stage in range(len(each_s))]
    flows_s = np.zeros(len(spare_s))  # over the boundary to the next stage; negative: back
    for stage in [stage for stage, left_s in enumerate(spare_s) if left_s < 0]:
        for donor in sorted(range(len(spare_s)), key=lambda other: (abs(other - stage), other)):
            moved_s = min(max(spare_s[donor], 0.0), -spare_s[stage])
            if moved_s > 0:
                spare_s[donor] -= moved_s
                spare_s[stage] += moved_s
                way = slice(min(donor, stage), max(donor, stage))
                flows_s[way] += moved_s if donor < stage else -moved_s
    if any(left_s < -_ROUNDING * period_s for left_s in spare_s):
        return {}
    return {
        (boundary, boundary + 1) if flow_s > 0 else (boundary + 1, boundary): abs(float(flow_s))
        for boundary, flow_s in enumerate(flows_s)
        if abs(flow_s) > _ROUNDING * period_s
    }


def _spare(fleet: Fleet, stage: int, period_s: float) -> int:
    """Micro-batches the stage's holders could do beyond their own; negative: what they lack."""
    room_s = (period_s - fleet.times.step[stage]) * (1 + _ROUNDING)
    unit_s = _unit_s(fleet, stage, fleet.by_stage[stage])
    return int(np.floor(room_s / unit_s).sum()) - _total(fleet)


def _most_help(fleet: Fleet, worker: int, donor: int, stage: int, period_s: float) -> int:
    room_s = period_s - _apart_s(fleet, donor, stage) / fleet.speed[worker]
    return int(room_s * fleet.speed[worker] / fleet.times.each[stage] * (1 + _ROUNDING))


def _apart_s(fleet: Fleet, one: int, other: int) -> float:
    """How far the stages' windows lie apart."""
    between = slice(min(one, other), max(one, other))
    return float((fleet.times.kinds[0] + fleet.times.hop)[between].sum())


def _room(fleet: Fleet, stage: int, held: Ints, helpers: Sequence[_Help], period_s: float) -> Ints:
    """Most micro-batches of its own stage each holder can do beside its help elsewhere."""
    busy_s = np.zeros(len(fleet.workers))
    for help_ in helpers:
        away_s = _apart_s(fleet, stage, help_.stage) + help_.count * fleet.times.each[help_.stage]
        busy_s[help_.worker] = away_s / fleet.speed[help_.worker]
    room_s = (period_s - fleet.times.step[stage]) * (1 + _ROUNDING) - busy_s[held]
    room = np.floor(room_s / _unit_s(fleet, stage, held))
    counts: Ints = np.maximum(0, room).astype(np.int64)
    return counts


def _filled(room: Ints, total: int) -> Ints:
    """``total`` over the holders: evenly, nobody above its room."""
    low, high = 0, int(room.max())
    while low < high:
        level = (low + high) // 2
        low, high = (low, level) if np.minimum(room, level).sum() >= total else (level + 1, high)
    counts: Ints = np.minimum(room, low)
    surplus = int(counts.sum()) - total
    at_level = np.flatnonzero(counts == low)[::-1][:surplus]
    counts[at_level] -= 1
    return counts
