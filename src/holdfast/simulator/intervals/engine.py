"""Time passes from event to event: steps are counted, what a change costs is put down."""

from collections.abc import Callable
from math import inf, isinf

from holdfast.baselines.policies.policy import (
    Change,
    Policy,
    Reaction,
    Saving,
    StopRule,
    WorkLost,
)
from holdfast.simulator.intervals.outcome import PolicyOutcome
from holdfast.simulator.intervals.progress import Progress
from holdfast.simulator.intervals.seating import SeatChange, seat_changes
from holdfast.simulator.intervals.under_way import UnderWay
from holdfast.simulator.worlds.world import World


def simulate(
    world: World,
    policy: Policy,
    *,
    boot_s: float = 60.0,
    progress: Callable[[float], None] = lambda share: None,
) -> PolicyOutcome:
    """``progress`` is told the share of the world's time that is over."""
    run = _Run(policy, world.length_s)
    for change in seat_changes(world, policy.job.num_workers, boot_s):
        run.on(change)
        progress(change.at_s / world.length_s)
    run.until(world.length_s)
    progress(1.0)
    return run.outcome()


class _Run:
    def __init__(self, policy: Policy, length_s: float) -> None:
        self._policy, self._length_s = policy, length_s
        self._done = Progress(policy.job.samples_a_step)
        self._way = UnderWay()
        self._now_s, self._live, self._rented = 0.0, 0, 0
        self._worker_s = self._live_s = 0.0
        self._changes = 0
        self._healthy_s, self._reason = inf, ""

    def on(self, event: SeatChange) -> None:
        self.until(event.at_s)
        self._live, self._rented = event.live, event.rented
        self._changes += 1
        if self._changes == 1:
            self._begin(event.change)
            return
        way = self._way
        change = event.change._replace(
            at_s=event.at_s, unfinished_s=way.unfinished_s, stands=way.stands
        )
        reaction = self._policy.react(change)
        if reaction is not None:
            self._follow(reaction, change)

    def _begin(self, change: Change) -> None:
        whole = self._policy.begin(range(self._policy.job.num_workers))
        self._healthy_s, self._reason = self._step_s(whole.period_s), whole.reason
        self._follow(self._policy.begin(change.came), Change())

    def _follow(self, reaction: Reaction, change: Change) -> None:
        redo_s = self._lose(reaction, change)
        self._way.follow(
            reaction,
            replay_s=reaction.replay_s * self._done.unsaved,
            redo_s=redo_s,
            anew=bool(change.lost) and reaction.interrupted is StopRule.ANEW,
        )

    def _lose(self, reaction: Reaction, change: Change) -> float:
        """Seconds that must be spent on work of the step in flight that was done once already."""
        done, pace_s = self._done, self._way.pace_s
        if reaction.work_lost is WorkLost.SINCE_CHECKPOINT:
            done.roll_back()
        elif reaction.work_lost is WorkLost.STEP:
            done.lose_step(pace_s)
        elif reaction.work_lost is WorkLost.OWN_SHARE and not isinf(pace_s):
            return done.begun * pace_s * len(change.lost) / max(self._live, 1)
        return 0.0

    def until(self, at_s: float) -> None:
        at_s = min(at_s, self._length_s)
        self._worker_s += self._rented * (at_s - self._now_s)
        self._live_s += self._live * (at_s - self._now_s)
        while self._changes and self._now_s < at_s:
            part = self._way.next()
            seconds = min(part.seconds, at_s - self._now_s)
            saving = self._policy.saving(part.period_s) if part.period_s < inf else Saving()
            self._done.spend(self._now_s, seconds, part, saving, self._live)
            self._way.spend(seconds)
            self._now_s += seconds
        self._now_s = at_s

    def _step_s(self, period_s: float) -> float:
        return inf if isinf(period_s) else period_s + self._policy.saving(period_s).step_s()

    def outcome(self) -> PolicyOutcome:
        policy, done = self._policy, self._done
        samples = policy.job.samples_a_step
        return PolicyOutcome(
            policy=policy.name,
            title=policy.title,
            length_s=self._length_s,
            samples=done.steps * samples,
            seconds=done.seconds,
            segments=done.segments,
            num_changes=self._changes - 1,
            worker_s=self._worker_s,
            gpus_a_worker=policy.job.gpus_a_worker,
            fault_free_rate=samples / self._healthy_s,
            plain_rate=samples / policy.paces.plain_s,
            mean_live=self._live_s / self._length_s,
            num_workers=policy.job.num_workers,
            reason=self._reason,
            constants=policy.constants,
        )
