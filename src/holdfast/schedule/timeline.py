"""Durations in, start and end times, bubbles and the steady period out; and what no order can beat.

Workers follow their lanes step after step; on a worker, R keeps two steps apart. Knows nothing
of how the lanes were made.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.errors import ScheduleError
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Fact, Kind, Op, Shape, makes, needs
from holdfast.schedule.reduction_delay import ExtraLinkS, reduction_delays_s
from holdfast.schedule.schedule import Lane, Schedule
from holdfast.schedule.validity import walk

# Sums of the same durations in another order differ by rounding only.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Pace:
    """How workers and links differ from ``Costs``. Optimizer steps take what they always do."""

    speeds: Mapping[WorkerId, float] = field(default_factory=dict)
    """0.5 = operations take twice as long. Who is not named has speed 1."""
    hop_s: Callable[[int, WorkerId, WorkerId], float] | None = None
    """Boundary (the stage before it), sender, receiver: how long a tensor is under way."""
    extra_link_s: ExtraLinkS | None = None
    """Sender, receiver: how much longer a message of a reduction is under way than usual."""


class Span(NamedTuple):
    step: int
    worker: WorkerId
    op: Op
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """``spans`` begin with all workers idle; ``period_s`` is the time of a step in the long run."""

    spans: tuple[Span, ...]
    period_s: float
    makespan_s: float  # of the first step, from first start to last end
    busy_s: Mapping[WorkerId, float]  # work of one step

    @property
    def bubble_share(self) -> float:
        """Idle share of all workers' time in the steady state."""
        return 1 - sum(self.busy_s.values()) / (self.period_s * len(self.busy_s))


class _Task(NamedTuple):
    """An operation, whom it keeps busy, and what it waits for of other workers.

    ``waits_for``: an earlier task, and the seconds from its end to its result being here.
    ``pause_s``: from the end of the worker's previous task, for its own messages to come back.
    """

    worker: WorkerId
    op: Op
    duration_s: float
    waits_for: tuple[tuple[int, float], ...]
    pause_s: float = 0.0


def timeline(
    schedule: Schedule,
    costs: Costs,
    *,
    steps: int = 2,
    staggered: bool = True,
    pace: Pace | None = None,
    period_s: float | None = None,
) -> Timeline:
    """Run ``steps`` steps of every lane as early as the facts allow. ``period_s``: if known."""
    tasks = _tasks(schedule, costs, staggered, pace or Pace())
    free_s = dict.fromkeys(schedule.lanes, 0.0)
    spans: list[Span] = []
    busy_s = dict.fromkeys(schedule.lanes, 0.0)
    for task in tasks:
        busy_s[task.worker] += task.duration_s
    for step in range(steps):
        ends_s = _run_step(tasks, free_s)
        spans += (
            Span(step, task.worker, task.op, end_s - task.duration_s, end_s)
            for task, end_s in zip(tasks, ends_s, strict=True)
        )
    return Timeline(
        spans=tuple(spans),
        period_s=_period(tasks, schedule) if period_s is None else period_s,
        makespan_s=max(span.end_s for span in spans if span.step == 0),
        busy_s=busy_s,
    )


def steady_period_s(
    schedule: Schedule, costs: Costs, *, staggered: bool = True, pace: Pace | None = None
) -> float:
    """Seconds a step in the long run, exact: the largest mean cycle of the lanes' dependencies."""
    return _period(_tasks(schedule, costs, staggered, pace or Pace()), schedule)


def _tasks(schedule: Schedule, costs: Costs, staggered: bool, pace: Pace) -> list[_Task]:
    """All operations of a step in an order in which each comes after what it waits for."""
    costs.require_stages(schedule.shape.stages)
    listing = _Tasks(schedule, costs, staggered, pace)
    # Nothing in a step waits for a reduction. Those at the end of the lanes are left out of the
    # walk: it would look through all micro-batches again for each of them.
    bare = {worker: _without_last_reductions(lane) for worker, lane in schedule.lanes.items()}
    walked = walk(Schedule(schedule.shape, bare), staggered=staggered)
    if walked.missing:
        worker, (op, fact) = next(iter(walked.missing.items()))
        raise _stuck(worker, op, fact)
    for worker, op in walked.order:
        listing.add(worker, op)
    for worker, lane in schedule.lanes.items():
        for op in lane[len(bare[worker]) :]:
            listing.add(worker, op)
    return listing.tasks


def _without_last_reductions(lane: Lane) -> Lane:
    end = len(lane)
    while end and lane[end - 1].kind is Kind.R:
        end -= 1
    return lane[:end]


def _stuck(worker: WorkerId, op: Op, fact: Fact) -> ScheduleError:
    return ScheduleError(f"worker {worker} never gets to run {op}: nobody makes the {fact}")


class _Tasks:
    """The operations of a step, listed one after another."""

    def __init__(self, schedule: Schedule, costs: Costs, staggered: bool, pace: Pace) -> None:
        self.tasks: list[_Task] = []
        self._schedule, self._shape, self._costs = schedule, schedule.shape, costs
        self._staggered, self._pace = staggered, pace
        self._made_by: dict[Fact, int] = {}
        self._last_weights: dict[int, dict[WorkerId, int]] = {}
        self._late_s: dict[int, Mapping[tuple[WorkerId, WorkerId], float]] = {}

    def add(self, worker: WorkerId, op: Op) -> None:
        duration_s, pause_s = self._costs.duration_s(op), 0.0
        if op.kind is Kind.R:
            waits = tuple(self._reduction_waits(worker, op))
            pause_s = self._lateness_s(op.stage).get((worker, worker), 0.0)
        else:
            waits = tuple(self._waits(worker, op))
            duration_s /= self._pace.speeds.get(worker, 1.0)
        self.tasks.append(_Task(worker, op, duration_s, waits, pause_s))
        self._made_by.update(dict.fromkeys(makes(op), len(self.tasks) - 1))

    def _waits(self, worker: WorkerId, op: Op) -> Iterable[tuple[int, float]]:
        hop_s = self._pace.hop_s
        for fact in needs(op, self._shape):
            maker = self._made_by[fact]
            sender = self.tasks[maker].worker
            if sender != worker:
                boundary = min(fact.stage, op.stage)
                yield (
                    maker,
                    self._costs.link_s if hop_s is None else hop_s(boundary, sender, worker),
                )

    def _reduction_waits(self, worker: WorkerId, op: Op) -> Iterable[tuple[int, float]]:
        """Of each other worker the last task that counts; its own are in lane order anyway."""
        if op.stage not in self._last_weights:
            self._last_weights[op.stage] = self._last_makers(worker, op)
        late_s = self._lateness_s(op.stage)
        for sender, maker in self._last_weights[op.stage].items():
            if sender != worker:
                yield maker, self._costs.link_s + late_s.get((sender, worker), 0.0)

    def _lateness_s(self, stage: int) -> Mapping[tuple[WorkerId, WorkerId], float]:
        if self._pace.extra_link_s is None:
            return {}
        if stage not in self._late_s:
            self._late_s[stage] = reduction_delays_s(
                self._schedule.holders(stage), self._pace.extra_link_s
            )
        return self._late_s[stage]

    def _last_makers(self, worker: WorkerId, op: Op) -> dict[WorkerId, int]:
        last: dict[WorkerId, int] = {}
        for fact in needs(op, self._shape, staggered=self._staggered):
            if fact not in self._made_by:
                raise _stuck(worker, op, fact)
            maker = self._made_by[fact]
            sender = self.tasks[maker].worker
            last[sender] = max(maker, last.get(sender, maker))
        return last


def _run_step(tasks: Sequence[_Task], free_s: dict[WorkerId, float]) -> list[float]:
    """End of every task; moves ``free_s`` to the end of the step."""
    ends_s: list[float] = []
    for task in tasks:
        start_s = free_s[task.worker] + task.pause_s
        for maker, hop_s in task.waits_for:
            start_s = max(start_s, ends_s[maker] + hop_s)
        free_s[task.worker] = start_s + task.duration_s
        ends_s.append(free_s[task.worker])
    return ends_s


def _period(tasks: Sequence[_Task], schedule: Schedule) -> float:
    """A step maps the workers' free times to the next ones by sums and maxima; its growth a step.

    Usually soon periodic: then the growth is read off. If not, Karp's formula over as
    many steps as there are workers gives the same number.
    """
    free_s = dict.fromkeys(schedule.lanes, 0.0)
    history = [tuple(free_s.values())]
    for _ in schedule.lanes:
        _run_step(tasks, free_s)
        history.append(tuple(free_s.values()))
        for lag in range(1, min(4, len(history))):
            growth = [now - was for now, was in zip(history[-1], history[-1 - lag], strict=True)]
            if max(growth) - min(growth) <= _ROUNDING * max(history[-1]):
                return max(growth) / lag
    return _largest_mean_cycle(history)


def _largest_mean_cycle(history: Sequence[Sequence[float]]) -> float:
    last = len(history) - 1
    return max(
        min((history[last][i] - history[k][i]) / (last - k) for k in range(last))
        for i in range(len(history[0]))
    )


@dataclass(frozen=True)
class ScheduleBound:
    """No schedule on home routes has a shorter steady period; ``reason`` says why not."""

    period_s: float
    reason: str


def work_bound_s(shape: Shape, costs: Costs) -> float:
    """The busiest stage's work in one step: its share of micro-batches, then reduce and step."""
    costs.require_stages(shape.stages)
    return max(_stage_work_s(shape, costs, stage) for stage in range(shape.stages))


def _stage_work_s(shape: Shape, costs: Costs, stage: int) -> float:
    each_s = costs.forward_s[stage] + costs.backward_s(stage)
    # A reduction waits for the others' sums: over two steps one message each way.
    message_s = costs.link_s if shape.pipelines > 1 else 0.0
    return shape.microbatches_per_pipeline * each_s + costs.step_s[stage] + message_s


def path_bound_s(shape: Shape, costs: Costs) -> float:
    """All F and B of one stage, between the first way there and the last way back to stage 0."""
    costs.require_stages(shape.stages)
    # At stage 0 the last micro-batch's weight gradient and the step are still to come.
    after_gradient_s = costs.backward_s(0) - costs.soonest_gradient_s(0) + costs.step_s[0]
    there_and_back_s = longest_s = 0.0
    for stage in range(shape.stages):
        both_s = costs.forward_s[stage] + costs.soonest_gradient_s(stage)
        body_s = shape.microbatches_per_pipeline * both_s
        longest_s = max(longest_s, there_and_back_s + body_s + after_gradient_s)
        there_and_back_s += both_s + 2 * costs.link_s
    return longest_s


def ramp_bound_s(shape: Shape, costs: Costs, memory: int | None = None) -> float:
    """Until its first gradient is back a stage can only do the forwards that memory admits."""
    costs.require_stages(shape.stages)
    admitted = shape.microbatches_per_pipeline
    if memory is not None:
        admitted = min(admitted, memory)
    longest_s = round_trip_s = 0.0
    for stage in reversed(range(shape.stages)):
        forward_s = costs.forward_s[stage]
        idle_s = max(0.0, forward_s + round_trip_s - admitted * forward_s)
        longest_s = max(longest_s, _stage_work_s(shape, costs, stage) + idle_s)
        round_trip_s += forward_s + costs.soonest_gradient_s(stage) + 2 * costs.link_s
    return longest_s


def barrier_bound_s(shape: Shape, costs: Costs) -> float:
    """With a global optimizer stage 0 cannot go on before the last stage has all its gradients."""
    costs.require_stages(shape.stages)
    way_there_s = longest_s = 0.0
    for stage in range(shape.stages):
        each_s = costs.forward_s[stage] + costs.backward_s(stage)
        work_s = shape.microbatches_per_pipeline * each_s
        longest_s = max(longest_s, way_there_s + work_s + costs.step_s[0])
        way_there_s += costs.forward_s[stage] + costs.link_s
    return longest_s


def bound(
    shape: Shape, costs: Costs, memory: int | None = None, *, staggered: bool = True
) -> ScheduleBound:
    """The largest of the bounds. On a tie the simpler reason is given."""
    bounds = [
        ScheduleBound(work_bound_s(shape, costs), "the work of the busiest stage"),
        ScheduleBound(
            path_bound_s(shape, costs), "the way of a micro-batch through all stages and back"
        ),
        ScheduleBound(
            ramp_bound_s(shape, costs),
            "too few micro-batches to fill the wait for a first gradient",
        ),
        ScheduleBound(
            ramp_bound_s(shape, costs, memory),
            f"memory: {memory} micro-batches in flight cannot fill the wait for a first gradient",
        ),
    ]
    if not staggered:
        bounds.append(
            ScheduleBound(barrier_bound_s(shape, costs), "the global optimizer's barrier")
        )
    best = bounds[0]
    for other in bounds[1:]:
        if other.period_s > best.period_s * (1 + _ROUNDING):
            best = other
    return best
