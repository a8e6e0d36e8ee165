"""What can be done about slowness: an action, the step time it promises, and what it costs.

Who works out an option, and how it is carried out, is not known here.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

_NONE: Mapping[str, float] = MappingProxyType({})


class Action(StrEnum):
    """The values are in events. In the order in which they interfere with the run."""

    WAIT = "wait"
    REPLAN = "re-plan"  # other shares, routes and orders; everyone keeps the stage
    PLACES = "change places"  # some workers hold other stages
    DROP = "drop"  # a worker is left out
    BACK = "go back"  # the slowness is over: as it was before


class Option(NamedTuple):
    action: Action
    period_s: float  # of a step, predicted
    cost_s: float  # of training time, once
    subjects: tuple[str, ...]  # whose slowness (or recovery) it answers: "1.0", "0.0-0.1"
    what: str  # in words


class SlowSituation(NamedTuple):
    """``factors``: of each subject that is slow, how many times as long it takes."""

    step: int
    steps_left: int
    period_s: float  # as things are, predicted
    healthy_s: float  # if nobody were slow, predicted
    factors: Mapping[str, float] = _NONE


class Choice(NamedTuple):
    option: Option
    reason: str
    factors: Mapping[str, float] = _NONE  # of the situation it was made in
