"""Policies that keep every live worker: micro-batches of the dead go to those who hold the stage.

Holdfast and ReCycle. Who holds which stage is kept here, and who moves to another one.
"""

from dataclasses import dataclass
from math import inf, isinf

from typing_extensions import override

from holdfast.baselines.policies import shared
from holdfast.baselines.policies.constants import TINY, PolicyConstants, constant
from holdfast.baselines.policies.paces import StageCrew, crews_of
from holdfast.baselines.policies.policy import Change, Policy, Reaction, Saving, Stretch, WorkLost


class _Rerouting(Policy):
    """Keeps the stage of every live worker."""

    _stage_of: dict[int, int]
    _missing: set[int]  # stages that nobody holds the state of, and nobody gets it so far
    _coming: set[int]  # those that somebody is getting

    @override
    def first(self) -> Reaction:
        """At the start every state is made anew wherever it is wanted."""
        stages = self.job.shape.stages
        self._stage_of = {worker: worker % stages for worker in self.crew.speeds}
        self._missing, self._coming = set(), set()
        if not self._fill():
            return self._too_few()
        self._settle()
        return Reaction(period_s=self._period_s(settled=True))

    def _too_few(self) -> Reaction:
        return Reaction(period_s=inf, reason="fewer workers than stages")

    def _rows(self) -> list[list[int]]:
        """Workers of each stage, the fastest first."""
        rows: list[list[int]] = [[] for _ in range(self.job.shape.stages)]
        for worker in sorted(self._stage_of):
            rows[self._stage_of[worker]].append(worker)
        for row in rows:
            row.sort(key=lambda worker: (-self.crew.speeds[worker], worker))
        return rows

    def _crews(self) -> tuple[StageCrew, ...]:
        speeds = self.crew.speeds
        return crews_of([[speeds[worker] for worker in row] for row in self._rows()])

    def _num_held(self) -> int:
        return len(set(self._stage_of.values()))

    def _period_s(self, *, settled: bool) -> float:
        raise NotImplementedError

    def _follow(self, change: Change) -> None:
        if not change.unfinished_s:
            self._coming = set()
        for worker in change.lost:
            self._stage_of.pop(worker, None)
        held = set(self._stage_of.values()) | self._coming
        self._missing |= set(range(self.job.shape.stages)) - held
        counts = [len(row) for row in self._rows()]
        for worker in change.came:
            stage = counts.index(min(counts))
            self._stage_of[worker] = stage
            counts[stage] += 1

    def _begin_to_get(self) -> int:
        """The states that are missing: how many."""
        number, self._coming = len(self._missing), self._coming | self._missing
        self._missing = set()
        return number

    def _fill(self) -> bool:
        """A stage that nobody holds gets one of those that others have most of."""
        rows = self._rows()
        for stage, row in enumerate(rows):
            if not row:
                richest = max(rows, key=len)
                if len(richest) < 2:
                    return False
                row.append(richest.pop())
                self._stage_of[row[0]] = stage
        return True

    def _settle(self) -> int:
        """Everyone moves to where it is needed most; how many did."""
        if self._num_held() < self.job.shape.stages:
            return 0
        rows, moves = self._rows(), self.paces.moved(self._crews())
        for move in moves:
            worker = rows[move.worker.stage][move.worker.pipeline]
            self._stage_of[worker] = move.to_stage
        return len(moves)


@dataclass(frozen=True)
class HoldfastConstants(PolicyConstants):
    detect_s: float = constant(
        1.0, "heartbeat timeout of 1 s; bench/failstop.py: hang_ready_s 0.99 s"
    )
    stop_s: float = constant(0.15, "bench/failstop.py: stall_s 0.159 s with 16 workers")
    stop_a_worker_s: float = constant(
        0.0006, "bench/scale.py: 0.85 s with 1,024 workers, 2.50 s with 4,096, the slower machine"
    )
    over_plan: float = constant(
        1.0,
        "1: as planned; bench/period.py has 1.035, and 1.04 for 1F1B on the same runtime",
        above=TINY,
    )
    slow_steps: float = constant(4.0, "bench/detect.py: median_steps until slowness is told")
    replay_over_model: float = constant(1.3, "bench/recovery.py: a replay of 3.1 s for 2.4 s")
    rebuild_s: float = constant(1.4, "bench/recovery.py: step ended 4.44 s, less the replay")
    save_overhead: float = constant(
        0.005, "a choice: a checkpoint is needed only for lost stages", above=TINY
    )
    logs: float = constant(1.0, "a choice: 1 logs boundaries, so a lost stage is replayed; 0 not")
    move_steps: float = constant(
        1.5, "its protocol: a state is sent when a step ends, who has it joins after the next one"
    )


class HoldfastPolicy(_Rerouting):
    name = "holdfast"
    title = "Holdfast"
    leaves_out = (
        "collectives on GPUs (its stop was measured with its own transport, on CPUs); logs that go "
        "with a machine (recovery.log_copies=1 keeps another copy)"
    )
    constants_type = HoldfastConstants

    @property
    def _own(self) -> HoldfastConstants:
        assert isinstance(self._given, HoldfastConstants)
        return self._given

    @override
    def _period_s(self, *, settled: bool) -> float:
        return self.paces.planned_s(self._crews(), settled=settled) * self._own.over_plan

    @override
    def saving(self, period_s: float) -> Saving:
        return shared.saved_within(self.job, period_s, self._own.save_overhead)

    @override
    def after(self, change: Change) -> Reaction:
        self._follow(change)
        if not self._fill():
            return self._too_few()
        own = self._own
        stop_s = own.stop_s + own.stop_a_worker_s * len(self.crew)
        if change.lost and not change.notice_s:
            stop_s += own.detect_s
        if number := self._begin_to_get():
            return self._rebuilt(stop_s, number)
        now_s = self._period_s(settled=False)
        meanwhile = self._until_noticed(change, now_s)
        self._settle()
        then_s = min(self._period_s(settled=True), now_s)
        if then_s < now_s and not change.speeds:
            meanwhile = self._until_moved(now_s)
        lost = WorkLost.OWN_SHARE if change.lost and not change.notice_s else WorkLost.NOTHING
        stops = bool(change.lost or change.came)
        return Reaction(
            period_s=then_s,
            pause_s=stop_s if stops else 0.0,
            work_lost=lost,
            meanwhile=meanwhile,
        )

    def _until_noticed(self, change: Change, now_s: float) -> tuple[Stretch, ...]:
        if not change.speeds:
            return ()
        slowest = min(self.crew.speeds.values())
        waiting_s = self.paces.healthy_s * self._own.over_plan / slowest
        seconds = self._own.slow_steps * waiting_s
        return (Stretch(seconds, max(waiting_s, now_s), goes_on=False),)

    def _until_moved(self, now_s: float) -> tuple[Stretch, ...]:
        return (Stretch(self.job.copy_s + self._own.move_steps * now_s, now_s),)

    def _rebuilt(self, stop_s: float, number: int) -> Reaction:
        """Stages that nobody held, one after the other: from the log, or back to the checkpoint."""
        own, job = self._own, self.job
        now_s = self._period_s(settled=False)
        moves = self._settle()
        meanwhile = self._until_moved(now_s) if moves else ()
        pause_s = stop_s + own.rebuild_s + job.state_a_gpu / job.disk_bytes_s
        period_s = self._period_s(settled=True)
        if not own.logs:
            lost = WorkLost.SINCE_CHECKPOINT
            return Reaction(period_s=period_s, pause_s=pause_s, work_lost=lost, meanwhile=meanwhile)
        stage_s = max(map(job.costs.backward_s, range(job.shape.stages))) + max(job.costs.forward_s)
        work_s = number * job.shape.microbatches * stage_s
        replay_s = work_s / len(self.crew) * own.replay_over_model
        return Reaction(period_s=period_s, pause_s=pause_s, replay_s=replay_s, meanwhile=meanwhile)


@dataclass(frozen=True)
class RecycleConstants(PolicyConstants):
    floor_1f1b: float = constant(
        1.0, "1: never faster than 1F1B, as its published curve is; 0: as fast as its orders allow"
    )
    reconfigure_s: float = constant(
        2.0, "kind: no dip is to be seen in its curve (2.4 min a point), so at most a few seconds"
    )
    save_overhead: float = constant(
        0.005, "a choice, as for Holdfast: a checkpoint is seldom needed", above=TINY
    )


class RecyclePolicy(_Rerouting):
    name = "recycle"
    title = "ReCycle"
    leaves_out = (
        "its solver (round-robin routes and our search for orders stand for it; from 65 workers "
        "on our planner's routes, which are better), the time to make plans, NCCL groups"
    )
    constants_type = RecycleConstants

    @property
    def _own(self) -> RecycleConstants:
        assert isinstance(self._given, RecycleConstants)
        return self._given

    @override
    def _period_s(self, *, settled: bool) -> float:
        return max(self.paces.recycle_s(self._crews()), self._floor_s())

    def _floor_s(self) -> float:
        """What no step is shorter than: it has no answer to slow workers."""
        own_s = self.paces.plain_s if self._own.floor_1f1b else self.paces.healthy_s
        return own_s / min(self.crew.speeds.values(), default=1.0)

    @override
    def saving(self, period_s: float) -> Saving:
        return shared.saved_within(self.job, period_s, self._own.save_overhead)

    @override
    def after(self, change: Change) -> Reaction:
        self._follow(change)
        if not self._fill():
            return self._too_few()
        restarted = self._begin_to_get() > 0
        now_s = self._period_s(settled=True)
        moved = self._settle() or bool(change.came)
        period_s = self._period_s(settled=True)
        if restarted:
            return Reaction(
                period_s=period_s,
                pause_s=shared.restart_s(self.job),
                work_lost=WorkLost.SINCE_CHECKPOINT,
            )
        if change.speeds and not (change.lost or change.came):
            return Reaction(period_s=period_s)
        moving = moved and not isinf(now_s)
        return Reaction(
            period_s=period_s,
            pause_s=self._own.reconfigure_s,
            work_lost=WorkLost.STEP if change.lost else WorkLost.NOTHING,
            meanwhile=(Stretch(self.job.copy_s, now_s),) if moving else (),
        )
