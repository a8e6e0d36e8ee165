"""Which option to take now, if any: at once if it soon repays its cost, else by ski rental.

Data in, a choice with its reason out. Knows no workers, plans or schedules, only predicted times.
"""

from collections.abc import Iterator, Sequence

from holdfast.mitigation.options import Action, Choice, Option, SlowSituation
from holdfast.mitigation.patience import Patience

_LEAST_GAIN = 0.02  # of the step as it is: less is not worth a change
DEARER_GAIN = 0.03  # of a healthy step: what a dearer option must be better by
_SAFETY = 1.5  # predictions err: what is left of the run must repay more than the cost
_LEVELS = tuple(Action)


class MitigationPolicy:
    """Ask ``choose`` whenever something is slow or slowness is over; tell it every step."""

    def __init__(self, pays_within_steps: int = 20, may_drop: bool = True) -> None:
        self._pays_within_steps, self._may_drop = pays_within_steps, may_drop
        self._lost_s = 0.0
        self._patience = Patience()

    @property
    def lost_s(self) -> float:
        """Seconds lost to slowness since it began, or since the last change."""
        return self._lost_s

    def note_step(self, took_s: float, healthy_s: float) -> None:
        """A step that was shorter than predicted makes up for one that was longer."""
        self._lost_s = max(0.0, self._lost_s + took_s - healthy_s)

    def changed(self, choice: Choice, step: int) -> None:
        """What was chosen has been done, and ``step`` is the first with it."""
        self._lost_s = 0.0
        self._patience.changed(choice.option.subjects, step, choice.factors)

    def over(self) -> None:
        """Nobody is slow any more. How often things have changed is not forgotten by this."""
        self._lost_s = 0.0

    def choose(self, now: SlowSituation, options: Sequence[Option]) -> Choice:
        """The best option that may be taken now, else WAIT; the reason says why not the others."""
        by_cost = sorted(options, key=lambda option: (option.cost_s, _LEVELS.index(option.action)))
        asked = [option for option in by_cost if option.action is not Action.WAIT]
        refused = {option: self._objection(now, option) for option in asked}
        best: Option | None = None
        for option in asked:
            if not refused[option] and (best is None or self._outdoes(now, option, best)):
                best = option
        if best is not None:
            return Choice(best, self._praise(now, best), now.factors)
        reason = "; ".join(f"{option.action} {why}" for option, why in refused.items())
        waiting = Option(Action.WAIT, now.period_s, 0.0, tuple(now.factors), "as it is")
        return Choice(waiting, f"wait: {reason or 'there is no other option'}", now.factors)

    def _objection(self, now: SlowSituation, option: Option) -> str:
        """Why it may not be taken now; empty if it may."""
        return next(self._objections(now, option), "")

    def _objections(self, now: SlowSituation, option: Option) -> Iterator[str]:
        gain_s = now.period_s - option.period_s
        instead = f"{_s(option.period_s)} instead of {_s(now.period_s)} a step"
        if option.action is Action.DROP and not self._may_drop:
            yield "is not allowed (mitigation.drop)"
        if gain_s < _LEAST_GAIN * now.period_s:
            yield f"would not help: {instead}"
        if gain_s * now.steps_left < _SAFETY * option.cost_s:
            yield f"costs {_s(option.cost_s)}, too much for {_num(now.steps_left, 'step')} left"
        until = self._patience.waits_until(option.subjects, now.step, now.factors)
        if until is not None:
            yield f"not before step {until}: {', '.join(option.subjects)} had a change lately"
        if not self._is_due(option, gain_s, option.cost_s):
            soon = _num(self._pays_within_steps, "step")
            yield (
                f"costs {_s(option.cost_s)}, not repaid within {soon} ({instead}), "
                f"and only {_s(self._lost_s)} lost so far"
            )

    def _is_due(self, option: Option, gain_s: float, cost_s: float) -> bool:
        """Soon repaid; or as much has been lost as it costs, so it is time to buy."""
        return gain_s * self._pays_within_steps >= cost_s or self._lost_s >= option.cost_s

    def _outdoes(self, now: SlowSituation, dearer: Option, cheaper: Option) -> bool:
        """What it is better by is worth what it costs more."""
        gain_s = cheaper.period_s - dearer.period_s
        more_s = dearer.cost_s - cheaper.cost_s
        return (
            gain_s >= DEARER_GAIN * now.healthy_s
            and gain_s * now.steps_left >= _SAFETY * more_s
            and self._is_due(dearer, gain_s, more_s)
        )

    def _praise(self, now: SlowSituation, option: Option) -> str:
        gain_s = now.period_s - option.period_s
        repaid = max(1, -int(-option.cost_s // gain_s))
        text = (
            f"{option.action}: {_s(option.period_s)} instead of {_s(now.period_s)} a step; "
            f"costs {_s(option.cost_s)}, repaid in {_num(repaid, 'step')}"
        )
        if repaid > self._pays_within_steps:
            text += f"; {_s(self._lost_s)} lost so far is as much"
        return text


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _num(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
