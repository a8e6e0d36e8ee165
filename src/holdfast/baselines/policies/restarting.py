"""Policies without pipelines that change: whole replicas are dropped, or all start again.

torchft, restarts from checkpoints as CheckFreq takes them, Elastic Horovod, spares.
"""

from collections import Counter
from dataclasses import dataclass
from math import ceil, inf, isinf

from typing_extensions import override

from holdfast.baselines.policies import shared
from holdfast.baselines.policies.constants import TINY, PolicyConstants, constant
from holdfast.baselines.policies.policy import (
    Change,
    Policy,
    Reaction,
    Saving,
    StopRule,
    Stretch,
    WorkLost,
)


@dataclass(frozen=True)
class DroppingConstants(PolicyConstants):
    detect_s: float = constant(5.06, "measured with torchft: a survivor goes on after 5.06 s")
    regroup_s: float = constant(60.0, "a guess: a replica group is launched anew from what is left")
    heal_bytes_s: float = constant(
        0.13e9, "measured with torchft: 400 MB of state stop the others for 3 s; never slower"
    )
    save_overhead: float = constant(
        0.005, "a choice, as for Holdfast: a checkpoint is seldom needed", above=TINY
    )


class DroppingPolicy(Policy):
    name = "dropping"
    title = "Dropping pipelines (torchft)"
    leaves_out = "time-outs of a healthy group (31 s in 2 of 5 kills, measured), its step overhead"
    constants_type = DroppingConstants
    _pipelines = 0

    @property
    def _own(self) -> DroppingConstants:
        assert isinstance(self._given, DroppingConstants)
        return self._given

    @override
    def saving(self, period_s: float) -> Saving:
        return shared.saved_within(self.job, period_s, self._own.save_overhead)

    def _slowest(self) -> float:
        return min(self.crew.speeds.values(), default=1.0)

    def _pace_s(self, pipelines: int) -> float:
        return self.paces.whole_pipelines_s(pipelines, self._slowest())

    @override
    def first(self) -> Reaction:
        self._pipelines = len(self.crew) // self.job.shape.stages
        return Reaction(period_s=self._pace_s(self._pipelines))

    @override
    def after(self, change: Change) -> Reaction:
        stages, own = self.job.shape.stages, self._own
        sizes = Counter(worker // stages for worker in self.crew.speeds)
        whole = sum(size == stages for size in sizes.values())
        before, self._pipelines = self._pipelines, len(self.crew) // stages
        if not self._pipelines:
            return self.cannot("no whole pipeline is left")
        period_s = self._pace_s(self._pipelines)
        if not before or (not whole and change.lost):
            return Reaction(
                period_s=period_s,
                pause_s=shared.restart_s(self.job),
                work_lost=WorkLost.SINCE_CHECKPOINT,
            )
        if not change.lost and self._pipelines == before:
            return Reaction(period_s=period_s)
        rate = max(own.heal_bytes_s, min(self.job.link_bytes_s, 1e9))
        heal_s = self.job.state_a_gpu / rate if self._pipelines > whole or change.came else 0.0
        few_s = self._pace_s(max(min(whole, before), 1))
        return Reaction(
            period_s=period_s,
            pause_s=(own.detect_s if change.lost else 0.0) + heal_s,
            work_lost=WorkLost.STEP if change.lost else WorkLost.NOTHING,
            meanwhile=(Stretch(own.regroup_s, few_s),) if few_s > period_s else (),
            interrupted=StopRule.GOES_ON,
        )


@dataclass(frozen=True)
class RestartConstants(PolicyConstants):
    restart_factor: float = constant(1.0, shared.RESTART)
    save_overhead: float = constant(0.035, "CheckFreq: checkpoints within 3.5 %", above=TINY)


class RestartPolicy(Policy):
    """Everyone stops, and those that are left start from the last checkpoint."""

    name = "restart"
    title = "Restart from checkpoint (CheckFreq)"
    leaves_out = "queues for machines, storage that many load from at once"
    constants_type = RestartConstants
    _pipelines = 0

    @property
    def _own(self) -> RestartConstants:
        assert isinstance(self._given, RestartConstants)
        return self._given

    @override
    def saving(self, period_s: float) -> Saving:
        return shared.saved_within(self.job, period_s, self._own.save_overhead)

    def _period_s(self) -> float:
        slowest = min(self.crew.speeds.values(), default=1.0)
        return self.paces.whole_pipelines_s(self._pipelines, slowest)

    @override
    def first(self) -> Reaction:
        self._pipelines = len(self.crew) // self.job.shape.stages
        return Reaction(period_s=self._period_s())

    @override
    def after(self, change: Change) -> Reaction:
        before, self._pipelines = self._pipelines, len(self.crew) // self.job.shape.stages
        if not self._pipelines:
            return self.cannot("no whole pipeline is left")
        pause_s = shared.restart_s(self.job) * self._own.restart_factor
        if change.lost:
            return Reaction(
                period_s=self._period_s(), pause_s=pause_s, work_lost=WorkLost.SINCE_CHECKPOINT
            )
        if self._pipelines > before:
            return Reaction(period_s=self._period_s(), pause_s=pause_s)
        return Reaction(period_s=self._period_s())


@dataclass(frozen=True)
class HorovodConstants(PolicyConstants):
    reset_s: float = constant(
        25.0, "Lazarus: 10-20 s until NCCL gives up, 5-15 s for new groups; Horovod not measured"
    )
    commit_steps: float = constant(1.0, "a commit in memory after every step, at no cost: kind")


class HorovodPolicy(Policy):
    """Data parallel only: every worker has the whole model."""

    name = "horovod"
    title = "Elastic Horovod"
    leaves_out = (
        "what a commit costs; it runs only where the whole model fits on a worker, and reduces "
        "gradients during the last backward"
    )
    constants_type = HorovodConstants
    _running = False

    @property
    def _own(self) -> HorovodConstants:
        assert isinstance(self._given, HorovodConstants)
        return self._given

    def _period_s(self) -> float:
        if self.paces.least_depth() != 1 or not len(self.crew):
            return inf
        share = ceil(self.job.shape.microbatches / len(self.crew))
        costs = self.job.costs
        hidden_s = min(sum(costs.fused_s), max(costs.step_s) * self.job.shape.stages)
        return (self.paces.line_s(1, share) - hidden_s) / min(self.crew.speeds.values())

    @override
    def saving(self, period_s: float) -> Saving:
        return Saving(max(int(self._own.commit_steps), 1), 0.0)

    @override
    def first(self) -> Reaction:
        period_s = self._period_s()
        self._running = period_s < inf
        return Reaction(period_s=period_s, reason="" if self._running else "does not fit")

    @override
    def after(self, change: Change) -> Reaction:
        period_s = self._period_s()
        if isinf(period_s):
            return self.cannot("the model does not fit on a worker")
        if not (change.lost or change.came):
            return Reaction(period_s=period_s)
        lost = WorkLost.SINCE_CHECKPOINT if change.lost else WorkLost.NOTHING
        return Reaction(period_s=period_s, pause_s=self._own.reset_s, work_lost=lost)


@dataclass(frozen=True)
class SparesConstants(PolicyConstants):
    spare_share: float = constant(1 / 16, "a choice: workers that wait, at least a pipeline's")
    swap_s: float = constant(20.0, "TrainMover: about 20 s at 1,024 GPUs; DeadPool: below 40 s")
    save_overhead: float = constant(
        0.005, "a choice, as for Holdfast: a checkpoint is seldom needed", above=TINY
    )


class SparesPolicy(Policy):
    """Some workers wait; each takes the place of one that is lost. Without one all wait."""

    name = "spares"
    title = "Static, with spares"
    leaves_out = "fewer pipelines when spares run out: it stands then, as a fixed layout must"
    constants_type = SparesConstants
    _running = False

    @property
    def _own(self) -> SparesConstants:
        assert isinstance(self._given, SparesConstants)
        return self._given

    @property
    def _pipelines(self) -> int:
        stages, workers = self.job.shape.stages, self.job.num_workers
        spare_pipelines = max(ceil(workers * self._own.spare_share / stages), 1)
        return max(self.job.shape.pipelines - spare_pipelines, 1)

    @override
    def saving(self, period_s: float) -> Saving:
        return shared.saved_within(self.job, period_s, self._own.save_overhead)

    def _period_s(self) -> float:
        if len(self.crew) < self._pipelines * self.job.shape.stages:
            return inf
        slowest = min(self.crew.speeds.values())
        return self.paces.whole_pipelines_s(self._pipelines, slowest)

    @override
    def first(self) -> Reaction:
        period_s = self._period_s()
        self._running = period_s < inf
        return Reaction(period_s=period_s)

    @override
    def after(self, change: Change) -> Reaction:
        was, period_s = self._running, self._period_s()
        self._running = period_s < inf
        if not self._running:
            return self.cannot("no spare is left")
        if not was:
            return Reaction(period_s=period_s, pause_s=shared.restart_s(self.job))
        if not change.lost:
            return Reaction(period_s=period_s)
        return Reaction(
            period_s=period_s,
            pause_s=self._own.swap_s,
            work_lost=WorkLost.STEP,
            interrupted=StopRule.GOES_ON,
        )
