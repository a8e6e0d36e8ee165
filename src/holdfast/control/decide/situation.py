"""Puts together what a decision needs to know, from those who know it. Decides nothing."""

from holdfast.control.decide.decision import Inventories, LogFacts, Situation, Stages
from holdfast.control.decide.reconfiguration import Reconfiguration
from holdfast.control.inventory.losses import ProgressTracker
from holdfast.control.inventory.remainder import Remainders, remainders
from holdfast.control.join.joining import Joining
from holdfast.control.plans import Plans
from holdfast.control.recovery_rules import RecoveryRules
from holdfast.control.state.run import Run
from holdfast.control.state.workers import membership as m


class Situations:
    def __init__(
        self,
        run: Run,
        plans: Plans,
        tracker: ProgressTracker,
        joining: Joining,
        policy: RecoveryRules,
    ) -> None:
        self._run, self._plans, self._tracker, self._joining = run, plans, tracker, joining
        self._policy = policy

    def of(self, change: Reconfiguration, log_facts: LogFacts | None) -> Situation:
        run, joiners = self._run, self._joining.joiners
        everyone = run.membership.all_in(*m.WorkerPhase)

        def plan_rest(stages: Stages, inventories: Inventories) -> Remainders:
            return self._rests(change, stages, inventories)

        return Situation(
            stages=dict(run.stages),
            num_stages=run.shape.stages,
            end_step=run.ending.end_step,
            plan_rest=plan_rest,
            entering={worker: joiners[worker].stage for worker in change.entering},
            leaving=tuple(change.leaving),
            dead=tuple(change.dead),
            free=tuple(worker for worker in everyone if worker not in run.stages),
            log_facts=log_facts,
            ends_all=self._ends_all(),
        )

    def _ends_all(self) -> str:
        mode = self._run.config.recovery.mode
        why = f"a loss ends all workers (recovery.mode={mode})"
        return why if self._policy.ends_all else ""

    def _rests(
        self, change: Reconfiguration, stages: Stages, inventories: Inventories
    ) -> Remainders:
        run = self._run
        gone = [(worker, run.stages[worker]) for worker in change.leaving if worker not in stages]
        lost = [(w, s) for w, s in (*change.dead, *change.left) if w not in change.lost_work]
        noted = [dead for work in change.lost_work.values() for dead in work]
        return remainders(
            self._plans.problem(stages),
            stages,
            {worker: inventories[worker] for worker in stages},
            staggered=run.settings.staggered and not run.roster.is_weighted,
            end_step=run.ending.end_step,
            heard=change.heard,
            dead=[
                *noted,
                *(d for w, stage in (*lost, *gone) for d in self._tracker.dead(w, stage)),
            ],
        )
