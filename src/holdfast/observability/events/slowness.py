"""Who or what is slow, and what is done about it."""

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.observability.events.timed import Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed(Timed):
    """Who or what is slow. Told again when the factor has changed."""

    step: int  # in which it is told
    cause: str  # detection.diagnosis.Cause
    subject: str  # "1.0", "0.0-0.1"; a machine's name; "stage 3", "data"
    factor: float  # operations take so many times as long; of a link: its transfers
    excess_s: float  # of a link: seconds more a transfer; else 0
    since: int  # step
    confidence: float  # 0 to 1
    evidence: str
    hint: str = ""  # why, in a few words: "short of CPU time"; empty: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class SlownessOver(Timed):
    step: int
    cause: str
    subject: str
    since: int  # the step from which on it was as before


@dataclass(frozen=True, slots=True, kw_only=True)
class MitigationChosen(Timed):
    """What is done about slowness, and why; also that nothing is done."""

    step: int
    action: str  # mitigation.options.Action
    subjects: tuple[str, ...]
    reason: str
    period_s: float  # of a step as it is now, predicted
    new_period_s: float  # after it, predicted
    cost_s: float  # of training time
    only_observed: bool = False  # mitigation.mode=observe: it is not done


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSwitched(Timed):
    """The same members go over to other lanes, without a stop."""

    step: int  # the first that runs them
    cause: str
    took_s: float  # until all had the new lanes; training went on
    period_s: float  # of a step, predicted; 0: unknown
    reason: str


SlownessEvent: TypeAlias = Diagnosed | SlownessOver | MitigationChosen | PlanSwitched
