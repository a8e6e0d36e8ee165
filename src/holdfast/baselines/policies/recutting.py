"""Policies that give the layers to other workers after a change.

Oobleck's templates, Varuna's morphing, ElasWave's borders, and Chameleon, which chooses.
"""

from collections import Counter
from dataclasses import dataclass
from math import ceil, inf, isinf

from typing_extensions import override

from holdfast.baselines.policies import shared
from holdfast.baselines.policies.constants import TINY, PolicyConstants, constant
from holdfast.baselines.policies.policy import Change, Policy, Reaction, Saving, WorkLost
from holdfast.baselines.policies.their_restarts import AS_SIMULATED, JOINS_WAIT, TheirRestarts

_REFERENCE_BYTES = 6.7e9 * 16 / 8  # TrainMover's 6.7B, over 8 stages


@dataclass(frozen=True)
class OobleckConstants(PolicyConstants):
    regroup_s: float = constant(
        25.0, "Lazarus: 10-20 s until NCCL gives up, 5-15 s for new groups; the middle"
    )
    lose_copy_s: float = constant(
        32.0, "TrainMover: 57 s to remove a machine, 6.7B on 32 GPUs; grows with the state a GPU"
    )
    join_copy_s: float = constant(
        75.0, "TrainMover: over 100 s to add a machine, 6.7B on 32 GPUs; grows likewise"
    )
    joins_wait: float = constant(0.0, JOINS_WAIT)
    as_simulated: float = constant(0.0, AS_SIMULATED)
    save_overhead: float = constant(
        0.005, "a choice, as for Holdfast: a checkpoint is seldom needed", above=TINY
    )


class OobleckPolicy(Policy):
    name = "oobleck"
    title = "Oobleck"
    leaves_out = (
        "the real templates (pipelines are cut evenly), tied embeddings, and that it was not run "
        "above 32 GPUs: its templates take too long there"
    )
    constants_type = OobleckConstants
    _running = False

    @property
    def _own(self) -> OobleckConstants:
        assert isinstance(self._given, OobleckConstants)
        return self._given

    def _period_s(self) -> float:
        sizes = Counter(worker // self.job.shape.stages for worker in self.crew.speeds)
        if not sizes:
            return inf
        return self.paces.oobleck_s(list(sizes.values())) / min(self.crew.speeds.values())

    @override
    def saving(self, period_s: float) -> Saving:
        return shared.saved_within(self.job, period_s, self._own.save_overhead)

    @override
    def first(self) -> Reaction:
        period_s = self._paced_s = self._period_s()
        self._running, self._restarts = not isinf(period_s), TheirRestarts()
        return Reaction(period_s=period_s)

    @override
    def after(self, change: Change) -> Reaction | None:
        was, period_s = self._running, self._period_s()
        self._running = not isinf(period_s)
        if isinf(period_s):
            return self.cannot("too few workers for a pipeline")
        own, share = self._own, self.job.state_a_gpu / _REFERENCE_BYTES
        if was and own.joins_wait and not (change.lost or change.stands):
            return None
        if not was:
            return Reaction(period_s=period_s, pause_s=shared.restart_s(self.job))
        if not (change.lost or change.came):
            return Reaction(period_s=period_s)
        copy_s = own.join_copy_s if change.came else own.lose_copy_s
        lost = WorkLost.STEP if change.lost else WorkLost.NOTHING
        stop_s = own.regroup_s + copy_s * share
        reaction = Reaction(period_s=period_s, pause_s=stop_s, work_lost=lost)
        if own.as_simulated:
            number, pace_s, self._paced_s = max(len(change.lost), 1), self._paced_s, period_s
            return self._restarts.begin(number, change, reaction, pace_s)
        return reaction


@dataclass(frozen=True)
class VarunaConstants(PolicyConstants):
    restart_factor: float = constant(1.0, shared.RESTART)
    joins_wait: float = constant(0.0, JOINS_WAIT)
    as_simulated: float = constant(0.0, AS_SIMULATED)
    loses: float = constant(
        1.0, "1: steps since the checkpoint; 0: the step, as Oobleck's simulator runs small models"
    )
    checkpoint_steps: float = constant(10.0, "Oobleck's simulator of Varuna: every 10 iterations")
    save_overhead: float = constant(
        0.035, "or less often, if that costs more than 3.5 %", above=TINY
    )


class VarunaPolicy(Policy):
    name = "varuna"
    title = "Varuna-like morphing"
    leaves_out = "Varuna's own schedule (1F1B stands for it), uploads of checkpoints"
    constants_type = VarunaConstants
    _running = False

    @property
    def _own(self) -> VarunaConstants:
        assert isinstance(self._given, VarunaConstants)
        return self._given

    def _period_s(self) -> float:
        least = self.paces.least_depth()
        if not least or not len(self.crew):
            return inf
        return self.paces.best_layout_s(len(self.crew), least) / min(self.crew.speeds.values())

    @override
    def saving(self, period_s: float) -> Saving:
        save_s = self.job.state_a_gpu / self.job.disk_bytes_s
        cheap = ceil(save_s / (self._own.save_overhead * period_s))
        return Saving(max(int(self._own.checkpoint_steps), cheap, 1), save_s)

    @override
    def first(self) -> Reaction:
        period_s = self._paced_s = self._period_s()
        self._running, self._restarts = not isinf(period_s), TheirRestarts()
        return Reaction(period_s=period_s)

    @override
    def after(self, change: Change) -> Reaction | None:
        period_s = self._period_s()
        if isinf(period_s):
            self._running = False
            return self.cannot("too few workers for the model")
        own = self._own
        if self._running and own.joins_wait and not (change.lost or change.stands):
            return None
        if self._running and not (change.lost or change.came):
            return Reaction(period_s=period_s)
        self._running = True
        save_s = self.job.state_a_gpu / self.job.disk_bytes_s
        in_time = not change.lost or change.notice_s >= save_s
        stop_s = shared.restart_s(self.job) * own.restart_factor + (save_s if in_time else 0.0)
        lost = WorkLost.SINCE_CHECKPOINT if own.loses else WorkLost.STEP
        reaction = Reaction(
            period_s=period_s, pause_s=stop_s, work_lost=WorkLost.NOTHING if in_time else lost
        )
        if own.as_simulated:
            number, pace_s, self._paced_s = max(len(change.lost), 1), self._paced_s, period_s
            return self._restarts.begin(number, change, reaction, pace_s)
        return reaction


@dataclass(frozen=True)
class ElaswaveConstants(PolicyConstants):
    regroup_s: float = constant(1.0, "ElasWave: communicators in less than 1 s, 96 NPUs")
    shown_copy: float = constant(0.49, "ElasWave: 51 % less time for migration; the rest stops all")
    save_overhead: float = constant(
        0.005, "a choice, as for Holdfast: a checkpoint is seldom needed", above=TINY
    )


class ElaswavePolicy(Policy):
    name = "elaswave"
    title = "ElasWave"
    leaves_out = "higher clock rates against bubbles, sharded optimizer states, detection"
    constants_type = ElaswaveConstants
    _running = False

    @property
    def _own(self) -> ElaswaveConstants:
        assert isinstance(self._given, ElaswaveConstants)
        return self._given

    def _period_s(self) -> float:
        stages = self.job.shape.stages
        least, more = divmod(len(self.crew), stages)
        if not least:
            return inf
        counts = [least + (stage < more) for stage in range(stages)]
        return self.paces.recut_s(counts) / min(self.crew.speeds.values())

    @override
    def saving(self, period_s: float) -> Saving:
        return shared.saved_within(self.job, period_s, self._own.save_overhead)

    @override
    def first(self) -> Reaction:
        period_s = self._period_s()
        self._running = not isinf(period_s)
        return Reaction(period_s=period_s)

    @override
    def after(self, change: Change) -> Reaction:
        was, period_s = self._running, self._period_s()
        self._running = not isinf(period_s)
        if isinf(period_s):
            return self.cannot("fewer workers than stages")
        if not was:
            return Reaction(period_s=period_s, pause_s=shared.restart_s(self.job))
        if not (change.lost or change.came):
            return Reaction(period_s=period_s)
        pause_s = self._own.regroup_s + self._own.shown_copy * self.job.copy_s
        lost = WorkLost.STEP if change.lost else WorkLost.NOTHING
        return Reaction(period_s=period_s, pause_s=pause_s, work_lost=lost)
