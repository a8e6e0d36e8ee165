"""What a run's processes took, beside what its operations did: read from its events.

Nothing is fitted: each row holds what was seen, as quantiles, and a simulation draws from it.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.schedule.operation import Kind, Op, Shape, makes, needs, parse_op

ROWS = {
    "link": "from the end of an operation to the start of the one that waited for its result",
    "gap": "between two operations of a worker of which the second waits for nobody",
    "turn": "from the end of a reduction to the first operation of the next step, at stage 0",
    "death": "from a kill until the coordinator knows",
    "change": "from the last operation that was stopped to the first of the new lanes",
    "start": "from the order to start a process until it is there",
    "build": "from the last worker that is there to the start of training",
    "replay": "of a replay, beside its operations",
    "benchmark": "of a worker, when a step begins, if the coordinator asks for one",
    "probe": "of links between workers, when a step begins, in the same way",
    "trial": "of the planner, for one of the orders that it tries",
}
_QUANTILES = 40
_FEW = 20
_WARM_STEPS = 7  # the first ones compile, connect, and have benchmarks


@dataclass(frozen=True)
class RecordedTimes:
    """Seconds by row: a name of ``ROWS``, or stage and kind of an operation (``0F``)."""

    rows: Mapping[str, tuple[float, ...]]

    def draw_s(self, name: str, dice: random.Random, usual_s: float = 0.0) -> float:
        row = self.rows.get(name)
        return dice.choice(row) if row else usual_s

    def operation_s(self, op: Op, dice: random.Random) -> float | None:
        """A backward that was only seen whole, or only in halves, is made of what was seen."""
        rows, stage = self.rows, op.stage
        if (row := rows.get(f"{stage}{op.kind.name}")) is not None:
            return dice.choice(row)
        if op.kind is Kind.BW and f"{stage}B" in rows and f"{stage}W" in rows:
            return dice.choice(rows[f"{stage}B"]) + dice.choice(rows[f"{stage}W"])
        if op.kind in (Kind.B, Kind.W) and f"{stage}BW" in rows:
            return dice.choice(rows[f"{stage}BW"]) / 2
        return None

    def usual_s(self, name: str) -> float:
        row = self.rows.get(name)
        return median(row) if row else 0.0


class _Ran(NamedTuple):
    worker: str
    step: int
    op: Op
    start_s: float
    end_s: float


def warm_steps(shape: Shape) -> int:
    """Before them workers connect and have benchmarks, and links are measured: a round a step."""
    return max(_WARM_STEPS, shape.pipelines * shape.stages)


def measured_times(source: str, recorded: Iterable[events.Event]) -> RecordedTimes:
    """Of the last launch in these events; ``source`` is for messages."""
    seen = list(recorded)
    starts = [at for at, event in enumerate(seen) if isinstance(event, events.RunStarted)]
    if not starts:
        raise ConfigError(f"{source}: no run has started there: expected a run's directory")
    started = seen[starts[-1]]
    assert isinstance(started, events.RunStarted)
    shape = Shape(started.pipelines, started.stages, started.microbatches)
    warm = warm_steps(shape)
    calm = list(_calm(seen[starts[-1] :], started.first_step + warm))
    ran = [one for event in calm for one in _operations_of(event)]
    if not ran:
        raise ConfigError(f"{source}: expected more than {warm} steps before the first failure")
    rows = _operations(ran) | _between(ran, shape, _moved_s(calm))
    usual_s = median(rows["turn"]) if rows["turn"] else 0.0
    early = _calm(seen[starts[-1] :], started.first_step + _WARM_STEPS)
    rows["probe"] = _probes_s([event for event in early if event.step < warm], usual_s)
    rows["build"] = [started.at_s - _last_ready_s(seen[: starts[-1]], started.at_s)]
    rows |= _of_changes(seen[starts[-1] :], rows, shape)
    return RecordedTimes({name: _quantiles(row) for name, row in rows.items() if row})


def _calm(seen: Sequence[events.Event], from_step: int) -> Iterator[events.WorkerStep]:
    """Until something happens."""
    for event in seen:
        if isinstance(event, events.FaultFired | events.WorkerLost | events.Recovered):
            return
        if isinstance(event, events.WorkerStep) and event.step >= from_step:
            yield event


def _operations_of(event: events.WorkerStep) -> Iterator[_Ran]:
    for text, start_s, end_s in event.ops:
        yield _Ran(event.worker, event.step, parse_op(text), start_s, end_s)


def _moved_s(calm: Iterable[events.WorkerStep]) -> list[float]:
    """Medians of tensors that were under way, by receiver, sender and step."""
    return [max(row[4], 0.0) for event in calm for row in event.transfers if row[1] != "probe"]


def _probes_s(early: Iterable[events.WorkerStep], usual_s: float) -> list[float]:
    """What is more between two steps while links are measured: in each step, the mean of stage 0,
    as all send at once and wait for each other."""
    found: dict[int, list[float]] = defaultdict(list)
    lanes: dict[str, list[_Ran]] = defaultdict(list)
    for event in early:
        lanes[event.worker] += _operations_of(event)
    pairs = [pair for lane in lanes.values() for pair in pairwise(sorted(lane, key=_start_s))]
    for before, after in pairs:
        if before.op.kind is Kind.R and after.op.stage == 0 and after.op.kind is Kind.F:
            found[after.step].append(max(after.start_s - before.end_s - usual_s, 0.0))
    return [fmean(row) for row in found.values()]


def _start_s(one: _Ran) -> float:
    return one.start_s


def _operations(ran: Iterable[_Ran]) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = defaultdict(list)
    for one in ran:
        if one.op.kind is not Kind.R:
            rows[f"{one.op.stage}{one.op.kind.name}"].append(one.end_s - one.start_s)
    return dict(rows)


def _between(ran: Sequence[_Ran], shape: Shape, moved_s: list[float]) -> dict[str, list[float]]:
    """What lies between operations: links, gaps, turns, and what a reduction takes for itself.

    Where hardly anybody waits for a result a link is what tensors were under way, ``moved_s``.
    """
    rows: dict[str, list[float]] = {"link": [], "gap": [], "turn": []}
    made_s = {(one.step, one.op): one.end_s for one in ran}
    lanes: dict[str, list[_Ran]] = defaultdict(list)
    for one in sorted(ran, key=_start_s):
        lanes[one.worker].append(one)
    for lane in lanes.values():
        for before, after in pairwise(lane):
            _put_between(rows, before, after, made_s, shape)
    if len(rows["link"]) < _FEW:
        rows["link"] = moved_s
    link_s = median(rows["link"]) if rows["link"] else 0.0
    return rows | _reductions(ran, link_s)


def _put_between(
    rows: dict[str, list[float]],
    before: _Ran,
    after: _Ran,
    made_s: Mapping[tuple[int, Op], float],
    shape: Shape,
) -> None:
    if after.op.kind is Kind.R:
        return
    if before.op.kind is Kind.R:
        if after.op.stage == 0 and after.op.kind is Kind.F:
            rows["turn"].append(after.start_s - before.end_s)
        return
    came_s = [
        made_s[after.step, maker]
        for maker in _makers(after.op, shape)
        if (after.step, maker) in made_s
    ]
    if not came_s:
        rows["gap"].append(after.start_s - before.end_s)
    elif max(came_s) > before.end_s:
        rows["link"].append(max(after.start_s - max(came_s), 0.0))


def _makers(op: Op, shape: Shape) -> list[Op]:
    """Operations of other stages whose result it needs, in any form."""
    found = []
    for fact in needs(op, shape):
        if fact.stage != op.stage:
            kinds = (Kind.F,) if fact.what == "activation" else (Kind.B, Kind.BW)
            found += [Op(fact.stage, kind, fact.microbatch) for kind in kinds]
    return found


def _reductions(ran: Iterable[_Ran], link_s: float) -> dict[str, list[float]]:
    """From the last holder that begins to each end, without the two rounds of messages."""
    groups: dict[tuple[int, int], list[_Ran]] = defaultdict(list)
    for one in ran:
        if one.op.kind is Kind.R:
            groups[one.step, one.op.stage].append(one)
    rows: dict[str, list[float]] = defaultdict(list)
    for (_, stage), group in groups.items():
        last_s, rounds = max(one.start_s for one in group), 2 * (len(group) > 1)
        own_s = (one.end_s - last_s - rounds * link_s for one in group)
        rows[f"{stage}R"] += [max(seconds, 0.0) for seconds in own_s]
    return dict(rows)


def _last_ready_s(seen: Iterable[events.Event], usual_s: float) -> float:
    return max((e.at_s for e in seen if isinstance(e, events.WorkerReady)), default=usual_s)


def _of_changes(
    seen: Sequence[events.Event], rows: Mapping[str, list[float]], shape: Shape
) -> dict[str, list[float]]:
    """If the run had any: a death, a process that was started, a replay."""
    found: dict[str, list[float]] = {"death": [], "change": [], "start": [], "replay": []}
    ordered_s: dict[str, float] = {}
    began: events.ReplayBegan | None = None
    rebuilds = False  # then all wait for that
    for event in seen:
        match event:
            case events.WorkerReplaced():
                ordered_s[event.worker] = event.at_s
            case events.WorkerReady() if event.worker in ordered_s:
                found["start"].append(event.at_s - ordered_s.pop(event.worker))
            case events.Recovered() if event.cause == "death":
                found["death"].append(event.notice_s - event.fault_s)
                if not rebuilds:
                    found["change"] += _change_s(seen, event, shape)
            case events.ReplayBegan():
                began = event
            case events.StageRebuilt():
                rebuilds = True
                if began is not None:
                    beside_s = event.took_s - _operations_s(event, began, rows)
                    found["replay"].append(max(beside_s, 0.0))
    return found


def _change_s(
    seen: Iterable[events.Event], change: events.Recovered, shape: Shape
) -> Iterator[float]:
    """Of each survivor whose first operation waits for nothing that others make after it."""
    steps = (event for event in seen if isinstance(event, events.WorkerStep))
    survivors = (event for event in steps if event.worker not in change.workers)
    ran = [one for event in survivors for one in _operations_of(event)]
    stopped_s = max((o.end_s for o in ran if o.start_s < change.plan_s), default=change.notice_s)
    later = [one for one in ran if one.start_s >= change.plan_s]
    new = {(one.step, fact) for one in later for fact in makes(one.op)}
    first: dict[str, _Ran] = {}
    for one in sorted(later, key=lambda one: one.start_s):
        first.setdefault(one.worker, one)
    for one in first.values():
        waits = any((one.step, fact) in new for fact in needs(one.op, shape))
        if one.op.kind is Kind.R or not waits:
            yield max(one.start_s - max(stopped_s, change.notice_s), 0.0)


def _operations_s(
    done: events.StageRebuilt, began: events.ReplayBegan, rows: Mapping[str, list[float]]
) -> float:
    """Of those that one of the crew ran after the other; an F, a B and a W count as three."""
    stages = done.replayed
    usual = [median(row) for name, row in rows.items() if name in _names(stages)]
    each_s = sum(usual) / max(len(stages), 1)
    return done.operations / 3 / max(len(began.workers), 1) * each_s


def _names(stages: Iterable[int]) -> set[str]:
    return {f"{stage}{kind}" for stage in stages for kind in ("F", "BW")}


def _quantiles(row: Sequence[float]) -> tuple[float, ...]:
    """Means of equal parts of the ordered row: what is drawn from them has the row's mean."""
    ordered, parts = sorted(row), min(_QUANTILES, len(row))
    edges = [len(row) * part // parts for part in range(parts + 1)]
    return tuple(fmean(ordered[a:b]) for a, b in pairwise(edges))
