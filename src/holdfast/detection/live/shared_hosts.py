"""Several workers of one machine that lack processor time at once are one slow machine, not
several slow workers. Bookkeeping of what was told as what; nothing is measured here."""

import math
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import SHORT_OF_CPU, Cause, Diagnosis, Over
from holdfast.detection.live.investigation import Investigation, InvestigationPhase
from holdfast.detection.live.workers import Workers, lacks_processor

_NUM_STEPS_APART = 5  # of the beginnings of slowness that has one cause
_CHANGED = math.log(1.1)  # of the factor, to be told again


class SharedHost(NamedTuple):
    workers: frozenset[WorkerId]
    factor: float


class SharedHosts:
    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._told: dict[str, SharedHost] = {}  # machine -> its workers that were told with it
        self._alone: set[WorkerId] = set()  # told as slow by themselves

    def forget(self, worker: WorkerId) -> None:
        self._alone.discard(worker)
        self._told = {
            name: c._replace(workers=c.workers - {worker}) for name, c in self._told.items()
        }

    def sort(self, told: Mapping[WorkerId, Diagnosis | Over]) -> list[Diagnosis | Over]:
        """``told``: what would be said of each worker if it were by itself."""
        result: list[Diagnosis | Over] = []
        stirred = {self._workers.tracks[worker].machine for worker in told}
        for machine in sorted(stirred):
            together = self._short_of_cpu(machine, told)
            for worker, alone in told.items():
                if self._workers.tracks[worker].machine == machine:
                    result += self._by_itself(worker, together, alone)
            result += self._joining(together)
            result += self._as_one(machine, together)
        return result

    def _short_of_cpu(self, machine: str, told: Mapping[WorkerId, object]) -> frozenset[WorkerId]:
        """Who is slow together on this machine now."""
        before = self._told[machine].workers if machine in self._told else frozenset[WorkerId]()
        slow = {
            w
            for w in before
            if self._workers.tracks[w].investigation.phase is InvestigationPhase.SLOW
        }
        for worker in told:
            track = self._workers.tracks[worker]
            if track.machine == machine and track.investigation.phase is InvestigationPhase.SLOW:
                mates = self._lacking(worker, machine)
                if 2 * len(mates) >= max(4, len(self._workers.on(machine))):
                    slow |= mates
        return frozenset(slow)

    def _by_itself(
        self, worker: WorkerId, together: frozenset[WorkerId], alone: Diagnosis | Over
    ) -> list[Diagnosis | Over]:
        was_together = any(worker in told.workers for told in self._told.values())
        if worker in together or was_together:
            return []
        (self._alone.discard if isinstance(alone, Over) else self._alone.add)(worker)
        return [alone]

    def _joining(self, together: frozenset[WorkerId]) -> list[Diagnosis | Over]:
        """Those that were told by themselves before it was clear that it is the machine."""
        joining = sorted(self._alone & together)
        self._alone -= together
        investigations = [
            (worker, self._workers.tracks[worker].investigation) for worker in joining
        ]
        return [
            Over(Cause.COMPUTE, str(w), investigation.since, (w,))
            for w, investigation in investigations
        ]

    def _as_one(self, machine: str, together: frozenset[WorkerId]) -> list[Diagnosis | Over]:
        before = self._told.pop(machine, SharedHost(frozenset(), 1.0))
        if not together:
            if not before.workers:
                return []
            since = max(self._workers.tracks[w].investigation.since for w in before.workers)
            return [Over(Cause.MACHINE, machine, since, tuple(self._workers.on(machine)))]
        diagnosis = self._diagnosis(machine, together)
        changed = abs(math.log(diagnosis.factor / before.factor)) >= _CHANGED
        if together == before.workers and not changed:
            self._told[machine] = before
            return []
        self._told[machine] = SharedHost(together, diagnosis.factor)
        return [diagnosis]

    def _lacking(self, worker: WorkerId, machine: str) -> set[WorkerId]:
        """Itself and the others of its machine that are slow since then without computing more."""
        since = self._workers.tracks[worker].investigation.since
        mates = set()
        for mate in self._workers.on(machine):
            investigation = self._workers.tracks[mate].investigation
            near = abs(investigation.since - since) <= _NUM_STEPS_APART
            if (
                investigation.phase is not InvestigationPhase.HEALTHY
                and near
                and self._lacks(mate, investigation)
            ):
                mates.add(mate)
        return mates if worker in mates else set()

    def _lacks(self, worker: WorkerId, investigation: Investigation) -> bool:
        factor = self._workers.tracks[worker].cpu_factor(investigation.since, investigation)
        return factor is not None and lacks_processor(factor, investigation)

    def _diagnosis(self, machine: str, together: frozenset[WorkerId]) -> Diagnosis:
        investigations = [self._workers.tracks[worker].investigation for worker in sorted(together)]
        factor, since = (
            median(investigation.factor for investigation in investigations),
            min(investigation.since for investigation in investigations),
        )
        names = ", ".join(map(str, sorted(together)))
        return Diagnosis(
            cause=Cause.MACHINE,
            subject=machine,
            factor=factor,
            excess_s=0.0,
            since=since,
            confidence=min(investigation.confidence for investigation in investigations),
            evidence=f"{len(together)} of its {len(self._workers.on(machine))} workers ({names}) "
            "take "
            f"{factor:.2f} x as long since step {since + 1}, but no more CPU time: "
            f"they are {SHORT_OF_CPU}",
            workers=tuple(sorted(together)),
            hint=SHORT_OF_CPU,
        )
