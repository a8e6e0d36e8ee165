"""What a job does now and next: a stop, work that is owed, steps while copies are made, steps.

A change adds to this and takes nothing from it: who comes during a stop does not end it, and work
that is owed stays owed. After a loss a stop goes on or begins anew, as the policy says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from typing import NamedTuple

from holdfast.baselines.policies.policy import Reaction, Stretch, WorkLost
from holdfast.simulator.intervals.outcome import TimeKind


class Doing(NamedTuple):
    """What is done for so long, unless something happens."""

    seconds: float
    kind: TimeKind
    period_s: float = inf


@dataclass
class UnderWay:
    """``replay_s`` is of lost stages, ``redo_s`` of what lost workers had done of the step."""

    stop_s: float = 0.0
    replay_s: float = 0.0
    redo_s: float = 0.0
    stretches: list[Stretch] = field(default_factory=list)
    period_s: float = inf
    # of the stop and the replay that are under way, from their beginning
    _whole_stop_s: float = 0.0
    _whole_replay_s: float = 0.0

    @property
    def unfinished_s(self) -> float:
        """Until there is something new."""
        return self.stop_s + self.replay_s + self.redo_s

    @property
    def pace_s(self) -> float:
        """Of the steps that come next."""
        return self.stretches[0].period_s if self.stretches else self.period_s

    @property
    def stands(self) -> bool:
        """Nothing is done, and nothing will be unless something changes."""
        return not self.stop_s and isinf(self.pace_s)

    def follow(self, reaction: Reaction, *, replay_s: float, redo_s: float, anew: bool) -> None:
        """``replay_s``, ``redo_s``: more work that is owed. ``anew``: what is interrupted is."""
        busy = self.stop_s > 0 or self.replay_s > 0
        again = anew and busy
        whole_stop_s = self._whole_stop_s if busy else 0.0
        whole_replay_s = self._whole_replay_s if busy else 0.0
        left_s = whole_stop_s if again else self.stop_s
        self.stop_s = max(left_s, reaction.pause_s)
        self._whole_stop_s = max(whole_stop_s, reaction.pause_s)
        self._settle_debts(reaction.work_lost)
        if reaction.work_lost is WorkLost.SINCE_CHECKPOINT:
            whole_replay_s = 0.0
        self._whole_replay_s = whole_replay_s + replay_s
        self.replay_s = self._whole_replay_s if again else self.replay_s + replay_s
        self.redo_s += redo_s
        self.stretches = _beside(self.stretches, reaction.meanwhile, reaction.period_s)
        self.period_s = reaction.period_s

    def _settle_debts(self, lost: WorkLost) -> None:
        """Work that is lost with its step, or with all steps, is not owed any more."""
        if lost in (WorkLost.STEP, WorkLost.SINCE_CHECKPOINT):
            self.redo_s = 0.0
        if lost is WorkLost.SINCE_CHECKPOINT:
            self.replay_s = 0.0

    def next(self) -> Doing:
        if self.stop_s > 0:
            return Doing(self.stop_s, TimeKind.STALLED)
        if self.stands:
            return Doing(inf, TimeKind.IDLE)
        if self.replay_s > 0:
            return Doing(self.replay_s, TimeKind.REDONE)
        if self.redo_s > 0:
            return Doing(self.redo_s, TimeKind.REDONE)
        seconds = self.stretches[0].seconds if self.stretches else inf
        return Doing(seconds, TimeKind.EFFECTIVE, self.pace_s)

    def spend(self, seconds: float) -> None:
        """Of what is next, at most as long as that lasts."""
        part = self.next()
        left_s = 0.0 if seconds >= part.seconds else part.seconds - seconds
        if part.kind is TimeKind.STALLED:
            self.stop_s = left_s
        elif part.kind is TimeKind.REDONE:
            if self.replay_s > 0:
                self.replay_s = left_s
            else:
                self.redo_s = left_s
        elif self.stretches and part.kind is TimeKind.EFFECTIVE:
            first, *rest = self.stretches
            self.stretches = [first._replace(seconds=left_s), *rest] if left_s else rest


def _beside(old: Sequence[Stretch], new: Sequence[Stretch], then_s: float) -> list[Stretch]:
    """What was being made ready still takes its time, beside what is made ready now."""
    found = [one for one in new if one.seconds > 0 and not isinf(one.period_s)]
    going_on = [one for one in old if one.goes_on]
    if not going_on or isinf(then_s):
        return found
    left_s = sum(one.seconds for one in going_on)
    slow_s = max(one.period_s for one in going_on)
    merged = []
    for one in [*found, Stretch(inf, then_s)]:
        slow = min(one.seconds, left_s)
        left_s -= slow
        merged.append(one._replace(seconds=slow, period_s=max(slow_s, one.period_s)))
        merged.append(one._replace(seconds=one.seconds - slow))
    return [one for one in merged if 0 < one.seconds < inf]
