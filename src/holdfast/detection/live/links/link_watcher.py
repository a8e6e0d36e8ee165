"""Which links are slow, from the time that messages were under way. Both directions of a link,
and all kinds of messages over it, are one subject. Slow workers are not looked at here."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median

from holdfast.clocks import ClockOffset
from holdfast.cluster import WorkerId
from holdfast.detection.change.series import LevelChange, Series
from holdfast.detection.diagnosis import Link, link_of
from holdfast.detection.live.investigation import (
    InvestigationMove,
    InvestigationPhase,
    Reading,
)
from holdfast.detection.live.links.link_clocks import Arrived, LinkClocks
from holdfast.detection.live.links.link_tracks import (
    AWAKE,
    NUM_NOW,
    Baseline,
    LinkSample,
    LinkTrack,
    both_ways,
    compared,
)
from holdfast.detection.live.predicted import lower_median
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.observation import StepObservation, Transfer, without

_NUM_CROWD = 3  # links of one step, of which two are most
_DOUBT = 0.25  # of the floor: with more, clocks must be compared anew

_Known = list[tuple[Transfer, LinkSample]]


class LinkWatcher:
    def __init__(self, settings: WatchSettings) -> None:
        # A link's times are small numbers: more must happen before it counts.
        self._settings = replace(
            settings, slow_factor=1.5, relief_factor=1.3, obvious_factor=math.inf
        )
        self._baselines: dict[tuple[WorkerId, WorkerId, str], Baseline] = {}
        self._clocks = LinkClocks()
        self._arrived: dict[int, list[StepObservation]] = {}  # step -> not yet looked at
        self._one_way: dict[Link, float] = {}  # links of the newest step, and when that was
        self._echoed: dict[Link, int] = {}  # step in which an echo was asked for
        self.tracks: dict[Link, LinkTrack] = {}
        self.floor_s = 0.0

    def add(self, worker: WorkerId, machine: str) -> None:
        self._clocks.place(worker, machine)

    def remove(self, worker: WorkerId) -> None:
        self._clocks.forget(worker)
        self._forget(lambda link: worker in link)
        self._one_way = {link: at_s for link, at_s in self._one_way.items() if worker not in link}
        self._echoed = {link: step for link, step in self._echoed.items() if worker not in link}
        self._arrived = {step: without(rows, worker) for step, rows in self._arrived.items()}

    def learn(self, steps: Iterable[Iterable[StepObservation]]) -> None:
        """What is normal, from the first steps of all. Their clocks are compared before that."""
        known = [(_by_way(reports), _time_s(reports)) for reports in map(list, steps)]
        for arrived, at_s in known:
            self._clocks.note(arrived, at_s)
        for arrived, at_s in known:
            for way, rows in arrived.items():
                offset = self._clocks.offset(link_of(*way), at_s)
                if offset is None:
                    continue
                for row in rows:
                    num_bytes = row.num_bytes / max(row.count, 1)
                    self._baseline(way, row.kind).add(_moved_s(row, way, offset), num_bytes)

    def observe(self, report: StepObservation) -> None:
        """One worker's transfers of a step; `conclude` comes after those of all."""
        if report.transfers:
            self._arrived.setdefault(report.step, []).append(report)

    def look_back(self, step: int, reports: Iterable[StepObservation]) -> None:
        """At a step that was learnt from."""
        reports = list(reports)
        self._sort(step, _by_way(reports), _time_s(reports))
        self.level(step)

    def _sort(self, step: int, arrived: Arrived, at_s: float) -> None:
        """All rows of a step, by link and direction."""
        self._one_way = dict.fromkeys(self._clocks.one_way(arrived), at_s)
        links: dict[Link, dict[Link, _Known]] = {}
        for way, rows in arrived.items():
            link = link_of(*way)
            offset = self._clocks.offset(link, at_s)
            if offset is None or way[0] == way[1]:
                continue
            track, known = self.tracks.get(link), []
            for row in rows:
                sample = self._sample(row, way, track, offset)
                if sample is not None:
                    known.append((row, sample))
            if known:
                links.setdefault(link, {})[way] = known
        for link, directions in links.items():
            self._take(self._track(link), step, directions)

    def _take(self, track: LinkTrack, step: int, directions: dict[Link, _Known]) -> None:
        ordinary: dict[Link, LinkSample] = {}
        probes: dict[Link, LinkSample] = {}
        for way, known in directions.items():
            if len(known) == 1:  # of nearly all
                [(row, sample)] = known
                (probes if row.kind == "probe" else ordinary)[way] = sample
                continue
            if rest := [pair for pair in known if pair[0].kind != "probe"]:
                ordinary[way] = _merged(rest)
            if len(rest) < len(known):
                probes[way] = [sample for row, sample in known if row.kind == "probe"][-1]
        if probes:
            track.measured(step, both_ways(probes, self.floor_s))
        if ordinary:
            track.note(step, both_ways(ordinary, self.floor_s))

    def level(self, step: int) -> None:
        """What most links have in common in a step is the machines' business, no link's."""
        here = [t for t in self.tracks.values() if t.history and t.history[-1][0] == step]
        if len(here) < _NUM_CROWD:
            return
        common = lower_median(track.history[-1][1].value for track in here)
        if common > 0:
            for track in here:
                track.lower(common)

    def conclude(
        self, step: int, busy_ends: Callable[[Link], float]
    ) -> list[tuple[InvestigationMove, Link]]:
        """``busy_ends``: seconds that slowness of the two ends' own computation may explain."""
        for at in sorted(at for at in self._arrived if at <= step):
            reports = self._arrived.pop(at)
            arrived, at_s = _by_way(reports), _time_s(reports)
            exposed = self._clocks.note(arrived, at_s)
            if exposed:
                self._forget(exposed.__contains__)  # it was learnt as if they had one clock
            self._sort(at, arrived, at_s)
        self.level(step)
        moves = [(InvestigationMove.ASK, link) for link in self._in_doubt(step)]
        for link, track in self.tracks.items():
            if track.is_quiet():
                continue
            move = self._read(track, step, busy_ends(link))
            if move:
                moves.append((move, link))
        return moves

    def _read(self, track: LinkTrack, step: int, explained_s: float) -> InvestigationMove | None:
        change = self._look(track, step)
        if change and change.onset and self._excess_s(track, change.since) < 2.0 * explained_s:
            change = None
        reading = self._reading(track, step, change)
        move = track.investigation.read(reading) or self._persisting(track, step, explained_s)
        if move is InvestigationMove.TELL:
            track.tell(idle=reading.now is None)
        return move

    def _in_doubt(self, step: int) -> list[Link]:
        """Links with messages in one direction only whose clocks are not known well enough."""
        found = []
        for link, at_s in self._one_way.items() if self._settings.validate else ():
            offset = self._clocks.offset(link, at_s)
            is_known = offset is not None and offset.wander_s <= _DOUBT * self.floor_s
            asked = self._echoed.get(link)
            if not is_known and not (
                asked is not None and asked <= step < asked + self._settings.num_patience_steps
            ):
                self._echoed[link] = step
                found.append(link)
        return found

    def _forget(self, is_gone: Callable[[Link], bool]) -> None:
        self.tracks = {link: t for link, t in self.tracks.items() if not is_gone(link)}
        self._baselines = {
            (source, to, kind): baseline
            for (source, to, kind), baseline in self._baselines.items()
            if not is_gone(link_of(source, to))
        }

    def _baseline(self, way: Link, kind: str) -> Baseline:
        key = (*way, kind)
        found = self._baselines.get(key)
        if found is None:
            found = self._baselines[key] = Baseline()
        return found

    def _track(self, link: Link) -> LinkTrack:
        if link not in self.tracks:
            self.tracks[link] = LinkTrack(self._settings)
        return self.tracks[link]

    def _sample(
        self, row: Transfer, way: Link, track: LinkTrack | None, offset: ClockOffset
    ) -> LinkSample | None:
        num_bytes, moved_s = row.num_bytes / max(row.count, 1), _moved_s(row, way, offset)
        baseline = self._baseline(way, row.kind)
        base_s = baseline.predict_s(num_bytes)
        # Compared with itself before, a difference of the two ways is no error of the clocks.
        doubt_s = offset.within_s if base_s is None else offset.wander_s
        if track is None or track.investigation.phase is InvestigationPhase.HEALTHY:
            baseline.add(moved_s, num_bytes)
        if base_s is None:
            base_s = self._fleet_s(row.kind, num_bytes)
        if base_s is None and row.kind == "probe" and track is not None and track.history:
            base_s = track.base_s  # the first measurement ever: as the ordinary messages
        if base_s is None or not self.floor_s:
            return None
        return compared(moved_s, base_s, self.floor_s, doubt_s)

    def _fleet_s(self, kind: str, num_bytes: float) -> float | None:
        """What a message of this kind takes over the other links."""
        known = [
            base_s
            for (_, _, of), baseline in self._baselines.items()
            if of == kind and (base_s := baseline.predict_s(num_bytes)) is not None
        ]
        return median(known) if known else None

    def _look(self, track: LinkTrack, step: int) -> LevelChange | None:
        if not track.history or track.history[-1][0] != step:
            return None
        if track.series is not None:
            return track.series.update(step, track.history[-1][1].value)
        track.series = Series(self._settings.change)
        change = None
        for at, sample in track.history:
            change = track.series.update(at, sample.value) or change
        return change

    def _reading(self, track: LinkTrack, step: int, change: LevelChange | None) -> Reading:
        busy = bool(track.history) and track.history[-1][0] >= step - 1
        probe = self._measured(track)
        now = track.newest() if busy else None
        steady = track.series.steady() if busy and track.series else None
        reading = Reading(step, change, now, steady, probe)
        self._sleep(track)
        return reading

    def _measured(self, track: LinkTrack) -> float | None:
        """What the measurement that was asked for shows."""
        investigation = track.investigation
        if (
            track.probe is None
            or investigation.asked is None
            or track.probe[0] < investigation.asked
        ):
            return None
        return track.probe[1].value

    def _sleep(self, track: LinkTrack) -> None:
        recent = list(track.history)[-NUM_NOW:]
        quiet = all(sample.value < AWAKE for _, sample in recent)
        if track.investigation.phase is InvestigationPhase.HEALTHY and quiet:
            track.series = None

    def _persisting(
        self, track: LinkTrack, step: int, explained_s: float
    ) -> InvestigationMove | None:
        """Slow from its first message on: there is no change to be found."""
        now, investigation = track.newest(), track.investigation
        if (
            investigation.phase is not InvestigationPhase.HEALTHY
            or investigation.tried
            or now is None
        ):
            return None
        first = track.history[0][0]
        newest = [sample.value for _, sample in list(track.history)[-NUM_NOW:]]
        if min(newest) < self._settings.slow or len(track.history) > 2 * NUM_NOW:
            return None
        if self._excess_s(track, first) < 2.0 * explained_s:
            return None
        return investigation.suspect(step, first, now, 0.7, from_start=True)

    def _excess_s(self, track: LinkTrack, since: int) -> float:
        samples = track.samples_since(since)
        return median(sample.excess_s for sample in samples) if samples else 0.0


def _by_way(reports: Iterable[StepObservation]) -> dict[Link, list[Transfer]]:
    arrived: dict[Link, list[Transfer]] = {}
    for report in reports:
        for row in report.transfers:
            arrived.setdefault((row.source, report.worker), []).append(row)
    return arrived


def _moved_s(row: Transfer, way: Link, offset: ClockOffset) -> float:
    """Whatever the clocks of the two ends say."""
    return row.moved_s - (offset.offset_s if way[0] < way[1] else -offset.offset_s)


def _time_s(reports: Iterable[StepObservation]) -> float:
    """One moment for all rows of a step: then both directions of a link keep their sum."""
    return max((_when_s(report) for report in reports), default=0.0)


def _when_s(report: StepObservation) -> float:
    return float(report.step) if report.at_s is None else report.at_s


def _merged(known: _Known) -> LinkSample:
    """All kinds of a direction in one value; in seconds the most frequent kind speaks."""
    if len(known) == 1:
        return known[0][1]
    total = sum(row.count for row, _ in known)
    value = sum(row.count * sample.value for row, sample in known) / max(total, 1)
    _, main = max(known, key=lambda pair: pair[0].count)
    return main._replace(value=value)
