"""The live workers as arrays, by the stage they hold, and the stages' durations as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.cluster import WorkerId
from holdfast.planner.kernel.graph import Hosts, Units
from holdfast.planner.problem import Problem


@dataclass(frozen=True)
class Fleet:
    """Sorted by worker; everyone holds one stage."""

    problem: Problem
    workers: tuple[WorkerId, ...]
    stage: Ints
    speed: Floats
    limit: Floats

    @classmethod
    def of(cls, problem: Problem, stage_of: Mapping[WorkerId, int]) -> "Fleet":
        members = sorted(member for member in problem.members if member.worker in stage_of)
        workers = tuple(member.worker for member in members)
        memory = problem.memory
        limits = [memory.limit_of(worker) for worker in workers] if memory.limits else memory.limit
        return cls(
            problem,
            workers,
            np.array([stage_of[worker] for worker in workers], np.int64),
            np.array([member.speed for member in members], np.float64),
            np.broadcast_to(np.asarray(limits, np.float64), len(workers)),
        )

    @cached_property
    def by_stage(self) -> tuple[Ints, ...]:
        """Indices of each stage's holders, the fastest first, then by worker."""
        return tuple(
            held[np.argsort(-self.speed[held], kind="stable")]
            for held in (
                np.flatnonzero(self.stage == stage) for stage in range(self.problem.shape.stages)
            )
        )

    @cached_property
    def times(self) -> "StageTimes":
        return StageTimes.of(self.problem)

    @cached_property
    def units(self) -> Units:
        # Of what is sure to be run: a part that is dearer than the whole may never be.
        longest_s = float(
            max(self.times.kinds[0].max(), (self.times.each - self.times.kinds[0]).max())
        )
        return Units.of(longest_s, float(self.limit.max()))

    def hosts(self, stage: Ints, worker: Ints, speed: Floats, limit: Floats) -> Hosts:
        """Entries of the kernel's table; ``worker`` counts from 0 without gaps."""
        memory, times, units = self.problem.memory, self.times, self.units
        stages = range(self.problem.shape.stages)
        held = np.array([memory.held_at(s) for s in stages])
        pending = np.array([memory.pending_at(s) for s in stages])
        return Hosts(
            worker=worker,
            stage=stage,
            durations=units.ticks(times.kinds[:, stage] / speed),
            limit=units.limit(limit),
            held=units.grains(held[stage]),
            pending=units.grains(pending[stage]),
        )

    def tails(self) -> Ints:
        """Ticks from a stage's last operation to its next step: a message to its peers, and R."""
        shared = np.array([len(held) > 1 for held in self.by_stage])
        return self.units.ticks(self.times.step + np.where(shared, self.problem.costs.link_s, 0.0))

    @property
    def fusing_pays(self) -> bool:
        _, gradient, weight, fused = self.times.kinds
        return bool((fused < (gradient + weight) * (1 - 1e-9)).any())


@dataclass(frozen=True)
class StageTimes:
    """Seconds at speed 1, an entry a stage."""

    kinds: Floats  # [F, B, W, BW][stage]
    each: Floats  # F and the whole backward of a micro-batch
    soonest: Floats  # from the start of a backward to the gradient for the stage before
    step: Floats
    hop: Floats  # to the next stage, over a usual link; 0 for the last
    least_hop: Floats  # ... over the fastest

    @classmethod
    def of(cls, problem: Problem) -> "StageTimes":
        costs, stages = problem.costs, range(problem.shape.stages)
        costs.require_stages(problem.shape.stages)
        kinds = np.array([costs.forward_s, costs.input_s, costs.weight_s, costs.fused_s])
        backward = np.array([costs.backward_s(stage) for stage in stages])
        hops = [problem.usual_hop_s(stage) for stage in stages[:-1]]
        least = [problem.least_hop_s(stage) for stage in stages[:-1]]
        return cls(
            kinds=kinds,
            each=kinds[0] + backward,
            soonest=np.minimum(kinds[1], kinds[3]),
            step=np.array(costs.step_s),
            hop=np.array([*hops, 0.0]),
            least_hop=np.array([*least, 0.0]),
        )
