"""Recovery by copies in memory: after a loss all go back to the newest copy that every member has.

Training goes on with fewer. Whoever copies the state from a member begins anew. A stage without
a holder, or members without a copy in common, are no matter of this module: all go back further.
"""

from holdfast.control import membership as m
from holdfast.control.effects import Effect, Emit, Send
from holdfast.control.joining import Joining
from holdfast.control.losses import Work
from holdfast.control.plans import Plans
from holdfast.control.reports import Reports
from holdfast.control.run import Run
from holdfast.control.wish import Change
from holdfast.observability import events
from holdfast.protocol import messages

NO_COPY = "no copy in memory is of a step that all have"


class Committing:
    def __init__(
        self, run: Run, work: Work, plans: Plans, reports: Reports, joining: Joining
    ) -> None:
        self._run, self._work, self._plans = run, work, plans
        self._reports, self._joining = reports, joining

    def applies(self, change: Change) -> bool:
        """To losses only: whoever comes, goes or moves disturbs nobody's state."""
        return self._run.config.recovery.mode == "commit" and bool(change.dead)

    def version(self, change: Change) -> int | None:
        """The newest that every member has a copy of, if there are members of all stages."""
        if self._run.placement.lost_stages:
            return None
        copies = [set(change.tells[worker].commits) for worker in self._run.stages]
        return max(set.intersection(*copies), default=None)

    def restore(self, change: Change, version: int, at_s: float) -> list[Effect]:
        """The step that was running is thrown away, and so are those since the copy."""
        run = self._run
        change.redone += self._num_redone(change, version)
        change.thrown_away += self._num_thrown_away(version)
        run.ending.decide(version + 1)
        steady = self._plans.for_members()
        run.plan.begin_at(version)
        change.step, change.operations = version, 0
        told = dict.fromkeys(run.stages, (version, 0, 0))
        self._work.adopt(run.epoch, (), steady.schedule, told)
        saving = [(stage, change.tells[worker].saving) for worker, stage in run.stages.items()]
        restore = messages.Restore(epoch=run.epoch, version=version)
        effects: list[Effect] = [Emit(self._went_back(change, version, at_s))]
        effects += [Send(worker, restore) for worker in sorted(run.stages)]
        self._reports.rewind(version, at_s)
        effects += run.proceed(first_step=version, saved=self._reports.checkpoints.saved(saving))
        return effects + self._copy_anew(change, at_s)

    def _num_thrown_away(self, version: int) -> int:
        return max(0, self._reports.next_step - version)

    def _num_redone(self, change: Change, version: int) -> int:
        """Operations that were finished, by whomever, and will be run again."""
        lanes, finished = self._run.plan.steady.schedule.lanes, 0
        for worker in self._run.stages:
            tell = change.tells[worker]
            finished += max(0, tell.reduced - version) * len(lanes.get(worker, ())) + tell.done
        dead = [one for worker, stage in change.dead for one in self._work.dead(worker, stage)]
        return finished + sum(len(one.done) for one in dead if one.step >= version)

    def _went_back(self, change: Change, version: int, at_s: float) -> events.WentBack:
        lost = ", ".join(str(worker) for worker, _ in change.dead)
        return events.WentBack(
            at_s=at_s,
            lost_stage=change.dead[0][1],
            to_step=version,
            checkpoint="",
            reason=f"worker {lost} was lost (recovery.mode=commit); {len(self._run.stages)} go on",
            thrown_away=self._num_thrown_away(version),
        )

    def _copy_anew(self, change: Change, at_s: float) -> list[Effect]:
        """The members' versions go back; what a joiner has heard of them does not fit any more."""
        for worker in sorted(change.entering):
            self._joining.postpone(worker, at_s)
        copying = self._run.membership.all_in(m.Phase.COPYING)
        again = [
            effect for worker in copying for effect in self._joining.copies.starves(worker, at_s)
        ]
        return again + self._joining.copies.find_sources(at_s)
