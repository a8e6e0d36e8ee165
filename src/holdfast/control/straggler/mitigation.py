"""What can be done about slowness in this run, with what it would gain and cost; and the choice.

Works out the options; ``mitigation`` chooses among them, ``coordinator.py`` carries them out.
Detection is done elsewhere: here the run's health is given.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.control.effects import Effect, Emit
from holdfast.control.join.moving import num_turns
from holdfast.control.plans import Plans
from holdfast.control.recovery_rules import RecoveryRules
from holdfast.control.state.current_plan import Steady
from holdfast.control.state.run import Run
from holdfast.control.straggler.policy import StragglerPolicy
from holdfast.mitigation.options import Action, Choice, Option, SlowSituation
from holdfast.mitigation.policy import DEARER_GAIN, MitigationPolicy
from holdfast.mitigation.trial import Trial
from holdfast.observability import events
from holdfast.planner.assign.swaps import swaps
from holdfast.planner.problem import Problem

_NUM_SWAPS = 4  # candidates that are planned through
_GREW = 1.1  # a factor that has grown so much since counts as something else
_RETURN_S = 10.0  # what a worker that was left out in vain would take to come back
_COPY_SHARE = 0.5  # of the time of a copy is lost while its worker helps nobody


class Remedy(NamedTuple):
    """An option, and how it is carried out."""

    option: Option
    steady: Steady | None = None  # lanes for the same members
    moves: tuple[tuple[WorkerId, int], ...] = ()  # who is to hold which stage
    drops: WorkerId | None = None


class Mitigating:
    def __init__(
        self,
        run: Run,
        plans: Plans,
        recovery_rules: RecoveryRules,
        straggler_policy: StragglerPolicy,
    ) -> None:
        self._run, self._plans = run, plans
        self._recovery_rules, self._straggler_policy = recovery_rules, straggler_policy
        settings = run.config.mitigation
        self._mode: str = settings.mode
        self._mitigation_policy = MitigationPolicy(settings.pays_within_steps, settings.drop)
        self._trial = Trial()
        self._before: tuple[Steady, Steady, dict[str, float]] | None = None
        """Lanes on trial, those before them, and what was slow."""
        self._answered: dict[str, float] = {}  # slow ones and factors that the lanes were made for
        self._lanes: Steady | None = None  # that were looked at last
        self._asked: object = None  # for which the remedies were worked out
        self._remedies: list[Remedy] = []
        self._now = (0.0, 0.0)  # period as things are, and if nobody were slow
        self._told: object = None
        self.wanted: tuple[Remedy, Choice] | None = None

    def note_step(self, step: int, steps_left: int, took_s: float, at_s: float) -> list[Effect]:
        """A step is finished, and the run's health is that of now."""
        self.wanted = None
        if self._mode == "off" or self._plans.unknown_unit:
            return []
        self._follow_lanes()
        if self._trial.note_step(took_s) is False and self._mode != "observe":
            self._take_back()
            if self.wanted is not None:
                return []
        factors = self._factors()
        if not factors and not self._answered:
            self._mitigation_policy.over()
            return []
        self._work_out(factors)
        period_s, healthy_s = self._now
        self._mitigation_policy.note_step(took_s, healthy_s)
        now = SlowSituation(step + 1, steps_left, period_s, healthy_s, factors)
        choice = self._mitigation_policy.choose(now, [remedy.option for remedy in self._remedies])
        if choice.option.action is not Action.WAIT and self._mode != "observe":
            remedy = next(one for one in self._remedies if one.option is choice.option)
            self.wanted = remedy, choice
            return []
        return self._tell(choice, now, at_s)

    def members_changed(self) -> None:
        """What was wanted are lanes for the members before."""
        self.wanted = None

    def stop(self, why: str, step: int, at_s: float) -> list[Effect]:
        """Something went wrong with watching: the run goes on without it."""
        self._mode, self.wanted = "off", None
        reason = f"stragglers are not looked for any more: {why}"
        option = Option(Action.WAIT, 0.0, 0.0, (), "")
        return self._tell(Choice(option, reason), SlowSituation(step, 0, 0.0, 0.0), at_s)

    def take(self, step: int, at_s: float) -> tuple[Remedy, list[Effect]]:
        """What is wanted is done now."""
        assert self.wanted is not None
        (remedy, choice), self.wanted, self._told = self.wanted, None, None
        self._mitigation_policy.changed(choice, step)
        if remedy.steady is not None:
            assert self._lanes is not None
            self._before = remedy.steady, self._lanes, dict(choice.factors)
            self._answered, self._lanes = dict(choice.factors), remedy.steady
            if remedy.option.action is Action.BACK:
                self._trial.end()  # the way back is not judged: else it could go on for ever
            else:
                self._trial.begin()
        period_s, healthy_s = self._now
        now = SlowSituation(step, 0, period_s, healthy_s, choice.factors)
        return remedy, self._tell(choice, now, at_s)

    def _take_back(self) -> None:
        """Predictions err. What was measured not to help does not stay."""
        if self._before is None or self._run.plan.steady is not self._before[0]:
            return
        _, steady, factors = self._before
        grew = (f > _GREW * factors.get(subject, 1.0) for subject, f in self._factors().items())
        if any(grew):
            return  # not the lanes are to blame
        was_s, is_s = self._trial.was_s, self._trial.after_s
        what = f"it has not helped: {is_s:.3g} s a step, {was_s:.3g} s before"
        subjects = tuple(sorted(factors))
        option = Option(Action.BACK, was_s, self._run.times.stop_s, subjects, what)
        self._now = is_s, self._now[1]
        self.wanted = Remedy(option, steady), Choice(option, "go back", factors)
        self._asked = None

    def _follow_lanes(self) -> None:
        """Lanes that were made for another reason count on everyone's health as well."""
        if self._run.plan.steady is not self._lanes:
            self._trial.end()
            self._lanes, self._answered = self._run.plan.steady, self._factors()
            if self._run.plan.steady is self._run.plan.first:
                self._answered = {}

    def _factors(self) -> dict[str, float]:
        """Of members and of links between them."""
        speeds, links = self._run.health.now
        members = self._run.stages.keys()
        unit_s = max(self._plans.operation_s, 1e-9)
        slow = {str(w): 1 / speed for w, speed in speeds.items() if w in members}
        return slow | {
            f"{one}-{other}": 1 + excess_s / unit_s
            for (one, other), excess_s in links.items()
            if {one, other} <= members
        }

    def _work_out(self, factors: Mapping[str, float]) -> None:
        """Anew only if something has changed."""
        run = self._run
        asked = (dict(factors), dict(run.stages), run.plan.steady)
        if asked == self._asked:
            return
        self._asked = asked
        self._now = self._plans.period_s(run.plan.steady.schedule), self._plans.healthy_s()
        changed = [s for s in {**factors, **self._answered} if self._differs(s, factors)]
        subjects = tuple(sorted(changed or factors))
        self._remedies = list(self._possible(subjects))

    def _differs(self, subject: str, factors: Mapping[str, float]) -> bool:
        return factors.get(subject) != self._answered.get(subject)

    def _possible(self, subjects: tuple[str, ...]) -> Iterator[Remedy]:
        is_over = not self._factors()
        action = Action.BACK if is_over else Action.REPLAN
        steady = self._straggler_policy.lanes()
        what = "as nobody is slow any more" if is_over else steady.reason
        stop_s = self._run.times.stop_s
        yield Remedy(Option(action, steady.period_s, stop_s, subjects, what), steady)
        nearly_s = (1 + DEARER_GAIN) * self._now[1]
        if is_over or steady.period_s < nearly_s or not self._straggler_policy.changes_places:
            return  # nothing dearer could be worth it
        yield from self._changed_places(subjects)
        yield from self._without_one(subjects)

    def _problem(self, stages: Mapping[WorkerId, int]) -> Problem:
        return self._plans.problem(stages, health=self._run.health.now)

    def _changed_places(self, subjects: tuple[str, ...]) -> Iterator[Remedy]:
        run, plans = self._run, self._plans
        problem = self._problem(run.stages)
        for stages in swaps(problem, _NUM_SWAPS):
            moves = tuple((w, s) for w, s in sorted(stages.items()) if s != run.stages[w])
            count = num_turns(dict(moves), run.stages)
            if count is None:
                continue  # a stage would have no holder meanwhile
            steady = plans.planned(self._problem(stages))
            # They leave and join: two stops, and their help is missed meanwhile.
            cost_s = count * (2 * run.times.stop_s + _COPY_SHARE * run.times.copy_s)
            what = ", ".join(f"{worker} to stage {stage}" for worker, stage in moves)
            option = Option(Action.PLACES, steady.period_s, cost_s, subjects, what)
            yield Remedy(option, moves=moves)

    def _without_one(self, subjects: tuple[str, ...]) -> Iterator[Remedy]:
        run, plans = self._run, self._plans
        if not self._recovery_rules.may_leave_out:
            return
        speeds, links = run.health.now
        suspects = {*speeds, *(worker for pair in links for worker in pair)} & run.stages.keys()
        for worker in sorted(suspects):
            if len(run.placement.holders(run.stages[worker])) < 2:
                continue
            others = {w: stage for w, stage in run.stages.items() if w != worker}
            steady = plans.planned(self._problem(others))
            what = f"{worker} is left out"
            option = Option(
                Action.DROP, steady.period_s, run.times.stop_s + _RETURN_S, subjects, what
            )
            yield Remedy(option, drops=worker)

    def _tell(self, choice: Choice, now: SlowSituation, at_s: float) -> list[Effect]:
        """Once, unless something else is chosen, or for others."""
        option = choice.option
        told = (option.action, option.subjects)
        if told == self._told:
            return []
        self._told = told
        chosen = events.MitigationChosen(
            at_s=at_s,
            step=now.step,
            action=option.action.value,
            subjects=option.subjects,
            reason=_words(choice, observe=self._mode == "observe"),
            period_s=now.period_s,
            new_period_s=option.period_s,
            cost_s=option.cost_s,
            only_observed=self._mode == "observe",
        )
        return [Emit(chosen)]


def _words(choice: Choice, *, observe: bool) -> str:
    option = choice.option
    only = "only told (mitigation.mode=observe): " if observe else ""
    what = f" ({option.what})" if option.action is not Action.WAIT and option.what else ""
    return f"{only}{choice.reason}{what}"
