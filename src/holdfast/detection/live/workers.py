"""Which workers and machines are slow, from the times of their operations and their benchmarks.

What all workers of a machine share is the machine's; the rest is the worker's own. Links are not
looked at here.
"""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.detection.change.series import LevelChange, Series
from holdfast.detection.live.benchmarks import Benchmarks
from holdfast.detection.live.investigation import (
    Investigation,
    InvestigationMove,
    InvestigationPhase,
    Reading,
)
from holdfast.detection.live.predicted import low_quarter, lower_median
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.observation import StepObservation

_NUM_NOW = 5  # newest values that say how it is now
_FLAT_SHARE = 0.5  # of the slowness, as logs
_NUM_FIRST = 5  # values of a joiner before it is compared with the others


class Sample(NamedTuple):
    """One worker's step, reduced to numbers."""

    excess: float  # median log of time over predicted time
    cpu_share: float  # of the operations' wall time


class Track:
    """What is known of one worker."""

    def __init__(self, machine: str, settings: WatchSettings) -> None:
        self.machine = machine
        self.own = Series(settings.change)  # without what its machine shares
        self.investigation = Investigation(settings)
        self.base = 0.0  # its healthy level against the prediction
        self.probe_base = 0.0  # its first benchmark over the others', if it was slow already
        self.cpu_shares: deque[tuple[int, float]] = deque(maxlen=64)
        self.cpu_base: float | None = None
        self.num_unsettled = 0  # values still to come before its healthy level is known
        self.last_step = -1  # with operations

    def cpu_factor(self, since: int, investigation: Investigation) -> float | None:
        """Processor time an operation takes over the healthy one; None: it hardly uses any."""
        now = [share for step, share in self.cpu_shares if step >= since]
        if not now or self.cpu_base is None or self.cpu_base < 0.2:
            return None
        return investigation.factor * median(now) / self.cpu_base


def lacks_processor(cpu_factor: float, investigation: Investigation) -> bool:
    """Processor time has risen by less than half of the slowness, as logs: somebody else has it."""
    return math.log(max(cpu_factor, 1e-9)) < _FLAT_SHARE * investigation.excess


class MachineTrack:
    def __init__(self, settings: WatchSettings) -> None:
        self.common = Series(settings.change)
        self.investigation = Investigation(settings)


class SubjectMove(NamedTuple):
    """A move of a worker's or a machine's investigation."""

    move: InvestigationMove
    subject: WorkerId | str


def sample_of(step: StepObservation, excess: float) -> Sample:
    wall_s = sum(op.took_s for op in step.ops)
    cpu_s = sum(op.cpu_s for op in step.ops)
    return Sample(excess, cpu_s / wall_s if wall_s > 0 else 0.0)


class Workers:
    def __init__(self, settings: WatchSettings, benchmarks: Benchmarks) -> None:
        self._settings = settings
        self._benchmarks = benchmarks
        self.tracks: dict[WorkerId, Track] = {}
        self.machines: dict[str, MachineTrack] = {}

    def add(self, worker: WorkerId, machine: str, *, settled: bool) -> None:
        track = self.tracks[worker] = Track(machine, self._settings)
        track.num_unsettled = 0 if settled else _NUM_FIRST
        self.machines.setdefault(machine, MachineTrack(self._settings))

    def remove(self, worker: WorkerId) -> None:
        track = self.tracks.pop(worker, None)
        if track is not None and len(self.on(track.machine)) == 1:
            # One alone has nothing in common with others: what was the machine's is its own now.
            self.machines[track.machine] = MachineTrack(self._settings)

    def on(self, machine: str) -> list[WorkerId]:
        return sorted(w for w, track in self.tracks.items() if track.machine == machine)

    def learn(self, history: Mapping[int, Mapping[WorkerId, Sample]]) -> None:
        """Healthy levels from the first steps; who is slow from the start is left to `slow_at`."""
        for worker, track in self.tracks.items():
            mine = [samples[worker] for samples in history.values() if worker in samples]
            if not mine:
                track.num_unsettled = _NUM_FIRST
                continue
            track.base = median(sample.excess for sample in mine)
            track.cpu_base = median(sample.cpu_share for sample in mine)

    def settle(self, history: Mapping[int, Mapping[WorkerId, Sample]]) -> None:
        """The level that the worker's own series has when it is healthy."""
        own: dict[WorkerId, list[float]] = {}
        for samples in history.values():
            for worker, value in self._own(samples, self._common(samples)).items():
                own.setdefault(worker, []).append(value)
        for worker, values in own.items():
            if self.tracks[worker].investigation.phase is InvestigationPhase.HEALTHY:
                self.tracks[worker].own.healthy = median(values)

    def feed(self, step: int, samples: Mapping[WorkerId, Sample]) -> list[SubjectMove]:
        common = self._common(samples)
        found = []
        for name, value in common.items():
            move = self._read_machine(name, step, self.machines[name].common.update(step, value))
            found += [SubjectMove(move, name)] if move else []
        own = self._own(samples, common)
        for worker, track in self.tracks.items():
            change = None
            if worker not in own and track.investigation.rests:
                continue  # nothing new, and nothing is waited for
            if worker in own:
                track.last_step = step
                track.cpu_shares.append((step, samples[worker].cpu_share))
                change = track.own.update(step, own[worker])
            move = self._settle_joiner(worker, step) or self._read_worker(worker, step, change)
            found += [SubjectMove(move, worker)] if move else []
        return found

    def _common(self, samples: Mapping[WorkerId, Sample]) -> dict[str, float]:
        """Of each machine with several workers: what all of them have in common in this step."""
        shares: dict[str, list[float]] = {}
        for worker, sample in samples.items():
            track = self.tracks[worker]
            rest = sample.excess - track.base
            # its recovery is not the others' slowness
            if track.investigation.phase is InvestigationPhase.SLOW:
                rest = max(0.0, rest - track.investigation.excess)
            if not track.num_unsettled:
                shares.setdefault(track.machine, []).append(rest)
        return {name: lower_median(rests) for name, rests in shares.items() if len(rests) > 1}

    def _own(
        self, samples: Mapping[WorkerId, Sample], common: Mapping[str, float]
    ) -> dict[WorkerId, float]:
        return {
            worker: sample.excess - track.base - common.get(track.machine, 0.0)
            for worker, sample in samples.items()
            for track in (self.tracks[worker],)
        }

    def _read_machine(
        self, name: str, step: int, change: LevelChange | None
    ) -> InvestigationMove | None:
        machine = self.machines[name]
        _rebase(machine.common, machine.investigation, change)
        probe = None
        if machine.investigation.asked is not None:
            there = self.on(name)
            probes = [
                self._benchmarks.since(worker, machine.investigation.asked) for worker in there
            ]
            known = [probe for probe in probes if probe is not None]
            probe = median(known) if 2 * len(known) >= len(there) > 0 else None
        return _read(machine.investigation, machine.common, step, change, probe, busy=True)

    def _read_worker(
        self, worker: WorkerId, step: int, change: LevelChange | None
    ) -> InvestigationMove | None:
        track = self.tracks[worker]
        _rebase(track.own, track.investigation, change)
        probe = self._benchmarks.since(worker, track.investigation.asked)
        probe = None if probe is None else probe + track.probe_base
        busy = track.last_step >= step - 1
        lasting = track.own.lasting(self._settings.relief) if track.last_step == step else None
        return _read(track.investigation, track.own, step, change, probe, lasting, busy=busy)

    def _settle_joiner(self, worker: WorkerId, step: int) -> InvestigationMove | None:
        track = self.tracks[worker]
        if track.num_unsettled == 0 or track.last_step != step:
            return None
        track.num_unsettled -= 1
        if track.num_unsettled:
            return None
        track.cpu_base = median(share for _, share in track.cpu_shares)
        return self.slow_at_start(worker, step, track.own.recent())

    def slow_at_start(
        self, worker: WorkerId, step: int, first: Mapping[int, float]
    ) -> InvestigationMove | None:
        """``first``: of its first steps, how much slower than the others it was. A slower kind of
        machine is no fault if its benchmark does not show it; then this is its healthy level."""
        track, settings = self.tracks[worker], self._settings
        probe = self._benchmarks.at_start(worker)
        level = median(first.values())
        # In nearly all of its steps: on a busy machine some are slow by chance.
        slow = level >= settings.start and low_quarter(first.values()) >= settings.slow
        if slow and settings.validate and probe is not None:
            slow = probe >= settings.confirmed_share * level
        if not slow:
            track.own.healthy = level if track.base == 0.0 else track.own.healthy
            return None
        track.base, track.own.healthy, track.probe_base = 0.0, 0.0, probe or 0.0
        track.investigation.convict(step, min(first), level, probe)
        return InvestigationMove.TELL

    def slow_holder(
        self, worker: WorkerId, step: int, since: int, level: float
    ) -> InvestigationMove | None:
        """It alone holds a long stage: whose fault that is, only its benchmark can say."""
        track, probe = self.tracks[worker], self._benchmarks.at_start(worker)
        if probe is None or probe < self._settings.confirmed_share * level:
            return None
        track.base -= level
        track.own.lift(level)
        track.own.healthy, track.probe_base = 0.0, probe
        track.investigation.convict(step, since, level, probe)
        return InvestigationMove.TELL


def _rebase(series: Series, investigation: Investigation, change: LevelChange | None) -> None:
    """Healthy and now faster for good: this is how fast it can be."""
    if (
        change
        and not change.onset
        and investigation.phase is InvestigationPhase.HEALTHY
        and change.excess < 0
    ):
        series.healthy += change.excess


def _read(
    investigation: Investigation,
    series: Series,
    step: int,
    change: LevelChange | None,
    probe: float | None,
    lasting: float | None = None,
    *,
    busy: bool,
) -> InvestigationMove | None:
    if investigation.rests and change is None and lasting is None:
        series.refine()
        return None
    # more values are there now than when it was suspected
    if investigation.phase is InvestigationPhase.SUSPECT:
        investigation.weigh(series.excess_since(investigation.since))
    now, steady = (series.newest(_NUM_NOW), series.steady()) if busy else (None, None)
    return investigation.read(Reading(step, change, now, steady, probe, lasting))
