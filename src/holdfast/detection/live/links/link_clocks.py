"""Times under way, freed from the clocks of their two ends. What is slow is not decided here.

Workers of one machine have one clock. Those of two have a clock each: what one direction of a link
says means nothing by itself, and the estimate of their offset comes from both directions.
"""

from collections.abc import Mapping, Sequence

from holdfast.clocks import ClockEstimate, ClockOffset, Exchange
from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import Link, link_of
from holdfast.detection.observation import Transfer

_LEAST_S = -1e-4  # less than that no message of one clock can take
_NONE = ClockOffset(0.0, 0.0, 0.0)  # of a clock from itself

Arrived = Mapping[Link, Sequence[Transfer]]  # what came in a step, by way: from, to


class LinkClocks:
    def __init__(self) -> None:
        self._machines: dict[WorkerId, str] = {}
        self._exposed: set[Link] = set()  # of one machine by their names, but of two clocks
        self._estimates: dict[Link, ClockEstimate] = {}
        self._told: dict[Link, ClockOffset | None] = {}  # of one moment: asked for several times
        self._told_at_s = 0.0

    def place(self, worker: WorkerId, machine: str) -> None:
        self._machines[worker] = machine
        self._told.clear()

    def forget(self, worker: WorkerId) -> None:
        self._machines.pop(worker, None)
        self._told.clear()
        self._exposed = {link for link in self._exposed if worker not in link}
        self._estimates = {k: e for k, e in self._estimates.items() if worker not in k}

    def are_two(self, link: Link) -> bool:
        one, other = self._machines.get(link[0]), self._machines.get(link[1])
        if one != other and one is not None and other is not None:
            return True
        return link in self._exposed

    def note(self, arrived: Arrived, at_s: float) -> set[Link]:
        """All of one step. Returns links whose ends turn out to have two clocks."""
        self._told.clear()
        shortest_s = {
            way: rows[0].moved_s if len(rows) == 1 else min([row.moved_s for row in rows])
            for way, rows in arrived.items()
        }
        exposed = set()
        for way, moved_s in shortest_s.items():
            if moved_s < _LEAST_S and not self.are_two(link := link_of(*way)):
                exposed.add(link)
                self._exposed.add(link)
        for way, there_s in shortest_s.items():
            source, to = way
            back_s = shortest_s.get((to, source)) if source < to else None
            if back_s is not None and self.are_two(way):
                estimate = self._estimates.get(way)
                if estimate is None:
                    estimate = self._estimates[way] = ClockEstimate()
                estimate.add(Exchange(at_s, -back_s, there_s))
        return exposed

    def one_way(self, arrived: Arrived) -> list[Link]:
        """Links of two clocks that carry something in one direction only, besides probes."""
        ways = {
            way
            for way, rows in arrived.items()
            if rows[0].kind != "probe" or any([row.kind != "probe" for row in rows])
        }
        links = [link_of(*way) for way in ways if (way[1], way[0]) not in ways]
        return sorted(link for link in links if self.are_two(link))

    def offset(self, link: Link, at_s: float) -> ClockOffset | None:
        """Of its second end's clock: what goes there seems to take that much longer. One for all
        rows of a moment, so that the two directions keep their sum. None: not known."""
        if at_s != self._told_at_s:
            self._told.clear()
            self._told_at_s = at_s
        if link not in self._told:
            self._told[link] = self._offset(link, at_s)
        return self._told[link]

    def _offset(self, link: Link, at_s: float) -> ClockOffset | None:
        if not self.are_two(link):
            return _NONE
        estimate = self._estimates.get(link)
        return None if estimate is None else estimate.at(at_s)
