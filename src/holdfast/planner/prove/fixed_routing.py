"""Who runs what, how long it takes there in seconds and in a solver's ticks, and when in an order.

Rounds so that what is shown of the ticks holds for the seconds. Knows nothing of the solver.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, gcd, isfinite, lcm
from typing import Generic, NamedTuple, TypeVar

from holdfast.cluster import WorkerId
from holdfast.planner.problem import Problem
from holdfast.schedule import validity
from holdfast.schedule.operation import Fact, Kind, Op, What, makes, needs
from holdfast.schedule.schedule import Lane, Schedule
from holdfast.schedule.timeline import Pace, steady_period_s

NOISE = 1e-9
RANKS = (Kind.F, Kind.B, Kind.BW, Kind.W)
_MOST_TICKS = 4000  # of the longest operation: more make the solver slow, fewer the bound weak
_EXACT = 1e-12  # of the longest: a number this near to a multiple of the unit counts as one

Number = TypeVar("Number", int, float)
Host = tuple[WorkerId, int]  # a worker, as one of those that run operations of a stage


class TickTable(NamedTuple, Generic[Number]):
    """Every duration of a routing: in seconds, or rounded to the solver's ticks."""

    durations: Mapping[Op, Number]
    hops: Mapping[Fact, Number]  # until the neighbour stage's worker has it
    steps: Sequence[Number]  # a stage: its reduction, once everyone's sums are here
    link: Number  # until another worker has one's sums


class SimulatedRun(NamedTuple):
    starts: Mapping[Op, int]
    opened: Mapping[WorkerId, int]  # from when on a worker may work at the step
    period: int


class Scale(NamedTuple):
    """Whole ticks for the solver. Not ``exact``: rounded down, so that no bound is too high.

    Round the starts of a real schedule of period T down to ticks, and its durations: every wait
    is still kept, for floor(a) + floor(b) <= floor(a + b); intervals that did not overlap
    still do not, which keeps lanes and memory; and each worker's step fits in ceil(T) ticks. So
    the solver's optimum is at most ceil(T), and T is more than that optimum less one tick.

    ``exact``: durations are whole units. The period of an order is the mean over a ring of waits
    through 1 .. ``num_windows`` of the windows, so it can be a fraction of a unit, but only with
    such a denominator. Within a tick there is no more than one such fraction.
    """

    unit: float
    exact: bool
    num_windows: int = 1

    @classmethod
    def of(cls, amounts: Iterable[float], num_windows: int = 1) -> "Scale":
        amounts = sorted(set(amounts))
        longest = amounts[-1] or 1.0
        shares = [Fraction(amount / longest).limit_denominator(_MOST_TICKS) for amount in amounts]
        whole = lcm(*(share.denominator for share in shares))
        far = max(abs(a / longest - float(share)) for a, share in zip(amounts, shares, strict=True))
        num_units = whole // (gcd(*(int(share * whole) for share in shares)) or 1)
        scale = cls(longest / num_units, exact=True, num_windows=num_windows)
        if far > _EXACT or num_units * scale.ticks_per_unit > _MOST_TICKS:
            return cls(longest / _MOST_TICKS, exact=False)
        return scale

    @property
    def ticks_per_unit(self) -> int:
        """Fractions with denominators up to n are the same or at least 1 / (n (n - 1)) apart."""
        return max(1, self.num_windows * (self.num_windows - 1))

    @property
    def tick(self) -> float:
        return self.unit / self.ticks_per_unit

    def ticks(self, amount: float) -> int:
        if self.exact:
            return round(amount / self.unit) * self.ticks_per_unit
        return floor(amount / self.unit)

    def bound(self, ticks: float) -> float:
        """For the real durations, from a bound on whole ticks: real optima are above one less."""
        if not isfinite(ticks):
            return 0.0
        above = ceil(ticks - NOISE) - 1
        if not self.exact:
            return above * self.unit
        num = self.ticks_per_unit
        return min((above * n // num + 1) / n for n in range(1, self.num_windows + 1)) * self.unit


class FixedRouting:
    """Of a schedule what stays the same in all orders, and how long a given order takes."""

    def __init__(self, schedule: Schedule, problem: Problem) -> None:
        self.problem, self.shape = problem, schedule.shape
        costs = problem.costs
        # B and then W do all that BW does, with no more memory, unless they take longer.
        self.may_fuse = [
            costs.fused_s[stage] < (costs.input_s[stage] + costs.weight_s[stage]) * (1 - NOISE)
            for stage in range(self.shape.stages)
        ]
        # A hot spare has no operations: it waits for others, and nobody for it.
        lanes = {worker: self._lane(lane) for worker, lane in schedule.lanes.items()}
        self.schedule = Schedule(
            self.shape, {w: lane for w, lane in lanes.items() if lane[0].kind is not Kind.R}
        )
        self.reduces: Mapping[WorkerId, tuple[int, ...]] = {
            worker: tuple(op.stage for op in lane if op.kind is Kind.R)
            for worker, lane in self.schedule.lanes.items()
        }
        self.route: Mapping[tuple[int, int], WorkerId] = {
            (stage, m): self.schedule.route(stage, m)
            for stage in range(self.shape.stages)
            for m in range(self.shape.microbatches)
        }
        self.hosts: tuple[Host, ...] = tuple(
            sorted({(worker, stage) for (stage, _m), worker in self.route.items()})
        )
        self.table = self._seconds()

    def _lane(self, lane: Lane) -> Lane:
        """With its reductions at the end."""
        parts = [part for op in lane if op.kind is not Kind.R for part in self._parts(op)]
        return (*parts, *(op for op in lane if op.kind is Kind.R))

    def _parts(self, op: Op) -> tuple[Op, ...]:
        if op.kind is not Kind.BW or self.may_fuse[op.stage]:
            return (op,)
        return Op(op.stage, Kind.B, op.microbatch), Op(op.stage, Kind.W, op.microbatch)

    def worker(self, op: Op) -> WorkerId:
        assert op.microbatch is not None
        return self.route[op.stage, op.microbatch]

    def others(self, worker: WorkerId, stage: int) -> list[Host]:
        """Whose sums its reduction of the stage waits for."""
        everyone = not self.problem.staggered
        return [host for host in self.hosts if host[0] != worker and (everyone or host[1] == stage)]

    def period_s(self, schedule: Schedule) -> float:
        """Of lanes of this routing, run step after step as early as possible."""
        pace = Pace(
            {member.worker: member.speed for member in self.problem.members}, self.problem.hop_s
        )
        staggered = self.problem.staggered
        return steady_period_s(schedule, self.problem.costs, staggered=staggered, pace=pace)

    def _seconds(self) -> TickTable[float]:
        costs, problem = self.problem.costs, self.problem
        speeds = {member.worker: member.speed for member in problem.members}
        durations: dict[Op, float] = {}
        hops: dict[Fact, float] = {}
        for (stage, m), worker in self.route.items():
            for kind in RANKS:
                if kind is not Kind.BW or self.may_fuse[stage]:
                    op = Op(stage, kind, m)
                    durations[op] = costs.duration_s(op) / speeds[worker]
        for m in range(self.shape.microbatches):
            route = [self.route[stage, m] for stage in range(self.shape.stages)]
            for boundary, (one, other) in enumerate(pairwise(route)):
                there, back = What.ACTIVATION, What.GRADIENT
                hops[Fact(there, boundary, m)] = problem.hop_s(boundary, one, other)
                hops[Fact(back, boundary + 1, m)] = problem.hop_s(boundary, other, one)
        meet = any(self.others(w, s) for w, stages in self.reduces.items() for s in stages)
        return TickTable(durations, hops, costs.step_s, costs.link_s if meet else 0.0)

    def scale(self) -> Scale:
        durations, hops, steps, link = self.table
        amounts = (*durations.values(), *hops.values(), *steps, link)
        return Scale.of(amounts, self._num_windows)

    def ticks(self, scale: Scale) -> TickTable[int]:
        durations, hops, steps, link = self.table
        return TickTable(
            {op: scale.ticks(duration_s) for op, duration_s in durations.items()},
            {fact: scale.ticks(hop_s) for fact, hop_s in hops.items()},
            [scale.ticks(step_s) for step_s in steps],
            scale.ticks(link),
        )

    @property
    def windows(self) -> dict[WorkerId, object]:
        """Who has the same value may start its next step at the same time as the others with it."""
        if self.table.link:
            return {worker: worker for worker in self.reduces}
        if not self.problem.staggered:
            return {worker: self._steps(self.table, worker) for worker in self.reduces}
        return {w: stages[0] if len(stages) == 1 else w for w, stages in self.reduces.items()}

    @property
    def _num_windows(self) -> int:
        """How many a ring of waits passes at most, if it is the slowest.

        Cut a ring where it comes to a reduction of a stage, and join the pieces in another way:
        unless messages are saved, one of the rings that come out is as slow. Of three
        pieces some way to join them saves none, so no stage is passed more than twice.
        """
        each = 2 if self.table.link else 1
        both = sum(len(stages) > 1 for stages in self.reduces.values())
        most = each * self.shape.stages + both if self.problem.staggered else each
        return min(most, len(self.reduces))

    def _steps(self, table: TickTable[Number], worker: WorkerId) -> Number:
        return sum((table.steps[stage] for stage in self.reduces[worker]), start=table.link * 0)

    def _work(self, table: TickTable[Number]) -> dict[Host, Number]:
        durations = table.durations
        work = dict.fromkeys(self.hosts, table.link * 0)
        for (stage, m), worker in self.route.items():
            split = durations[Op(stage, Kind.B, m)] + durations[Op(stage, Kind.W, m)]
            fused = durations.get(Op(stage, Kind.BW, m), split)
            work[worker, stage] += durations[Op(stage, Kind.F, m)] + min(split, fused)
        return work

    def work_bound(self, table: TickTable[Number]) -> float:
        """What the busiest worker has to do in a step; or two that meet, and a message each way.

        Over two steps one waits for the other, and that for this one.
        """
        alone = {worker: self._steps(table, worker) for worker in self.reduces}
        meeting: dict[int, list[Number]] = defaultdict(list)
        for (worker, stage), work in self._work(table).items():
            alone[worker] += work
            meeting[stage].append(work + table.steps[stage])
        if not self.problem.staggered:
            meeting = {0: list(alone.values())}  # everyone meets everyone
        pairs = [sum(sorted(each)[-2:]) / 2 + table.link for each in meeting.values() if each[1:]]
        return max(*alone.values(), *pairs, 0.0)

    def laid_out(self, table: TickTable[int], period: int) -> SimulatedRun:
        """The given order, run in that period; put off only what has to be."""
        order = [(w, op) for w, op in validity.walk(self.schedule).order if op.kind is not Kind.R]
        opened = dict.fromkeys(self.reduces, 0)
        for _ in self.reduces:
            _, last = self._starts(order, table, opened)
            closed = {worker: self._reduced(worker, table, last) for worker in opened}
            opened = {w: max(at, closed[w] - period) for w, at in opened.items()}
        return SimulatedRun(self._starts(order, table, opened)[0], opened, period)

    def _starts(
        self,
        order: Sequence[tuple[WorkerId, Op]],
        table: TickTable[int],
        opened: Mapping[WorkerId, int],
    ) -> tuple[dict[Op, int], dict[Host, int]]:
        """When each operation starts, and when each host has done its last one."""
        starts: dict[Op, int] = {}
        made: dict[Fact, int] = {}
        last: dict[Host, int] = {}
        free = dict(opened)
        for worker, op in order:
            start = free[worker]
            for fact in needs(op, self.shape):
                hop = table.hops[fact] if fact.stage != op.stage else 0
                start = max(start, made[fact] + hop)
            starts[op] = start
            free[worker] = last[worker, op.stage] = start + table.durations[op]
            made.update(dict.fromkeys(makes(op), free[worker]))
        return starts, last

    def _reduced(self, worker: WorkerId, table: TickTable[int], last: Mapping[Host, int]) -> int:
        at = max(end for (who, _stage), end in last.items() if who == worker)
        for stage in self.reduces[worker]:
            here = [last[host] + table.link for host in self.others(worker, stage)]
            at = max([at, *here]) + table.steps[stage]
        return at
