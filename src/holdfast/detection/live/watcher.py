"""Who is slow, since when and why: reports of steps in, diagnoses out.

Pure: no clock, no sockets. Puts together what workers.py, links/ and imbalance.py find; what is
done about it is not known here.
"""

import math
from collections.abc import Mapping

from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import (
    Cause,
    Diagnosis,
    Health,
    Link,
    Over,
    Suspicion,
    quantised,
)
from holdfast.detection.live import evidence
from holdfast.detection.live.benchmarks import Benchmark, Benchmarks
from holdfast.detection.live.imbalance import Imbalance
from holdfast.detection.live.investigation import InvestigationMove, InvestigationPhase
from holdfast.detection.live.links.link_watcher import LinkWatcher
from holdfast.detection.live.predicted import Predictor
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.live.shared_hosts import SharedHosts
from holdfast.detection.live.workers import Sample, SubjectMove, Workers, sample_of
from holdfast.detection.observation import StepObservation, without

_Outcome = Suspicion | Diagnosis | Over


class Watcher:
    """Feed `observe` with each worker's step, then call `conclude` once a step."""

    def __init__(
        self, machines: Mapping[WorkerId, str], settings: WatchSettings | None = None
    ) -> None:
        self._settings = settings or WatchSettings()
        self._benchmarks = Benchmarks()
        self._predictor = Predictor(self._settings.num_learn_steps)
        self._workers = Workers(self._settings, self._benchmarks)
        self._links = LinkWatcher(self._settings)
        self._shared_hosts = SharedHosts(self._workers)
        self._imbalance: Imbalance | None = Imbalance()  # until it is judged
        for worker, machine in machines.items():
            self._workers.add(worker, machine, settled=True)
            self._links.add(worker, machine)
        self._waiting: list[StepObservation] = []  # reports of the step, until all is learnt
        self._samples: dict[WorkerId, Sample] = {}  # of the step, after that
        self._first_steps: dict[int, list[StepObservation]] = {}  # learnt from, together
        self._learnt = False
        self._num_concluded = 0
        self._skip: dict[WorkerId, int] = {}  # steps of a joiner or mover that are not counted
        self._stages: dict[WorkerId, int] = {}
        self._op_s = 0.0

    def observe(self, step: StepObservation) -> None:
        if step.worker not in self._workers.tracks:
            return
        if not self._learnt:
            self._waiting.append(step)
        elif self._counts(step):
            self._take(step)

    def probed(self, worker: WorkerId, step: int, wall_s: float, cpu_s: float) -> None:
        """A compute benchmark. The first one of each worker is its baseline."""
        if worker in self._workers.tracks:
            self._benchmarks.add(worker, Benchmark(step, wall_s, cpu_s))

    def lost(self, worker: WorkerId) -> None:
        self._workers.remove(worker)
        self._shared_hosts.forget(worker)
        self._links.remove(worker)
        self._benchmarks.forget(worker)
        self._stages.pop(worker, None)
        self._samples.pop(worker, None)
        self._waiting = without(self._waiting, worker)
        self._first_steps = {at: without(s, worker) for at, s in self._first_steps.items()}

    def joined(self, worker: WorkerId, machine: str) -> None:
        if worker in self._workers.tracks:
            self.lost(worker)
        self._workers.add(worker, machine, settled=not self._learnt)
        self._links.add(worker, machine)
        self._skip[worker] = self._settings.num_warmup_steps if self._learnt else 0

    def conclude(self, step: int) -> list[_Outcome]:
        """Call it when the reports of this step are in, of all who live."""
        self._num_concluded += bool(self._samples or self._waiting)
        if self._learnt:
            samples, self._samples = self._samples, {}
            self._predictor.settle()
            unfair, found = self._judge_imbalance(step)
            return unfair + self._tell(step, found + self._workers.feed(step, samples))
        reports, self._waiting = self._waiting, []
        if not reports or self._num_concluded <= self._settings.num_warmup_steps:
            return []
        self._first_steps[step] = reports
        for report in reports:
            self._predictor.learn(report, 0.0)
            self._stages[report.worker] = report.stage
            self._collect(report)
        self._predictor.settle()
        known = len(self._first_steps) >= self._settings.num_learn_steps
        return self._begin(step) if known else []

    def health(self) -> Health:
        """What the diagnoses of now say, rounded so that noise does not change a plan."""
        slow = InvestigationPhase.SLOW
        machines = {
            name: machine.investigation.factor
            for name, machine in self._workers.machines.items()
            if machine.investigation.phase is slow
        }
        factors: dict[WorkerId, float] = {}
        for worker, track in self._workers.tracks.items():
            is_slow = track.investigation.phase is slow
            if is_slow or track.machine in machines:
                # What a worker has besides its machine's comes on top of that.
                factor = track.investigation.factor if is_slow else 1.0
                factor *= machines.get(track.machine, 1.0)
                if factor > 1:
                    factors[worker] = quantised(factor, 0.03)
        links = {
            pair: quantised(max(track.told.excess_s, 1e-6), 0.05)
            for pair, track in self._links.tracks.items()
            if track.investigation.phase is InvestigationPhase.SLOW and track.told
        }
        return Health({worker: 1 / f for worker, f in factors.items() if f > 1}, links)

    def _begin(self, step: int) -> list[_Outcome]:
        """All that was learnt from is looked at as if it came in now."""
        self._learnt = True
        self._op_s = self._predictor.median_op_s()
        self._links.floor_s = self._settings.link_floor * self._op_s
        history = {at: self._raw(reports) for at, reports in self._first_steps.items()}
        self._workers.learn(history)
        found = []
        for worker in self._workers.tracks:
            first = {at: row[worker].excess for at, row in history.items() if worker in row}
            if first and self._predictor.num_holders(self._stages[worker]) > 1:
                move = self._workers.slow_at_start(worker, step, first)
                found += [SubjectMove(move, worker)] if move else []
        self._workers.settle(history)
        self._links.learn(self._first_steps.values())
        for at, samples in history.items():
            found += self._workers.feed(at, samples)
            self._links.look_back(at, self._first_steps[at])
        self._first_steps = {}
        return self._tell(step, found)

    def _raw(self, reports: list[StepObservation]) -> dict[WorkerId, Sample]:
        samples = {}
        for report in reports:
            excess = self._predictor.excess(report)
            if excess is not None and report.worker in self._workers.tracks:
                samples[report.worker] = sample_of(report, excess)
        return samples

    def _take(self, report: StepObservation) -> None:
        if not self._predictor.knows(report):
            self._learn(report)
        self._collect(report)
        self._links.observe(report)
        self._samples.update(self._raw([report]))

    def _collect(self, report: StepObservation) -> None:
        if self._imbalance is not None:
            self._imbalance.collect(report)

    def _judge_imbalance(self, step: int) -> tuple[list[_Outcome], list[SubjectMove]]:
        """Once: what is uneven by itself, and who alone makes a stage look long."""
        settings, imbalance = self._settings, self._imbalance
        num_steps = self._num_concluded - settings.num_warmup_steps
        if imbalance is None or num_steps < settings.num_imbalance_steps:
            return [], []
        self._imbalance = None
        told: list[_Outcome] = []
        found = []
        for long in imbalance.long_stages(self._predictor, settings.imbalance_factor):
            here = [worker for worker in long.holders if worker in self._workers.tracks]
            alone = here[0] if len(here) == len(long.holders) == 1 else None
            level = math.log(long.factor)
            if alone and self._workers.slow_holder(alone, step, long.since, level):
                found.append(SubjectMove(InvestigationMove.TELL, alone))
            else:
                told.append(imbalance.model(long))
        data = imbalance.data()
        return told + ([data] if data else []), found

    def _learn(self, report: StepObservation) -> None:
        track = self._workers.tracks[report.worker]
        slow = (
            track.investigation.excess
            if track.investigation.phase is InvestigationPhase.SLOW
            else 0.0
        )
        if track.investigation.phase is not InvestigationPhase.SUSPECT and not track.num_unsettled:
            self._predictor.learn(report, slow + track.base)

    def _counts(self, report: StepObservation) -> bool:
        """The first steps of a joiner, and the first one on another stage, warm up."""
        if self._stages.get(report.worker) not in (report.stage, None):
            self._skip[report.worker] = 1
        self._stages[report.worker] = report.stage
        left = self._skip.get(report.worker, 0)
        if left:
            self._skip[report.worker] = left - 1
        return not left

    def _tell(self, step: int, found: list[SubjectMove]) -> list[_Outcome]:
        """Suspicions of all in one, and the diagnoses."""
        asked_workers: set[WorkerId] = set()
        asked_links: list[Link] = []
        told: list[_Outcome] = []
        by_worker: dict[WorkerId, Diagnosis | Over] = {}
        for move, subject in found:
            if move is InvestigationMove.ASK:
                there = self._workers.on(subject) if isinstance(subject, str) else [subject]
                asked_workers.update(there)
            elif isinstance(subject, str):
                told.append(self._machine_outcome(move, subject, step))
            else:
                by_worker[subject] = self._outcome(move, subject, step)
        told += self._shared_hosts.sort(by_worker)
        for move, pair in self._links.conclude(step, self._explained_s):
            if move is InvestigationMove.ASK:
                asked_links.append(pair)
            else:
                told.append(self._link_outcome(move, pair, step))
        if asked_workers or asked_links:
            links = tuple(sorted(set(asked_links)))
            told.append(Suspicion(tuple(sorted(asked_workers)), links))
        return told

    def _machine_outcome(self, move: InvestigationMove, name: str, step: int) -> Diagnosis | Over:
        if move is InvestigationMove.TELL:
            return evidence.machine(self._workers, name, step, self._op_s)
        since = self._workers.machines[name].investigation.since
        return Over(Cause.MACHINE, name, since, tuple(self._workers.on(name)))

    def _outcome(self, move: InvestigationMove, worker: WorkerId, step: int) -> Diagnosis | Over:
        if move is InvestigationMove.TELL:
            return evidence.compute(self._workers, worker, step, self._op_s)
        since = self._workers.tracks[worker].investigation.since
        return Over(Cause.COMPUTE, str(worker), since, (worker,))

    def _link_outcome(self, move: InvestigationMove, pair: Link, step: int) -> Diagnosis | Over:
        track = self._links.tracks[pair]
        if move is InvestigationMove.TELL:
            return evidence.link(pair, track, step)
        return Over(Cause.LINK, f"{pair[0]}-{pair[1]}", track.investigation.since, pair)

    def _explained_s(self, pair: Link) -> float:
        """A slow process is also late to send and to take: seconds an operation of it lost."""
        longest = 0.0
        for worker in pair:
            track = self._workers.tracks.get(worker)
            if track is None:
                continue
            common = self._workers.machines[track.machine].common.newest(3) or 0.0
            excess = (track.own.newest(3) or 0.0) + max(common, 0.0)
            if excess >= self._settings.slow:
                longest = max(longest, math.expm1(excess) * self._op_s)
        return longest
