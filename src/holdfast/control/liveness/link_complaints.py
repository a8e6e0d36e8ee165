"""Complaints about data connections: a graph of bad links, and who is left out if they stay bad.

A complaint names a link and no culprit: the fault may be at either end, or between them. One whose
process is gone shows by other signs within a moment; for the others the connection is made anew.
Only a link that is complained of again and again costs a worker, and then as few as will do. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from holdfast.cluster import WorkerId

PATIENCE_S = 0.3  # the agent, or a closed control connection, has told of a death by then
MOST_COMPLAINTS = 3  # of one link, each in another epoch: it does not get better
_MOST_EXACT = 12  # ends of bad links, up to which every set is tried

Link = tuple[WorkerId, WorkerId]  # in the order of their names


@dataclass(frozen=True, slots=True)
class Judgement:
    """``mend``: let all connect anew. ``leave_out``: and go on without these."""

    mend: tuple[Link, ...] = ()
    leave_out: tuple[WorkerId, ...] = ()


@dataclass(slots=True)
class _Complaint:
    first_s: float
    epoch: int


@dataclass
class LinkComplaints:
    """What was said of each link. ``judge`` it now and then: complaints wait for that."""

    _open: dict[Link, _Complaint] = field(default_factory=dict)
    _past: dict[Link, list[float]] = field(default_factory=dict)  # times, one an epoch

    def complain(self, by: WorkerId, about: WorkerId, epoch: int, at_s: float) -> None:
        link = (min(by, about), max(by, about))
        known = self._open.get(link)
        if known is None or known.epoch != epoch:
            self._open[link] = _Complaint(at_s, epoch)

    def judge(
        self,
        at_s: float,
        epoch: int,
        stages: Mapping[WorkerId, int],
        window_s: float,
    ) -> Judgement:
        """``stages``: of the members. A link is bad that was complained of so often in the window.

        Empty while nothing is due. What is judged is over: it takes a new complaint.
        """
        self._open = {
            link: one
            for link, one in self._open.items()
            if one.epoch == epoch and all(end in stages for end in link)
        }
        due = [link for link, one in self._open.items() if at_s - one.first_s >= PATIENCE_S]
        if not due:
            return Judgement()
        for link in self._open:  # who complains a moment later speaks of the same trouble
            self._past.setdefault(link, []).append(at_s)
        judged, self._open = tuple(sorted(self._open)), {}
        bad = [link for link in judged if self._count(link, at_s - window_s) >= MOST_COMPLAINTS]
        return Judgement(judged, smallest_cover(bad, self._costs(bad, stages)))

    def forget(self, worker: WorkerId) -> None:
        """Whoever comes under its name has other connections."""
        self._open = {link: one for link, one in self._open.items() if worker not in link}
        self._past = {link: times for link, times in self._past.items() if worker not in link}

    def _count(self, link: Link, since_s: float) -> int:
        self._past[link] = [at_s for at_s in self._past[link] if at_s >= since_s]
        return len(self._past[link])

    def _costs(
        self, bad: Iterable[Link], stages: Mapping[WorkerId, int]
    ) -> Callable[[WorkerId], float]:
        """Rather one whose stage has another holder, and whom more of the links have in common."""
        held = list(stages.values())
        num_links = {end: sum(end in link for link in self._past) for one in bad for end in one}
        return lambda end: (held.count(stages[end]) == 1) - num_links[end] / (1 + len(self._past))


def smallest_cover(
    links: Sequence[Link], cost: Callable[[WorkerId], float] = lambda end: 0.0
) -> tuple[WorkerId, ...]:
    """As few ends as touch every link; among equals the cheapest, then by name."""
    ends = sorted({end for link in links for end in link})
    if len(ends) > _MOST_EXACT:
        return _greedy_cover(links)
    for size in range(len(ends) + 1):
        covers = [some for some in combinations(ends, size) if _covers(some, links)]
        if covers:
            return min(covers, key=lambda some: (sum(map(cost, some)), some))
    raise AssertionError("all ends together cover every link")


def _covers(some: Collection[WorkerId], links: Iterable[Link]) -> bool:
    return all(one in some or other in some for one, other in links)


def _greedy_cover(links: Sequence[Link]) -> tuple[WorkerId, ...]:
    """At most a logarithm more than the fewest."""
    left, taken = list(links), []
    while left:
        ends = sorted({end for link in left for end in link})
        most = max(ends, key=lambda end: sum(end in link for link in left))
        taken.append(most)
        left = [link for link in left if most not in link]
    return tuple(sorted(taken))
