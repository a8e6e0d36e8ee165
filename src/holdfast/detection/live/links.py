"""Which links are slow, from the time that messages were under way. Both directions of a link,
and all kinds of messages over it, are one subject. Slow workers are not looked at here."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.detection.change.series import LevelChange, Series
from holdfast.detection.diagnosis import Link, link_of
from holdfast.detection.live.investigation import (
    Investigation,
    InvestigationMove,
    InvestigationPhase,
    Reading,
)
from holdfast.detection.live.predicted import lower_median
from holdfast.detection.live.settings import WatchSettings
from holdfast.detection.observation import Transfer

_NUM_BASELINE = 8  # values of a direction and kind that are its baseline
_NUM_LEAST = 3  # ... and how many must be there before it is used
_NUM_HISTORY = 24
_NUM_CROWD = 3  # links of one step, of which two are most
_NUM_NOW = 5
_AWAKE = math.log(1.35)  # a value above it: the link is looked at closely
_LEAST_SHARE = 0.1  # of the floor: no time counts as less


class _Baseline:
    """Of one direction and kind."""

    def __init__(self) -> None:
        self.first: list[tuple[float, float]] = []  # seconds, bytes a message
        self._known: tuple[float, float] | None = None

    def add(self, moved_s: float, num_bytes: float) -> None:
        if len(self.first) < _NUM_BASELINE:
            self.first.append((moved_s, num_bytes))
            middle = sorted(self.first)[(len(self.first) - 1) // 2]
            self._known = middle if len(self.first) >= _NUM_LEAST else None

    def predict_s(self, num_bytes: float) -> float | None:
        """Larger messages than it was learnt from may take longer in proportion."""
        if self._known is None:
            return None
        moved_s, learnt_bytes = self._known
        return moved_s * max(1.0, num_bytes / learnt_bytes if learnt_bytes else 1.0)


class LinkSample(NamedTuple):
    value: float  # log of (floor + time) / (floor + baseline)
    moved_s: float
    base_s: float

    @property
    def excess_s(self) -> float:
        return max(0.0, self.moved_s - self.base_s)


class LinkTrack:
    def __init__(self, settings: WatchSettings) -> None:
        self.investigation = Investigation(settings)
        self.history: deque[tuple[int, LinkSample]] = deque(maxlen=_NUM_HISTORY)
        self.series: Series | None = None  # only while it is looked at closely
        self.probe: tuple[int, LinkSample] | None = None
        self.told: LinkSample | None = None  # as the last diagnosis had it

    def samples_since(self, step: int) -> list[LinkSample]:
        return [sample for at, sample in self.history if at >= step]

    def measured(self, step: int, sample: LinkSample) -> None:
        """Of the two directions the slower one counts."""
        if self.probe is not None and self.probe[0] == step:
            sample = max(sample, self.probe[1])
        self.probe = (step, sample)

    def tell(self, *, idle: bool) -> None:
        if idle and self.probe is not None:
            self.told = self.probe[1]
            return
        samples = self.samples_since(self.investigation.since)[-_NUM_NOW:] or [self.history[-1][1]]
        self.told = LinkSample(
            self.investigation.excess,
            median(sample.moved_s for sample in samples),
            median(sample.base_s for sample in samples),
        )

    @property
    def base_s(self) -> float:
        return median(sample.base_s for _, sample in self.history)

    def quiet(self) -> bool:
        """Nothing to look at: most links, most of the time."""
        if self.series is not None or not self.investigation.rests:
            return False
        newest = list(islice(reversed(self.history), 2))  # one late message is no slowness
        return len(newest) < 2 or min(sample.value for _, sample in newest) < _AWAKE

    def newest(self) -> float | None:
        if len(self.history) < _NUM_NOW:
            return None
        return median(sample.value for _, sample in list(self.history)[-_NUM_NOW:])


class LinkWatcher:
    def __init__(self, settings: WatchSettings) -> None:
        # A link's times are small numbers: more must happen before it counts.
        self._settings = replace(
            settings, slow_factor=1.5, relief_factor=1.3, obvious_factor=math.inf
        )
        self._baselines: dict[tuple[WorkerId, WorkerId, str], _Baseline] = {}
        self.tracks: dict[Link, LinkTrack] = {}
        self.floor_s = 0.0

    def remove(self, worker: WorkerId) -> None:
        self.tracks = {link: t for link, t in self.tracks.items() if worker not in link}
        self._baselines = {key: b for key, b in self._baselines.items() if worker not in key[:2]}

    def learn(self, to: WorkerId, transfers: Iterable[Transfer]) -> None:
        for row in transfers:
            self._baseline(row, to).add(row.moved_s, row.num_bytes / max(row.count, 1))

    def observe(self, step: int, to: WorkerId, transfers: Iterable[Transfer]) -> None:
        """One worker's transfers of a step; `conclude` comes after those of all."""
        rows: dict[WorkerId, list[tuple[Transfer, LinkSample]]] = {}
        for row in transfers:
            sample = self._sample(row, to)
            if sample is None or row.source == to:
                continue
            rows.setdefault(row.source, []).append((row, sample))
        for source, known in rows.items():
            track = self._track(link_of(source, to))
            for row, sample in known:
                if row.kind == "probe":
                    track.measured(step, sample)
            ordinary = [pair for pair in known if pair[0].kind != "probe"]
            if ordinary:
                self._note(track, step, _merged(ordinary))

    def level(self, step: int) -> None:
        """What most links have in common in a step is the machines' business, no link's."""
        here = [t.history for t in self.tracks.values() if t.history and t.history[-1][0] == step]
        if len(here) < _NUM_CROWD:
            return
        common = lower_median(history[-1][1].value for history in here)
        if common > 0:
            for history in here:
                sample = history[-1][1]
                history[-1] = (step, sample._replace(value=sample.value - common))

    def conclude(
        self, step: int, busy_ends: Callable[[Link], float]
    ) -> list[tuple[InvestigationMove, Link]]:
        """``busy_ends``: seconds that slowness of the two ends' own computation may explain."""
        self.level(step)
        moves = []
        for link, track in self.tracks.items():
            if track.quiet():
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

    def _baseline(self, row: Transfer, to: WorkerId) -> _Baseline:
        return self._baselines.setdefault((row.source, to, row.kind), _Baseline())

    def _track(self, link: Link) -> LinkTrack:
        if link not in self.tracks:
            self.tracks[link] = LinkTrack(self._settings)
        return self.tracks[link]

    def _sample(self, row: Transfer, to: WorkerId) -> LinkSample | None:
        num_bytes = row.num_bytes / max(row.count, 1)
        baseline = self._baseline(row, to)
        base_s = baseline.predict_s(num_bytes)
        track = self.tracks.get(link_of(row.source, to))
        if track is None or track.investigation.phase is InvestigationPhase.HEALTHY:
            baseline.add(row.moved_s, num_bytes)
        if base_s is None:
            base_s = self._fleet_s(row.kind, num_bytes)
        if base_s is None and row.kind == "probe" and track is not None and track.history:
            base_s = track.base_s  # the first measurement ever: as the ordinary messages
        if base_s is None or not self.floor_s:
            return None
        # Clocks of two machines may make a time negative.
        least_s = _LEAST_SHARE * self.floor_s
        now_s = max(least_s, self.floor_s + row.moved_s)
        value = math.log(now_s / max(least_s, self.floor_s + base_s))
        return LinkSample(value, row.moved_s, base_s)

    def _fleet_s(self, kind: str, num_bytes: float) -> float | None:
        """What a message of this kind takes over the other links."""
        known = [
            base_s
            for (_, _, of), baseline in self._baselines.items()
            if of == kind and (base_s := baseline.predict_s(num_bytes)) is not None
        ]
        return median(known) if known else None

    def _note(self, track: LinkTrack, step: int, sample: LinkSample) -> None:
        if track.history and track.history[-1][0] == step:
            _, other = track.history.pop()
            sample = max(sample, other)
        track.history.append((step, sample))

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
        recent = list(track.history)[-_NUM_NOW:]
        quiet = all(sample.value < _AWAKE for _, sample in recent)
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
        newest = [sample.value for _, sample in list(track.history)[-_NUM_NOW:]]
        if min(newest) < self._settings.slow or len(track.history) > 2 * _NUM_NOW:
            return None
        if self._excess_s(track, first) < 2.0 * explained_s:
            return None
        return investigation.suspect(step, first, now, 0.7, from_start=True)

    def _excess_s(self, track: LinkTrack, since: int) -> float:
        samples = track.samples_since(since)
        return median(sample.excess_s for sample in samples) if samples else 0.0


def _merged(known: list[tuple[Transfer, LinkSample]]) -> LinkSample:
    """All kinds of a direction in one value; in seconds the most frequent kind speaks."""
    if len(known) == 1:
        return known[0][1]
    total = sum(row.count for row, _ in known)
    value = sum(row.count * sample.value for row, sample in known) / max(total, 1)
    _, main = max(known, key=lambda pair: pair[0].count)
    return LinkSample(value, main.moved_s, main.base_s)
