"""Bamboo: every worker also computes the forwards of the stage after its own."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from typing_extensions import override

from holdfast.baselines.policies import shared
from holdfast.baselines.policies.constants import TINY, PolicyConstants, constant
from holdfast.baselines.policies.policy import Change, Policy, Reaction, Saving, WorkLost


@dataclass(frozen=True)
class BambooConstants(PolicyConstants):
    share: float = constant(
        0.6526,
        "ReCycle's poster, 350M: 13.41 of 20.55 samples/s with nobody missing; "
        "Oobleck's simulator has 0.32 (BERT-large) and 0.25 (GPT-2)",
        above=TINY,
    )
    local_s: float = constant(20.0, "Bamboo's simulator: local rendezvous, GPT-2 and BERT")
    global_s: float = constant(30.0, "Bamboo's simulator: global rendezvous, besides a restart")
    save_overhead: float = constant(
        0.005, "a choice, as for Holdfast: a checkpoint is seldom needed", above=TINY
    )


class BambooPolicy(Policy):
    name = "bamboo"
    title = "Bamboo"
    leaves_out = (
        "that its pipelines have a fixed length: throughput goes with the number of workers, as "
        "in ReCycle's measurement of it, which is kind"
    )
    constants_type = BambooConstants
    _running = False
    _open: frozenset[int] = frozenset()  # seats that others stand in for until a stop is over

    @property
    def _own(self) -> BambooConstants:
        assert isinstance(self._given, BambooConstants)
        return self._given

    def _period_s(self) -> float:
        job, live = self.job, len(self.crew)
        room = job.memory_bytes - 2 * max(job.state_bytes)
        fits = room >= max(job.activation_bytes) * min(job.shape.stages, 4)
        if live < job.shape.stages or not fits:
            return inf
        share = self._own.share * live / job.num_workers * min(self.crew.speeds.values())
        return self.paces.plain_s / share

    @override
    def saving(self, period_s: float) -> Saving:
        return shared.saved_within(self.job, period_s, self._own.save_overhead)

    @override
    def first(self) -> Reaction:
        period_s = self._period_s()
        self._running = period_s < inf
        return Reaction(period_s=period_s, reason="" if self._running else "does not fit")

    @override
    def after(self, change: Change) -> Reaction:
        was, period_s = self._running, self._period_s()
        self._running = period_s < inf
        if not self._running:
            return self.cannot("too few workers, or two copies of the state do not fit")
        own, restart_s = self._own, shared.restart_s(self.job)
        if not was:
            return Reaction(period_s=period_s, pause_s=own.global_s + restart_s)
        lost = () if change.notice_s else change.lost
        self._open = frozenset(lost) | (self._open if change.unfinished_s else frozenset())
        if lost and _neighbours(self.job.shape.stages, self._open):
            return Reaction(
                period_s=period_s,
                pause_s=own.global_s + restart_s,
                work_lost=WorkLost.SINCE_CHECKPOINT,
            )
        if not (change.lost or change.came):
            return Reaction(period_s=period_s)
        work = WorkLost.OWN_SHARE if change.lost else WorkLost.NOTHING
        return Reaction(period_s=period_s, pause_s=own.local_s, work_lost=work)


def _neighbours(stages: int, seats: Collection[int]) -> bool:
    """Whether a worker went together with the one that holds its copy."""
    hit = sorted(seats)
    return any(
        other == one + 1 and other // stages == one // stages for one, other in pairwise(hit)
    )
