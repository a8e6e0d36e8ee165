"""All go on, with other members than before: who comes and goes, and what they are told.

Which members, and what ends the half-done steps, was decided before.
"""

from holdfast.control.decide.decision import ProceedDecision
from holdfast.control.decide.reconfiguration import Reconfiguration
from holdfast.control.effects import Effect
from holdfast.control.inventory.remainder import Remainders
from holdfast.control.join.recovery_parts import RecoveryParts
from holdfast.control.restore.rebuilding import Rebuilding
from holdfast.control.state.workers import membership as m
from holdfast.protocol.half_done import to_record


class Proceeding:
    def __init__(self, parts: RecoveryParts, rebuilding: Rebuilding) -> None:
        self._run, self._tracker, self._losses, self._plans = parts[:4]
        self._reports, self._joining, self._rebuilding = parts.reports, parts.joining, rebuilding

    def go_on(
        self, change: Reconfiguration, decision: ProceedDecision, at_s: float
    ) -> list[Effect]:
        run, remainder = self._run, decision.remainder
        told = change.inventories
        saving = [(stage, told[worker].saving) for worker, stage in decision.stages.items()]
        effects = self._change_sides(change, decision, at_s)
        self._adopt(change, remainder, at_s)
        proceed = run.proceed(
            first_step=remainder.first_step,
            running=[to_record(one) for one in remainder.running],
            verdicts=remainder.verdicts,
            saved=self._reports.checkpoints.saved(saving),
        )
        effects += [*self._rebuilding.forget(), *self._rebuilding.free_hosts(at_s)]
        effects += [*self._joining.log_boundaries(), *self._losses.show(at_s)]
        effects += self._reports.fold(at_s)  # what nobody counted while a stage had no holder
        return [*proceed, *effects, *self._joining.copies.find_sources(at_s)]

    def _change_sides(
        self, change: Reconfiguration, decision: ProceedDecision, at_s: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        entered, step = {}, _step_of(decision.remainder)
        for worker in sorted(change.entering):
            if worker in decision.stages:
                entered[worker] = change.inventories[worker].reduced
                effects.append(self._joining.entered(worker, step, at_s))
            else:
                effects += self._joining.postpone(worker, at_s)
        for worker, joiner in change.leaving.items():
            if worker in decision.stages:
                continue
            self._run.placement.release(worker)
            self._run.membership.handle(m.Left(worker, at_s))
            effects += self._joining.give(worker, joiner, at_s)
        self._reports.proceed(entered)
        return effects

    def _adopt(self, change: Reconfiguration, remainder: Remainders, at_s: float) -> None:
        run = self._run
        run.ending.decide(remainder.first_step)
        steady = self._plans.for_members()
        run.plan.begin_at(remainder.first_step)
        told = {worker: change.inventories[worker] for worker in run.stages}
        progress = {
            w: (inventory.reduced, inventory.attempt, inventory.done)
            for w, inventory in told.items()
        }
        self._tracker.adopt(run.epoch, remainder.running, steady.schedule, progress)
        change.resume(
            _step_of(remainder),
            redone=len(remainder.redone),
            operations=remainder.num_operations,
            at_s=run.settings.now(at_s),
        )


def _step_of(remainder: Remainders) -> int:
    """The step that a change falls into: the oldest that is running."""
    return remainder.running[0].step if remainder.running else remainder.first_step
