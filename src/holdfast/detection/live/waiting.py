"""Which rank is slow, if only the times inside and outside of collectives are known.

For jobs that Holdfast does not run. The rank that is slow is longer outside of collectives than it
was, and waits least inside of them (Holmes). Nothing can be measured on request here.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from holdfast.cluster import WorkerId
from holdfast.detection.change.series import Series
from holdfast.detection.diagnosis import Cause, Diagnosis, Over
from holdfast.detection.live.benchmarks import Benchmarks
from holdfast.detection.live.investigation import Investigation, InvestigationMove, Reading
from holdfast.detection.live.predicted import lower_median
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.live.workers import Sample, Workers
from holdfast.errors import ConfigError

ALL = "all ranks"
NETWORK = "network"


class WaitWatcher:
    """Feed it with every iteration of all ranks; it tells who is slow, and when it is over."""

    def __init__(self, num_ranks: int, settings: WatchSettings | None = None) -> None:
        if num_ranks < 1:
            raise ConfigError(f"detection: num_ranks={num_ranks}: expected at least 1 rank")
        self._settings = replace(settings or WatchSettings(), validate=False)
        self._ranks = [WorkerId(rank, 0) for rank in range(num_ranks)]
        self._workers = Workers(self._settings, Benchmarks())
        for rank in self._ranks:
            self._workers.add(rank, ALL, settled=True)
        self._network = Network(self._settings)
        self._num_seen = 0
        self._predicted_s = 0.0  # 0: still learning
        self._first: dict[int, Sequence[float]] = {}  # busy seconds of the iterations learnt from
        self._waits: deque[tuple[int, Sequence[float]]] = deque(maxlen=64)

    def observe(
        self, iteration: int, busy_s: Sequence[float], waited_s: Sequence[float]
    ) -> list[Diagnosis | Over]:
        """``busy_s``: of each rank, outside of collectives; ``waited_s``: inside of them."""
        if not len(busy_s) == len(waited_s) == len(self._ranks):
            raise ConfigError(
                f"detection: iteration {iteration} has {len(busy_s)} busy and {len(waited_s)} "
                f"waiting times; expected one of each for {len(self._ranks)} ranks"
            )
        self._num_seen += 1
        if self._num_seen <= self._settings.num_warmup_steps:
            return []
        self._waits.append((iteration, tuple(waited_s)))
        if not self._predicted_s:
            return self._learn(iteration, tuple(busy_s))
        found = self._workers.feed(iteration, self._samples(busy_s))
        told = [self._outcome(move, subject, iteration) for move, subject in found]
        return told + self._network.observe(iteration, min(waited_s))

    def _learn(self, iteration: int, busy_s: Sequence[float]) -> list[Diagnosis | Over]:
        self._first[iteration] = busy_s
        if len(self._first) < self._settings.num_learn_steps:
            return []
        columns = zip(*self._first.values(), strict=True)
        busy = [usual_s for usual_s in map(median, columns) if usual_s > 0]
        self._predicted_s = lower_median(busy) if busy else 1e-9
        self._network.begin([min(waits) for _, waits in self._waits], self._predicted_s)
        history = {at: self._samples(row) for at, row in self._first.items()}
        self._workers.learn(history)
        told: list[Diagnosis | Over] = []
        for rank in self._ranks:
            first = {at: row[rank].excess for at, row in history.items() if rank in row}
            move = self._workers.slow_at_start(rank, iteration, first) if first else None
            if move:
                told.append(self._outcome(move, rank, iteration))
        self._workers.settle(history)
        for at, samples in history.items():
            found = self._workers.feed(at, samples)
            told += [self._outcome(move, subject, iteration) for move, subject in found]
        self._first = {}
        return told

    def _samples(self, busy_s: Sequence[float]) -> dict[WorkerId, Sample]:
        return {
            rank: Sample(math.log(seconds / self._predicted_s), 0.0)
            for rank, seconds in zip(self._ranks, busy_s, strict=True)
            if seconds > 0
        }

    def _outcome(
        self, move: InvestigationMove, subject: WorkerId | str, iteration: int
    ) -> Diagnosis | Over:
        if isinstance(subject, str):
            investigation, cause, name = (
                self._workers.machines[subject].investigation,
                Cause.MACHINE,
                subject,
            )
            ranks = tuple(self._ranks)
        else:
            investigation, cause = self._workers.tracks[subject].investigation, Cause.COMPUTE
            name, ranks = f"rank {subject.pipeline}", (subject,)
        if move is InvestigationMove.OVER:
            return Over(cause, name, investigation.since, ranks)
        words, trust = self._waiting(investigation, ranks)
        return Diagnosis(
            cause=cause,
            subject=name,
            factor=investigation.factor,
            excess_s=(investigation.factor - 1) * self._predicted_s,
            since=investigation.since,
            confidence=trust * investigation.confidence,
            evidence=_busy(investigation, iteration) + words,
            workers=ranks,
        )

    def _waiting(
        self, investigation: Investigation, ranks: tuple[WorkerId, ...]
    ) -> tuple[str, float]:
        """Whom the others wait for, in words, and how much that supports the diagnosis."""
        rows = [row for at, row in self._waits if at >= investigation.since]
        if len(ranks) > 1 or len(self._ranks) == 1 or not rows:
            return "", 1.0
        waits_s = [median(column) for column in zip(*rows, strict=True)]
        mine_s = waits_s.pop(ranks[0].pipeline)
        text = f"; it waits {_ms(mine_s)} for the others, they {_ms(median(waits_s))} for it"
        if mine_s <= min(waits_s):
            return text + " (it waits least)", 1.0
        return text, 0.8


class Network:
    """Collectives that take longer though nobody is late to them: even who waits least waits."""

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = replace(settings, slow_factor=1.5, relief_factor=1.3)
        self._series = Series(settings.change)
        self._investigation = Investigation(self._settings)
        self._floor_s = 0.0
        self._base_s = 0.0

    def begin(self, least_s: Sequence[float], busy_s: float) -> None:
        self._floor_s = self._settings.link_floor * busy_s
        self._base_s = median(least_s)
        for at, seconds in enumerate(least_s):
            self._series.update(at - len(least_s), self._value(seconds))

    def observe(self, iteration: int, least_s: float) -> list[Diagnosis | Over]:
        change = self._series.update(iteration, self._value(least_s))
        now, steady = self._series.newest(5), self._series.steady()
        move = self._investigation.read(Reading(iteration, change, now, steady, None))
        if move is InvestigationMove.OVER:
            return [Over(Cause.LINK, NETWORK, self._investigation.since, ())]
        return [self._diagnosis(iteration)] if move is InvestigationMove.TELL else []

    def _value(self, seconds: float) -> float:
        return math.log((self._floor_s + max(seconds, 0.0)) / (self._floor_s + self._base_s))

    def _diagnosis(self, iteration: int) -> Diagnosis:
        investigation = self._investigation
        now_s = investigation.factor * (self._floor_s + self._base_s) - self._floor_s
        return Diagnosis(
            cause=Cause.LINK,
            subject=NETWORK,
            factor=now_s / max(self._base_s, 1e-6),
            excess_s=now_s - self._base_s,
            since=investigation.since,
            confidence=investigation.confidence,
            evidence=f"collectives take {_ms(now_s)} since iteration {investigation.since} even "
            "for the "
            f"rank that comes last, {_ms(self._base_s)} before; no rank is late",
            workers=(),
        )


def _busy(investigation: Investigation, iteration: int) -> str:
    number = max(1, iteration - investigation.since + 1)
    if investigation.from_start:
        return f"it is busy {investigation.factor:.2f} x as long as the others from the start"
    return (
        f"it is busy {investigation.factor:.2f} x as long since iteration {investigation.since} "
        f"({number} of them)"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
