"""Restarts as the simulator has them that Oobleck was published with; only to compare with it."""

from dataclasses import replace
from math import inf

from holdfast.baselines.policies.policy import Change, Reaction, StopRule, Stretch

JOINS_WAIT = (
    "1: who comes waits for the next loss, as in Oobleck's simulator; 0: it is used at once"
)
AS_SIMULATED = (
    "1: as in Oobleck's simulator each loss begins a restart of its own; steps go on until the "
    "first one ends, and when a second one ends all stand until the next change; 0: one restart, "
    "in which all stand"
)


class TheirRestarts:
    """Those that are under way, by when they end."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._stands = False  # until the first one ends

    def begin(self, number: int, change: Change, reaction: Reaction, pace_s: float) -> Reaction:
        """``reaction``: with the stop of one restart. ``pace_s``: of the steps until then."""
        now_s, restart_s = change.at_s, reaction.pause_s
        under_way = [end_s for end_s in self._ends_s if end_s > now_s]
        self._stands = change.stands or (self._stands and bool(under_way))
        self._ends_s = sorted([*under_way, *[now_s + restart_s] * number])
        first_s, *later_s = self._ends_s
        stop_s, parts = first_s - now_s, list[Stretch]()
        if not self._stands:
            parts.append(Stretch(stop_s, pace_s, goes_on=False))
            stop_s = 0.0
        period_s = reaction.period_s
        if later_s:
            parts.append(Stretch(later_s[0] - first_s, period_s, goes_on=False))
            period_s = inf
        return replace(
            reaction,
            period_s=period_s,
            pause_s=stop_s,
            meanwhile=tuple(parts),
            interrupted=StopRule.GOES_ON,
        )
