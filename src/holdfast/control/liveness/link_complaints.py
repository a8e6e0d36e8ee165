"""Complaints about data connections: a graph of bad links, and who is left out if they stay bad.

A complaint names a link and no culprit: the fault may be at either end, or between them. One whose
process is gone shows by other signs within a moment; for the others the connection is made anew.
Only a link that is complained of again and again costs a worker, or the machine it is on where
there are several, and then as few as will do. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.cluster import WorkerId
from holdfast.control.liveness.link_cover import smallest_cover

PATIENCE_S = 0.3  # the agent, or a closed control connection, has told of a death by then
MOST_COMPLAINTS = 3  # of one link, each in another epoch: it does not get better

Link = tuple[WorkerId, WorkerId]  # in the order of their names
MachineLink = tuple[str, str]  # likewise


@dataclass(frozen=True, slots=True)
class Judgement:
    """``mend``: let all connect anew. ``leave_out``: and go on without these, and without all that
    are on these ``machines``."""

    mend: tuple[Link, ...] = ()
    leave_out: tuple[WorkerId, ...] = ()
    machines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineSeats:
    """On which machine each worker is. ``own``: where the coordinator is; empty: not known."""

    machine_of: Mapping[WorkerId, str] = field(default_factory=dict)
    own: str = ""

    def between(self, link: Link) -> MachineLink | None:
        """None: it is within a machine, or one of its ends is on no known one."""
        one, other = (self.machine_of.get(end, "") for end in link)
        return (min(one, other), max(one, other)) if one and other and one != other else None


_NO_SEATS = MachineSeats()


@dataclass(slots=True)
class _Complaint:
    first_s: float
    epoch: int


@dataclass
class LinkComplaints:
    """What was said of each link. ``judge`` it now and then: complaints wait for that."""

    _open: dict[Link, _Complaint] = field(default_factory=dict)
    _past: dict[Link, list[float]] = field(default_factory=dict)  # times, one an epoch

    @property
    def is_quiet(self) -> bool:
        """There is nothing to judge."""
        return not self._open

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
        seats: MachineSeats = _NO_SEATS,
    ) -> Judgement:
        """``stages``: of the members. A link is bad that was complained of so often in the window.

        Empty while nothing is due. What is judged is over: it takes a new complaint. ``seats``:
        given if there are several machines.
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
        self._forget_before(at_s - window_s)
        far = {between for link in judged if (between := seats.between(link))}
        bad_far = [link for link in sorted(far) if self._is_bad_between(link, seats)]
        bad = [link for link in judged if not seats.between(link) and self._is_bad(link)]
        return Judgement(
            judged,
            smallest_cover(bad, self._costs(bad, stages)),
            smallest_cover(bad_far, _machine_costs(bad_far, stages, seats), keep=seats.own),
        )

    def forget(self, worker: WorkerId) -> None:
        """Whoever comes under its name has other connections."""
        self._open = {link: one for link, one in self._open.items() if worker not in link}
        self._past = {link: times for link, times in self._past.items() if worker not in link}

    def _forget_before(self, since_s: float) -> None:
        kept = {link: [s for s in times if s >= since_s] for link, times in self._past.items()}
        self._past = {link: times for link, times in kept.items() if times}

    def _is_bad(self, link: Link) -> bool:
        return len(self._past[link]) >= MOST_COMPLAINTS

    def _is_bad_between(self, machines: MachineLink, seats: MachineSeats) -> bool:
        """Whichever of their workers complained: what is judged together counts once."""
        of_both = [past for link, past in self._past.items() if seats.between(link) == machines]
        return len({at_s for past in of_both for at_s in past}) >= MOST_COMPLAINTS

    def _costs(
        self, bad: Iterable[Link], stages: Mapping[WorkerId, int]
    ) -> Callable[[tuple[WorkerId, ...]], float]:
        """Rather one whose stage has another holder, and whom more of the links have in common."""
        held = list(stages.values())
        num_links = {end: sum(end in link for link in self._past) for one in bad for end in one}

        def cost(end: WorkerId) -> float:
            return (held.count(stages[end]) == 1) - num_links[end] / (1 + len(self._past))

        return lambda some: sum(map(cost, some))


def _machine_costs(
    bad: Iterable[MachineLink], stages: Mapping[WorkerId, int], seats: MachineSeats
) -> Callable[[tuple[str, ...]], tuple[int, bool, int, int]]:
    """Rather so that every stage keeps a holder, the coordinator's own machine stays, and most
    workers do."""
    links = list(bad)

    def cost(some: tuple[str, ...]) -> tuple[int, bool, int, int]:
        left = {w: stage for w, stage in stages.items() if seats.machine_of.get(w) not in some}
        num_lost_stages = len(set(stages.values())) - len(set(left.values()))
        num_links = sum(end in link for end in some for link in links)
        return num_lost_stages, seats.own in some, -len(left), -num_links

    return cost
