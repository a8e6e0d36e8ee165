"""The order of a routing's operations as a question for CP-SAT, and its answer as lanes.

Knows nothing of seconds: durations come as whole ticks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, floor
from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.cluster import WorkerId
from holdfast.planner.prove.fixed_routing import (
    NOISE,
    RANKS,
    FixedRouting,
    Host,
    Scale,
    SimulatedRun,
)
from holdfast.schedule.operation import Fact, Kind, Op, What, makes, needs
from holdfast.schedule.schedule import Schedule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


class SolverModel:
    """The solver's model: a start for every operation, and for every worker's step.

    A backward is one interval that starts at the start of B; where it may be fused, a Boolean
    gives it the length of BW and takes W away.
    """

    def __init__(self, cp: ModuleType, routing: FixedRouting, scale: Scale) -> None:
        self.model: cp_model.CpModel = cp.CpModel()
        self._routing, self._shape = routing, routing.shape
        self._ticks = ticks = routing.ticks(scale)
        # One tick more than needed at times; never one less.
        self.most = ceil(routing.period_s(routing.schedule) / scale.tick * (1 + NOISE))
        least = ceil(routing.work_bound(ticks) * (1 - NOISE))
        self._period = self.model.new_int_var(min(least, self.most), self.most, "period")
        windows = routing.windows
        # In an order run as early as can be, the windows follow each other without a longer gap
        # than a hop; those of a stage overlap.
        longest_hop = max(ticks.hops.values(), default=0)
        self._horizon = len(set(windows.values())) * (self.most + longest_hop)
        # The first operation of all is of stage 0. One window of that stage may as well open at 0.
        first = [worker for worker, stage in routing.hosts if stage == 0]
        self._earliest = 0 if len({windows[worker] for worker in first}) == 1 else -self.most
        self._windows = {window: self._time() for window in windows.values()}
        self._opened = {worker: self._windows[window] for worker, window in windows.items()}
        self.model.add(self._opened[first[0]] == 0)
        self._starts: dict[Op, cp_model.IntVar] = {}
        self._fused: dict[tuple[int, int], cp_model.IntVar] = {}
        self._ends: dict[Fact, cp_model.LinearExpr] = {}
        self._lanes: dict[WorkerId, list[cp_model.IntervalVar]] = defaultdict(list)
        self._reductions: dict[Host, cp_model.LinearExprT] = {}
        self._add_operations()
        self._add_waits()
        self._add_windows()
        self._add_memory()
        self._add_turns()
        self.model.minimize(self._period)
        self._suggest(routing.laid_out(ticks, self.most))

    def limit(self, period: int) -> None:
        self.most = min(self.most, period)
        self.model.add(self._period <= self.most)

    def found(self, solver: "cp_model.CpSolver") -> Schedule:
        starts = {op: solver.value(start) for op, start in self._starts.items()}
        for (stage, m), fused in self._fused.items():
            if solver.value(fused):
                del starts[Op(stage, Kind.W, m)]
                starts[Op(stage, Kind.BW, m)] = starts.pop(Op(stage, Kind.B, m))
        lanes: dict[WorkerId, list[Op]] = defaultdict(list)
        for op in sorted(starts, key=lambda op: (starts[op], RANKS.index(op.kind))):
            lanes[self._routing.worker(op)].append(op)
        for worker, stage in sorted(self._reductions, key=self._turn(solver)):
            lanes[worker].append(Op(stage, Kind.R))
        return Schedule(self._shape, {worker: tuple(ops) for worker, ops in lanes.items()})

    def _turn(self, solver: "cp_model.CpSolver") -> Callable[[Host], tuple[int, int]]:
        """Of two reductions at the same time the first is one that takes none."""
        return lambda host: (solver.value(self._reductions[host]), self._ticks.steps[host[1]])

    def _time(self) -> "cp_model.IntVar":
        return self.model.new_int_var(self._earliest, self._horizon, "")

    def _length(self) -> "cp_model.IntVar":
        return self.model.new_int_var(0, self._horizon - self._earliest, "")

    def _split(self, stage: int, m: int) -> "list[cp_model.LiteralT]":
        """What must hold for W to be an operation of its own; nothing if it always is."""
        fused = self._fused.get((stage, m))
        return [] if fused is None else [~fused]

    def _add_operations(self) -> None:
        model, lengths = self.model, self._ticks.durations
        for (stage, m), worker in self._routing.route.items():
            backward = self._add_backward(stage, m)
            forward, weight = Op(stage, Kind.F, m), Op(stage, Kind.W, m)
            for op in (forward, weight):
                self._starts[op] = start = self._time()
                self._ends[makes(op)[0]] = start + lengths[op]
            is_split = (self._split(stage, m) or [True])[0]
            self._lanes[worker] += [
                model.new_fixed_size_interval_var(self._starts[forward], lengths[forward], ""),
                backward,
                model.new_optional_fixed_size_interval_var(
                    self._starts[weight], lengths[weight], is_split, ""
                ),
            ]
        for lane in self._lanes.values():
            model.add_no_overlap(lane)

    def _add_backward(self, stage: int, m: int) -> "cp_model.IntervalVar":
        lengths, gradient = self._ticks.durations, Fact(What.GRADIENT, stage, m)
        split, fused = lengths[Op(stage, Kind.B, m)], lengths.get(Op(stage, Kind.BW, m))
        start = self._starts[Op(stage, Kind.B, m)] = self._time()
        if fused is None:
            self._ends[gradient] = start + split
            return self.model.new_fixed_size_interval_var(start, split, "")
        is_fused = self._fused[stage, m] = self.model.new_bool_var("")
        end = self._ends[gradient] = self._time()
        return self.model.new_interval_var(start, split + (fused - split) * is_fused, end, "")

    def _add_waits(self) -> None:
        for op, start in self._starts.items():
            for fact in needs(op, self._shape):
                hop = self._ticks.hops[fact] if fact.stage != op.stage else 0
                wait = self.model.add(start >= self._ends[fact] + hop)
                if op.kind is Kind.W and op.microbatch is not None:
                    wait.only_enforce_if(*self._split(op.stage, op.microbatch))

    def _add_windows(self) -> None:
        """All of a worker's step lies between its opening and its next one, a period later."""
        model = self.model
        last = {host: self._time() for host in self._routing.hosts}
        for (stage, m), worker in self._routing.route.items():
            model.add(self._starts[Op(stage, Kind.F, m)] >= self._opened[worker])
            model.add(self._ends[Fact(What.GRADIENT, stage, m)] <= last[worker, stage])
            weight = model.add(self._ends[Fact(What.WEIGHT, stage, m)] <= last[worker, stage])
            weight.only_enforce_if(*self._split(stage, m))
        for worker, stages in self._routing.reduces.items():
            self._add_reductions(worker, stages)
            own = [end for (who, _stage), end in last.items() if who == worker]
            for stage in stages:
                start = self._reductions[worker, stage]
                for end in own:
                    model.add(start >= end)
                for host in self._routing.others(worker, stage):
                    model.add(start >= last[host] + self._ticks.link)

    def _add_reductions(self, worker: WorkerId, stages: Sequence[int]) -> None:
        """A single one may as well end when the next step starts; two are made one by one."""
        model, steps = self.model, self._ticks.steps
        closing = self._opened[worker] + self._period
        if len(stages) == 1:
            self._reductions[worker, stages[0]] = closing - steps[stages[0]]
            return
        lane = []
        for stage in stages:
            start = self._reductions[worker, stage] = self._time()
            model.add(start + steps[stage] <= closing)
            lane.append(model.new_fixed_size_interval_var(start, steps[stage], ""))
        model.add_no_overlap(lane)

    def _add_memory(self) -> None:
        """Amounts rounded down and limits not: as with ticks, the bound stays one."""
        memory = self._routing.problem.memory
        by_host: dict[tuple[WorkerId, int], list[int]] = defaultdict(list)
        for (stage, m), worker in self._routing.route.items():
            by_host[worker, stage].append(m)
        for (worker, stage), numbers in by_host.items():
            held, pending = memory.held_at(stage), memory.pending_at(stage)
            limit = memory.limit_of(worker) * (1 + NOISE)
            if len(numbers) * max(held, pending) > limit:
                scale = Scale.of((held, pending))
                uses = [use for m in numbers for use in self._uses(stage, m)]
                demands = [scale.ticks(held), scale.ticks(pending)] * len(numbers)
                self.model.add_cumulative(uses, demands, floor(limit / scale.tick))

    def _uses(self, stage: int, m: int) -> "list[cp_model.IntervalVar]":
        """From the start of F to the end of B, and from there to the end of W if there is one."""
        model, is_split = self.model, (self._split(stage, m) or [True])[0]
        forward, end = self._starts[Op(stage, Kind.F, m)], self._ends[Fact(What.GRADIENT, stage, m)]
        weight_end = self._ends[Fact(What.WEIGHT, stage, m)]
        return [
            model.new_interval_var(forward, self._length(), end, ""),
            model.new_optional_interval_var(end, self._length(), weight_end, is_split, ""),
        ]

    def _classes(self) -> list[list[int]]:
        """Micro-batches that go the same way: they differ in nothing but their number."""
        classes: dict[tuple[WorkerId, ...], list[int]] = defaultdict(list)
        for m in range(self._shape.microbatches):
            way = (self._routing.route[s, m] for s in range(self._shape.stages))
            classes[tuple(way)].append(m)
        return list(classes.values())

    def _add_turns(self) -> None:
        """Equal micro-batches take turns by number: any order becomes such a one by renaming.

        The W of a fused backward is no operation; its start only carries the turn on.
        """
        lengths = self._ticks.durations
        for numbers in self._classes():
            for stage in range(self._shape.stages):
                for m, then in pairwise(numbers):
                    weight = Op(stage, Kind.W, m)
                    busy = lengths[weight] * (1 - self._fused.get((stage, m), 0))
                    ends = {
                        Kind.F: self._ends[Fact(What.ACTIVATION, stage, m)],
                        Kind.B: self._ends[Fact(What.GRADIENT, stage, m)],
                        Kind.W: self._starts[weight] + busy,
                    }
                    for kind, end in ends.items():
                        self.model.add(self._starts[Op(stage, kind, then)] >= end)

    def _suggest(self, run: SimulatedRun) -> None:
        """Start from the given order."""
        self.model.add_hint(self._period, run.period)
        windows = self._routing.windows
        opened = {windows[worker]: at for worker, at in run.opened.items()}
        zero = next(run.opened[worker] for worker, stage in self._routing.hosts if stage == 0)
        for window, variable in self._windows.items():
            self.model.add_hint(variable, max(self._earliest, opened[window] - zero))
        for op, start in run.starts.items():
            own = Op(op.stage, Kind.B, op.microbatch) if op.kind is Kind.BW else op
            self.model.add_hint(self._starts[own], start - zero)
        for (stage, m), fused in self._fused.items():
            self.model.add_hint(fused, Op(stage, Kind.BW, m) in run.starts)
