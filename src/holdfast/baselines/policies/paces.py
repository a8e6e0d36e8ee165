"""Steady step times of a job, by who is left: asked of the planner and the published models.

Each question is asked once. Equal cases are found by counting: which of a stage's holders died
does not matter to the step time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil, inf
from typing import TypeVar

from holdfast.baselines import published
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.cluster import WorkerId
from holdfast.planner.assign.roles import Move, assign
from holdfast.planner.plan import Plan
from holdfast.planner.planning import best_plan, first_plan
from holdfast.planner.problem import Member, Problem

# Up to so many workers plans are refined, as Holdfast does in the background: a second each.
MOST_REFINED = 32
# Up to here ReCycle deals out micro-batches in its own way; above, our planner does it for ReCycle.
MOST_ROUND_ROBIN = 64
_SPEED_DIGITS = 2

StageCrew = tuple[tuple[float, int], ...]  # speed, holders
_Found = TypeVar("_Found")


class Paces:
    """One for all policies of a comparison."""

    def __init__(self, job: JobCosts) -> None:
        self.job = job
        self._known: dict[tuple[object, ...], object] = {}

    def _once(self, key: tuple[object, ...], find: Callable[[], _Found]) -> _Found:
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]  # type: ignore[return-value]

    # --- any holders a stage: re-routing ---

    def planned_s(self, crews: Sequence[StageCrew], *, settled: bool = True) -> float:
        """Holdfast, everyone where it is; ``settled``: the plan has been refined, too."""
        key = self._alike(crews) if settled else tuple(crews)
        if not all(key):
            return inf
        return self._once(("planned", key, settled), lambda: self._planned(key, settled).period_s)

    def _planned(self, crews: tuple[StageCrew, ...], settled: bool) -> Plan:
        problem = replace(self._problem(crews), may_move=False, two_stages=False)
        if settled and len(problem.members) <= MOST_REFINED:
            return best_plan(problem)
        return first_plan(problem)

    def _alike(self, crews: Sequence[StageCrew]) -> tuple[StageCrew, ...]:
        """Among equal stages it hardly matters which is short of holders: the last ones, say."""
        costs = self.job.costs
        rows = (costs.forward_s, costs.input_s, costs.weight_s, costs.fused_s, costs.step_s)
        if any(len(set(row)) > 1 for row in rows):
            return tuple(crews)
        return tuple(sorted(crews, key=_strength, reverse=True))

    def moved(self, crews: Sequence[StageCrew]) -> tuple[Move, ...]:
        """Who should hold another stage; workers are named by their place in their stage's row."""
        key = tuple(crews)
        return self._once(("moved", key), lambda: assign(self._problem(key)).moves)

    def recycle_s(self, crews: Sequence[StageCrew]) -> float:
        """Re-routing to peers, split backward, staggered optimizer."""
        key = self._alike(crews)
        if not all(key):
            return inf
        return self._once(("recycle", key), lambda: self._recycle(key))

    def _recycle(self, crews: tuple[StageCrew, ...]) -> float:
        problem = self._problem(crews)
        if len(problem.members) <= MOST_ROUND_ROBIN:
            return published.staggered_s(problem)
        return first_plan(replace(problem, may_move=False)).period_s

    def _problem(self, crews: tuple[StageCrew, ...]) -> Problem:
        members = [
            Member(WorkerId(pipeline, stage), stage, speed)
            for stage, crew in enumerate(crews)
            for pipeline, speed in enumerate(_spread(crew))
        ]
        return self.job.problem(tuple(members))

    # --- whole pipelines ---

    @cached_property
    def plain_s(self) -> float:
        """1F1B, nobody missing."""
        return published.fault_free_s(self._problem(self._whole))

    @cached_property
    def healthy_s(self) -> float:
        """Holdfast, nobody missing."""
        return self.planned_s(self._whole)

    @property
    def _whole(self) -> tuple[StageCrew, ...]:
        shape = self.job.shape
        return (((1.0, shape.pipelines),),) * shape.stages

    def whole_pipelines_s(self, pipelines: int, slowest: float = 1.0) -> float:
        """1F1B with so many pipelines, which share the step's micro-batches evenly."""
        if pipelines < 1:
            return inf
        return self._once(("whole", pipelines), lambda: self._dropped(pipelines)) / slowest

    def _dropped(self, pipelines: int) -> float:
        return published.dropped_s(self._problem((((1.0, pipelines),),) * self.job.shape.stages))

    def oobleck_s(self, sizes: Sequence[int]) -> float:
        """Pipelines with so many workers left each, cut anew; the short ones repair others."""
        key = tuple(sorted((size for size in sizes if size), reverse=True))
        return self._once(("oobleck", key), lambda: self._oobleck(key))

    def _oobleck(self, sizes: tuple[int, ...]) -> float:
        stages = self.job.shape.stages
        members = tuple(
            Member(WorkerId(pipeline, stage), stage)
            for pipeline, size in enumerate(sizes)
            for stage in range(stages)
            if (stage - pipeline) % stages < size
        )
        if {member.stage for member in members} != set(range(stages)):
            return inf
        return published.oobleck_s(self.job.problem(members))

    def best_layout_s(self, workers: int, least_depth: int = 1) -> float:
        """Varuna: the best number of stages and pipelines for so many workers."""

        def find() -> float:
            depths = range(least_depth, min(workers, self.job.layers) + 1)
            shares = ((depth, workers // depth) for depth in depths)
            total = self.job.shape.microbatches
            found = (self.line_s(depth, ceil(total / number)) for depth, number in shares)
            return min(found, default=inf)

        return self._once(("layout", workers, least_depth), find)

    def least_depth(self, copies: float = 1.0) -> int:
        """Fewest stages with which so many copies of the state fit; 0: none."""
        job = self.job
        for depth in range(1, job.layers + 1):
            state = sum(job.state_bytes) / depth * copies
            held = sum(job.activation_bytes) / depth * min(depth, 4)
            if state + held <= job.memory_bytes:
                return depth
        return 0

    def recut_s(self, counts: Sequence[int]) -> float:
        """ElasWave: 1F1B with layers moved to the stages that have more holders."""
        key = tuple(sorted(counts))
        if not all(key):
            return inf
        return self._once(("recut", key), lambda: self._recut(key))

    def _recut(self, counts: tuple[int, ...]) -> float:
        return self._recut_formula_s(counts) * self._over_formula(self._recut_formula_s)

    def _over_formula(self, formula: Callable[[tuple[int, ...]], float]) -> float:
        """What the simulator has, links and all, over a formula, with nobody missing."""
        shape = self.job.shape
        return self.plain_s / formula((shape.pipelines,) * shape.stages)

    def _recut_formula_s(self, counts: tuple[int, ...]) -> float:
        job, costs = self.job, self.job.costs
        layers = [1] * len(counts)
        for _ in range(job.layers - len(counts)):
            at = min(range(len(counts)), key=lambda s: (layers[s] + 1) / counts[s])
            layers[at] += 1
        layer_s = (sum(costs.forward_s) + sum(costs.fused_s)) / job.layers
        rows = list(zip(layers, counts, strict=True))
        busiest_s = max(ceil(job.shape.microbatches / n) * own * layer_s for own, n in rows)
        hop_s = costs.link_s + job.boundary_bytes / job.link_bytes_s
        ramp_s = (len(counts) - 1) * (max(layers) * layer_s + 2 * hop_s)
        return busiest_s + ramp_s + max(costs.step_s)

    def line_s(self, depth: int, num_microbatches: int) -> float:
        """1F1B of one pipeline, the model's layers cut evenly into ``depth`` stages."""
        job = self.job
        if depth > job.layers:
            return inf

        def formula_s(depth: int, num_microbatches: int) -> float:
            laid = job.laid_out(1, depth)
            longest = ceil(job.layers / depth) * depth / job.layers  # of an uneven cut
            costs = laid.costs
            each_s = (costs.forward_s[0] + costs.fused_s[0]) * longest
            hop_s = costs.link_s + job.boundary_bytes / job.link_bytes_s
            ramp_s = (depth - 1) * ((costs.forward_s[0] + costs.fused_s[0]) + 2 * hop_s)
            return num_microbatches * each_s + ramp_s + max(costs.step_s)

        def find() -> float:
            own = job.shape.stages, job.shape.microbatches_per_pipeline
            return formula_s(depth, num_microbatches) * self.plain_s / formula_s(*own)

        return self._once(("line", depth, num_microbatches), find)


def crews_of(stages: Sequence[Sequence[float]]) -> tuple[StageCrew, ...]:
    """Speeds of the holders of each stage, counted."""
    return tuple(
        tuple(sorted(Counter(round(speed, _SPEED_DIGITS) for speed in row).items(), reverse=True))
        for row in stages
    )


def _strength(crew: StageCrew) -> tuple[float, StageCrew]:
    return sum(speed * number for speed, number in crew), crew


def _spread(crew: StageCrew) -> list[float]:
    return [speed for speed, number in crew for _ in range(number)]
