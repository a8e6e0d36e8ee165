"""Elastic Horovod's way: after a loss all go back to the newest copy in memory that all have.

Training goes on with fewer. Whoever copies the state from a member begins anew. A stage without
a holder, or members without a copy in common, are no matter of this module: all go back further.
"""

from typing_extensions import override

from holdfast.control.decide.decision import (
    Decision,
    Inventories,
    RestoreCopy,
    Situation,
    roll_back,
)
from holdfast.control.decide.reconfiguration import Reconfiguration
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.reconfigure.policies import RecoveryPolicy
from holdfast.control.state.workers import membership as m
from holdfast.observability import events
from holdfast.protocol import messages

NO_COPY = "no copy in memory is of a step that all have"


def from_copies(inventories: Inventories, situation: Situation) -> Decision:
    """After losses only: whoever comes, goes or moves disturbs nobody's state."""
    if situation.lost_stages:  # whoever is to hold it instead has no copy
        return roll_back(situation)
    copies = [set(inventories[worker].commits) for worker in situation.stages]
    version = max(set.intersection(*copies), default=None)
    if version is None:
        return roll_back(situation, NO_COPY)
    lost = ", ".join(str(worker) for worker, _ in situation.dead)
    num_left = len(situation.stages)
    reason = f"worker {lost} was lost (recovery.mode=commit); {num_left} go on"
    return RestoreCopy(version, reason)


class Committing(RecoveryPolicy):
    replaces_lost = False
    may_leave_out = False

    @override
    def after_loss(self, inventories: Inventories, situation: Situation) -> Decision:
        return from_copies(inventories, situation)

    @override
    def restore(self, change: Reconfiguration, decision: RestoreCopy, at_s: float) -> list[Effect]:
        """The step that was running is thrown away, and so are those since the copy."""
        run, tracker, _, plans, reports, _ = self._parts
        version = decision.version
        redone = self._num_redone(change, version)
        num_thrown_away = max(0, reports.next_step - version)
        change.throw_away(num_thrown_away)
        run.ending.decide(version + 1)
        steady = plans.for_members()
        run.plan.begin_at(version)
        told = dict.fromkeys(run.stages, (version, 0, 0))
        tracker.adopt(run.epoch, (), steady.schedule, told)
        inventories = change.inventories
        saving = [(stage, inventories[worker].saving) for worker, stage in run.stages.items()]
        restore = messages.Restore(epoch=run.epoch, version=version)
        went_back = events.WentBack(
            at_s=at_s,
            lost_stage=change.dead[0][1],
            to_step=version,
            checkpoint="",
            reason=decision.reason,
            thrown_away=num_thrown_away,
        )
        effects: list[Effect] = [Emit(went_back)]
        effects += [Send(worker, restore) for worker in sorted(run.stages)]
        reports.rewind(version, at_s)
        effects += run.proceed(first_step=version, saved=reports.checkpoints.saved(saving))
        effects += self._copy_anew(change, at_s)
        change.resume(version, redone=redone, operations=0, at_s=run.settings.now(at_s))
        return effects

    def _num_redone(self, change: Reconfiguration, version: int) -> int:
        """Operations that were finished, by whomever, and will be run again."""
        run, tracker = self._parts.run, self._parts.tracker
        lanes, finished = run.plan.steady.schedule.lanes, 0
        for worker in run.stages:
            tell = change.inventories[worker]
            finished += max(0, tell.reduced - version) * len(lanes.get(worker, ())) + tell.done
        dead = [one for worker, stage in change.dead for one in tracker.dead(worker, stage)]
        return finished + sum(len(one.done) for one in dead if one.step >= version)

    def _copy_anew(self, change: Reconfiguration, at_s: float) -> list[Effect]:
        """The members' versions go back; what a joiner has heard of them does not fit any more."""
        joining = self._parts.joining
        for worker in sorted(change.entering):
            joining.postpone(worker, at_s)
        copies = joining.copies
        copying = self._parts.run.membership.all_in(m.WorkerPhase.COPYING)
        again = [effect for worker in copying for effect in copies.starves(worker, at_s)]
        return again + copies.find_sources(at_s)
