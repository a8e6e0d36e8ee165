"""Chameleon (once Odyssey): at each change the better of re-routing and a new cut of layers."""

from typing_extensions import override

from holdfast.baselines.policies.constants import PolicyConstants
from holdfast.baselines.policies.job_costs import JobCosts
from holdfast.baselines.policies.paces import Paces
from holdfast.baselines.policies.policy import Change, Policy, Reaction, Saving
from holdfast.baselines.policies.recutting import OobleckConstants, OobleckPolicy
from holdfast.baselines.policies.rerouting import RecycleConstants, RecyclePolicy

_HORIZON_S = 1800.0  # a change should pay within this


class ChameleonPolicy(Policy):
    name = "chameleon"
    title = "Chameleon"
    leaves_out = "its own performance model and search; both ways cost what they cost alone"

    def __init__(self, job: JobCosts, paces: Paces, constants: PolicyConstants) -> None:
        super().__init__(job, paces, constants)
        self._ways: tuple[Policy, ...] = (
            RecyclePolicy(job, paces, RecycleConstants()),
            OobleckPolicy(job, paces, OobleckConstants()),
        )

    @override
    def saving(self, period_s: float) -> Saving:
        return self._ways[0].saving(period_s)

    @override
    def first(self) -> Reaction:
        live = list(self.crew.speeds)
        return min((way.begin(live) for way in self._ways), key=lambda found: found.period_s)

    @override
    def after(self, change: Change) -> Reaction | None:
        answers = [way.react(change) for way in self._ways]
        found = [answer for answer in answers if answer is not None]
        return min(found, key=_steps_lost, default=None)


def _steps_lost(reaction: Reaction) -> float:
    """Seconds a step over the horizon, the pause included."""
    left_s = max(_HORIZON_S - reaction.pause_s, 1.0)
    return reaction.period_s * _HORIZON_S / left_s
