"""Of heartbeats that are passed on, only what is news. Pure.

Where workers beat several times a second, what each is busy with is passed on about once a second,
and in between only that it has beaten. What is acted on at once is passed on at once.
"""

from dataclasses import replace

from holdfast.protocol.gathering import beats_of
from holdfast.protocol.messages import Gathered
from holdfast.protocol.records import AliveRow, BeatRow, LongestRow

DETAILS_S = 1.0  # not longer without them, unless heartbeats are rarer: so much counts at once


class Thinning:
    """Of what one agent passes on."""

    def __init__(self) -> None:
        self._number = 0  # of what was passed on
        self._told: dict[str, tuple[int, tuple[object, ...]]] = {}  # by worker: when, and what
        self._longest: dict[str, dict[str, float]] = {}  # likewise: since it was told of

    def forget(self, worker: str) -> None:
        """Somebody else comes under this name."""
        self._told.pop(worker, None)
        self._longest.pop(worker, None)

    def begin_anew(self) -> None:
        """Whoever hears it from now on knows nothing of what was told."""
        self._told.clear()

    def thinned(self, gathered: Gathered, beat_s: float) -> Gathered:
        """The newest heartbeat of each, or that there was one. ``beat_s``: between two calls."""
        self._number += 1
        newest: dict[str, BeatRow] = {}
        for row, longest in beats_of(gathered):
            newest[row.worker] = row
            known = self._longest.setdefault(row.worker, {})
            for kind, took_s in longest:
                known[kind] = max(took_s, known.get(kind, 0.0))
        first = self._number - max(1, int(DETAILS_S / beat_s + 1e-6)) + 1
        alive: list[AliveRow] = []
        beats: list[BeatRow] = []
        rows: list[LongestRow] = []
        for worker, row in newest.items():
            urgent = (row.epoch, row.attempt, row.saving, row.renewed)
            number, told = self._told.get(worker, (0, ()))
            if number >= first and told == urgent:
                alive.append(AliveRow(worker))
                continue
            self._told[worker] = (self._number, urgent)
            own = self._longest.pop(worker)
            beats.append(row._replace(num_longest=len(own)))
            rows += [LongestRow(*one) for one in own.items()]
        return replace(gathered, alive=[*gathered.alive, *alive], beats=beats, longest=rows)
