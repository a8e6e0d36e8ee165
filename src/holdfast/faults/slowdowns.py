"""Random slowness from a seed, shaped as it was measured in large clusters (FALCON, GREYHOUND).

Rates, durations and depths are the published ones; a step stands for a stretch of that time. What
a transfer takes in this run is not known here: a slow link is a delay as of an assumed one.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.faults.fault import MAX_DELAY_S, Fault, FaultKind
from holdfast.faults.lasting import Lasting
from holdfast.faults.rng import SeededRandom

_LINK_PER_H, _WORKER_PER_H, _MACHINE_PER_H = 0.025, 0.001, 0.008  # of one of each
_SEED_OFFSET = 1 << 64  # other numbers than those of the kills of the same seed

_COMPUTE_MIN = NormalDist(9.6, 2.0)
_COMPUTE_RANGE_MIN = (6.0, 12.0)
_LINK_MIN = (  # share of slow links, minutes that they lasted at most; jobs on 4 nodes
    *((0.0, 0.2), (0.05, 0.26), (0.10, 0.31), (0.15, 0.41), (0.20, 0.83), (0.25, 2.5)),
    *((0.32, 5.8), (0.36, 8.4), (0.43, 11.6), (0.53, 22.0), (0.62, 32.0), (0.68, 38.0)),
    *((0.75, 46.0), (0.80, 61.0), (0.86, 98.0), (0.90, 130.0), (0.95, 157.0), (1.0, 220.0)),
)
_LARGE_JOB_MIN = (  # of 16 slow jobs on 512 to 1024 devices
    *(11.2, 11.4, 12.3, 16.3, 19.7, 20.0, 26.0, 27.7),
    *(30.4, 33.5, 39.7, 50.7, 51.7, 94.5, 110.0, 590.0),
)
_SEVERE = 0.2  # of the slow ones; assumed, as only examples are published
_DIP = 1.25
_MIN_DELAY_S = 1e-4


@dataclass(frozen=True, slots=True)
class Mix:
    """What becomes slow, by weight; 0: never."""

    compute: float = 1.0  # a worker, for some minutes
    link: float = 1.0  # between two workers
    machine: float = 1.0  # all workers of one; only if machines are given
    ladder: float = 0.2  # 2 or 3 small drops of a worker that never recovers
    burst: float = 0.2  # a worker for 2 or 3 steps, again and again: no change can pay
    dips: float = 0.2  # single slow steps of a worker: nothing that should even be told
    compound: float = 3 / 16  # chance that a worker becomes slow while a link is


def slowdowns(
    seed: int,
    pipelines: int,
    stages: int,
    steps: int,
    step_s: float,
    *,
    rate: float | None = None,
    mix: Mix | None = None,
    time_scale: float = 1.0,
    transfer_s: float = 0.01,
    large_job: bool = False,
    machines: Sequence[Sequence[WorkerId]] = (),
    first_step: int = 0,
) -> tuple[Fault, ...]:
    """Faults for a run of steps ``first_step`` to ``steps`` - 1, as ``check_faults`` admits them.

    ``rate``: chance a step that something becomes slow; None: as often as published.
    ``mix``: None: if ``rate`` is as published, what is published, else ``Mix()``.
    ``time_scale``: seconds of the published study that one of this run stands for; scales
    durations, and rates that are as published.
    ``transfer_s``: time of a transfer over a link that is well, which scales delays.
    ``machines``: the workers of each.
    """
    scale = _Scale(step_s * time_scale, transfer_s, large_job, steps)
    workers = [WorkerId(d, s) for d in range(pipelines) for s in range(stages)]
    place = _Place(workers, _links(workers), machines)
    usual = _published_per_h(place)
    mix = mix or (usual if rate is None else Mix())
    if rate is None:
        rate = -math.expm1(-_events_per_h(usual) * scale.step_s / 3600)
    rng = SeededRandom(seed + _SEED_OFFSET)
    maker = _Maker(rng, place, scale, mix.compound)
    faults: dict[str, Fault] = {}
    for step in range(first_step, steps):
        if rng.hits(rate):
            faults |= {str(fault): fault for fault in maker.make(mix, step)}
    return tuple(faults.values())


class _Place(NamedTuple):
    workers: Sequence[WorkerId]
    links: Sequence[tuple[WorkerId, WorkerId]]
    machines: Sequence[Sequence[WorkerId]]


def _links(workers: Sequence[WorkerId]) -> list[tuple[WorkerId, WorkerId]]:
    """Between neighbours: stages of a pipeline, pipelines at a stage."""
    along = [(w, WorkerId(w.pipeline, w.stage + 1)) for w in workers]
    across = [(w, WorkerId(w.pipeline + 1, w.stage)) for w in workers]
    there = set(workers)
    return [(one, other) for one, other in (*along, *across) if other in there]


def _published_per_h(place: _Place) -> Mix:
    """The study has no rate of ladders, bursts and dips: a tenth of the slow workers' each."""
    compute = len(place.workers) * _WORKER_PER_H
    small = compute / 10
    link, machine = len(place.links) * _LINK_PER_H, len(place.machines) * _MACHINE_PER_H
    return Mix(compute, link, machine, small, small, small)


def _events_per_h(mix: Mix) -> float:
    return mix.compute + mix.link + mix.machine + mix.ladder + mix.burst + mix.dips


class _Scale(NamedTuple):
    step_s: float  # of the study's time
    transfer_s: float
    large_job: bool
    steps: int

    def num_steps(self, minutes: float) -> int:
        return max(1, round(minutes * 60 / self.step_s))

    def last_step(self, first: int, num_steps: int) -> int:
        return min(self.steps, first + num_steps) - 1


class _Maker:
    """Faults that begin at a given step, with all that follows from them."""

    def __init__(self, rng: SeededRandom, place: _Place, scale: _Scale, compound: float) -> None:
        self._rng, self._place, self._scale, self._compound = rng, place, scale, compound
        self._link_until: dict[tuple[WorkerId, WorkerId], int] = {}  # last step that it is slow in

    def make(self, mix: Mix, step: int) -> Iterator[Fault]:
        weights = {
            self._compute: mix.compute,
            self._link: mix.link if self._place.links else 0.0,
            self._machine: mix.machine if self._place.machines else 0.0,
            self._ladder: mix.ladder,
            self._burst: mix.burst,
            self._dips: mix.dips,
        }
        return self._rng.weighted(weights)(step) if any(weights.values()) else iter(())

    def _compute(self, step: int) -> Iterator[Fault]:
        severe = self._rng.hits(_SEVERE)
        speed = self._rng.between(0.5, 0.8) if severe else self._rng.between(0.8, 0.9)
        last = self._scale.last_step(step, self._compute_steps())
        yield _slow(self._rng.one_of(self._place.workers), step, last, 1 / speed)

    def _machine(self, step: int) -> Iterator[Fault]:
        speed = self._rng.between(0.78, 0.9)
        last = self._scale.last_step(step, self._compute_steps())
        for worker in self._rng.one_of(self._place.machines):
            yield _slow(worker, step, last, 1 / speed)

    def _ladder(self, step: int) -> Iterator[Fault]:
        worker = self._rng.one_of(self._place.workers)
        for _ in range(2 + self._rng.below(2)):
            drop = self._rng.between(0.03, 0.08)
            if step < self._scale.steps:
                yield _slow(worker, step, None, 1 / (1 - drop))
            step += self._compute_steps()

    def _burst(self, step: int) -> Iterator[Fault]:
        factor = 1 / self._rng.between(0.5, 0.8)
        return self._again_and_again(step, 2 + self._rng.below(2), factor)

    def _dips(self, step: int) -> Iterator[Fault]:
        return self._again_and_again(step, 1, _DIP)

    def _again_and_again(self, step: int, num_slow: int, factor: float) -> Iterator[Fault]:
        worker = self._rng.one_of(self._place.workers)
        every, times = num_slow + 1 + self._rng.below(4), 2 + self._rng.below(3)
        for first in range(step, min(step + every * times, self._scale.steps), every):
            yield _slow(worker, first, self._scale.last_step(first, num_slow), factor)

    def _link(self, step: int) -> Iterator[Fault]:
        link = self._rng.one_of(self._place.links)
        last = self._scale.last_step(step, self._scale.num_steps(self._link_min()))
        severe = self._rng.hits(_SEVERE)
        share = self._rng.between(0.1, 0.2) if severe else self._rng.between(0.2, 0.6)
        if self._link_until.get(link, -1) >= step:
            return  # it is slow already, and can be so in one way only
        self._link_until[link] = last
        delay_s = round(self._scale.transfer_s * (1 / share - 1), 4)
        lasting = Lasting(last, delay_s=min(MAX_DELAY_S, max(_MIN_DELAY_S, delay_s)))
        yield Fault(FaultKind.LINK, min(link), step, peer=max(link), lasting=lasting)
        if self._rng.hits(self._compound):
            yield from self._compute(step + self._rng.below(last - step + 1))

    def _compute_steps(self) -> int:
        least, most = (_COMPUTE_MIN.cdf(minutes) for minutes in _COMPUTE_RANGE_MIN)
        return self._scale.num_steps(_COMPUTE_MIN.inv_cdf(self._rng.between(least, most)))

    def _link_min(self) -> float:
        if self._scale.large_job:
            return self._rng.one_of(_LARGE_JOB_MIN)
        share = self._rng.between(0.0, 1.0)
        at = max(1, bisect_left([one for one, _ in _LINK_MIN], share))
        (share_0, min_0), (share_1, min_1) = _LINK_MIN[at - 1 : at + 1]
        return min_0 + (min_1 - min_0) * (share - share_0) / (share_1 - share_0)


def _slow(worker: WorkerId, step: int, last: int | None, factor: float) -> Fault:
    return Fault(FaultKind.SLOW, worker, step, lasting=Lasting(last, factor=round(factor, 2)))
