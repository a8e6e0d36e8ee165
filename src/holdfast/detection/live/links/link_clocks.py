"""Times under way, freed from the clocks of their two ends. What is slow is not decided here.

Workers of one machine have one clock. Those of two have a clock each: what one direction of a link
says means nothing by itself, and the estimate of their offset comes from both directions.
"""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.clocks import ClockEstimate, ClockOffset, Exchange
from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import Link, link_of
from holdfast.detection.observation import Transfer

_LEAST_S = -1e-4  # less than that no message of one clock can take


class ArrivedRow(NamedTuple):
    to: WorkerId
    row: Transfer


class LinkClocks:
    def __init__(self) -> None:
        self._machines: dict[WorkerId, str] = {}
        self._exposed: set[Link] = set()  # of one machine by their names, but of two clocks
        self._estimates: dict[Link, ClockEstimate] = {}

    def place(self, worker: WorkerId, machine: str) -> None:
        self._machines[worker] = machine

    def forget(self, worker: WorkerId) -> None:
        self._machines.pop(worker, None)
        self._exposed = {link for link in self._exposed if worker not in link}
        self._estimates = {k: e for k, e in self._estimates.items() if worker not in k}

    def are_two(self, link: Link) -> bool:
        one, other = (self._machines.get(worker) for worker in link)
        return link in self._exposed or (one != other and None not in (one, other))

    def note(self, arrived: Iterable[ArrivedRow], at_s: float) -> set[Link]:
        """All of one step. Returns links whose ends turn out to have two clocks."""
        shortest_s: dict[Link, float] = {}  # of each direction
        exposed = set()
        for to, row in arrived:
            way, link = (row.source, to), link_of(row.source, to)
            shortest_s[way] = min(row.moved_s, shortest_s.get(way, row.moved_s))
            if row.moved_s < _LEAST_S and not self.are_two(link):
                exposed.add(link)
                self._exposed.add(link)
        for (source, to), there_s in shortest_s.items():
            back_s = shortest_s.get((to, source))
            if source < to and back_s is not None and self.are_two((source, to)):
                estimate = self._estimates.setdefault((source, to), ClockEstimate())
                estimate.add(Exchange(at_s, -back_s, there_s))
        return exposed

    def one_way(self, arrived: Iterable[ArrivedRow]) -> list[Link]:
        """Links of two clocks that carry something in one direction only, besides probes."""
        ways = {(row.source, to) for to, row in arrived if row.kind != "probe" and row.source != to}
        links = [link_of(*way) for way in ways if way[::-1] not in ways]
        return sorted(link for link in links if self.are_two(link))

    def offset(self, link: Link, at_s: float) -> ClockOffset | None:
        """Of its second end's clock. None: not known."""
        if not self.are_two(link):
            return ClockOffset(0.0, 0.0, 0.0)
        estimate = self._estimates.get(link)
        return None if estimate is None else estimate.at(at_s)

    def corrected(self, arrived: ArrivedRow, at_s: float) -> Transfer | None:
        """None: it cannot be. The two directions of a moment keep their sum exactly."""
        to, row = arrived
        link = link_of(row.source, to)
        if not self.are_two(link):
            return row
        offset = self.offset(link, at_s)
        if offset is None:
            return None
        sign = 1.0 if to == link[1] else -1.0
        return row._replace(moved_s=row.moved_s - sign * offset.offset_s)
