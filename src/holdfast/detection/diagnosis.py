"""What detection can say: who or what is slow, since when, how much, and why it is believed.
Pure data; how it is found out, and what is done about it, is not known here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from holdfast.cluster import WorkerId

SHORT_OF_CPU = "short of CPU time"  # a hint: operations take longer, but no more CPU time

Link = tuple[WorkerId, WorkerId]  # the smaller name first, unless a direction is meant


class Cause(StrEnum):
    COMPUTE = "slow computation"
    LINK = "slow link"
    MACHINE = "slow machine"
    MODEL = "imbalance of the model"
    DATA = "imbalance of the data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Told again, with the same subject, when its factor has changed."""

    cause: Cause
    subject: str  # "1.0", "0.0-0.1", a machine's name, "stage 3", "data", "rank 2"
    factor: float  # operations take so many times as long; of a link: its transfers
    excess_s: float  # seconds more a transfer, or an operation
    since: int  # step
    confidence: float  # 0 to 1
    evidence: str
    workers: tuple[WorkerId, ...]  # one, a link's two ends, all of a machine, holders of a stage
    hint: str = ""  # why, in a few words; empty: not known


class Over(NamedTuple):
    """It is as fast as before."""

    cause: Cause
    subject: str
    since: int  # the first step that was as before
    workers: tuple[WorkerId, ...]


class Suspicion(NamedTuple):
    """To be measured at the next step boundary, before anything is said."""

    workers: tuple[WorkerId, ...]
    links: tuple[Link, ...]


class Health(NamedTuple):
    """As diagnosed now; who is not in it is healthy."""

    speeds: Mapping[WorkerId, float]  # above 0, below 1
    links: Mapping[Link, float]  # seconds more a transfer


def link_of(one: WorkerId, other: WorkerId) -> Link:
    return (one, other) if one <= other else (other, one)


def quantised(value: float, step: float) -> float:
    """The nearest power of 1 + ``step``: noise must not make a new plan."""
    grid = math.log1p(step)
    return math.exp(round(math.log(value) / grid) * grid)
