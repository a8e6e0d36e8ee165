"""What is wrong with machines and links, and what to do about it. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from holdfast.addresses import host_port
from holdfast.clocks import ClockOffset
from holdfast.launch.preflight.facts import LinkFacts, MachineFacts

Links = Mapping[tuple[str, str], LinkFacts]  # from, to
_SLOW_SHARE = 0.25  # of the usual rate
_LEAST_BYTES_PER_S = 12.5e6  # 100 Mbit/s
_FAR_TIMES, _FAR_S = 4.0, 0.5e-3  # more than the usual way
_MOST_ROUND_TRIP_S = 5e-3
_MOST_OFFSET_S = 1.0


class SurveyFinding(NamedTuple):
    where: str  # a machine, or one and another
    what: str
    to_do: str
    is_fatal: bool  # a run cannot work so

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.to_do}"


@dataclass(frozen=True)
class Surveyed:
    """All that was found out."""

    machines: Sequence[MachineFacts]
    links: Links
    clocks: Mapping[str, ClockOffset] = field(default_factory=dict)  # to the coordinator's
    missing: Mapping[str, str] = field(default_factory=dict)  # machine -> why it is not there
    wanted: int = 0

    def findings(self) -> list[SurveyFinding]:
        found = [*self._missing(), *self._versions(), *self._reach(), *self._pace(), *self._time()]
        return sorted(found, key=lambda each: not each.is_fatal)

    def _missing(self) -> list[SurveyFinding]:
        found = [
            SurveyFinding(machine, why, "then look again", True)
            for machine, why in self.missing.items()
        ]
        away = self.wanted - len(self.machines)
        if away > len(found):
            what = f"{len(self.machines)} of {self.wanted} have come"
            to_do = "start 'holdfast preflight' with the ticket on each of them"
            found.append(SurveyFinding("machines", what, to_do, True))
        return found

    def _versions(self) -> list[SurveyFinding]:
        """Of whoever differs from most."""
        found = []
        for what, to_do in (
            ("holdfast", "install the same on all machines"),
            ("torch", "install the same on all machines: other versions give other bits"),
            ("python", "use the same on all machines"),
        ):
            seen = Counter(getattr(each, what) for each in self.machines)
            usual = seen.most_common(1)[0][0] if seen else ""
            found += [
                SurveyFinding(
                    each.machine,
                    f"has {what} {getattr(each, what)}, others have {usual}",
                    to_do,
                    what != "python",
                )
                for each in self.machines
                if getattr(each, what) != usual
            ]
        return found

    def _reach(self) -> list[SurveyFinding]:
        at = {each.machine: host_port(each.host, each.port) for each in self.machines}
        return [
            SurveyFinding(
                f"{caller} -> {there}",
                f"cannot be reached at {at.get(there, '?')} ({link.reason})",
                f"open the ports of {there} for {caller}, or let {there} advertise another address",
                True,
            )
            for (caller, there), link in self.links.items()
            if link.reason
        ]

    def _pace(self) -> list[SurveyFinding]:
        good = {pair: link for pair, link in self.links.items() if not link.reason}
        if not good:
            return []
        usual_bytes_per_s = median(link.bytes_per_s for link in good.values())
        usual_s = median(link.round_trip_s for link in good.values())
        least = max(_LEAST_BYTES_PER_S, _SLOW_SHARE * usual_bytes_per_s)
        most_s = min(_MOST_ROUND_TRIP_S, _FAR_TIMES * usual_s + _FAR_S)
        found = []
        for (caller, there), link in good.items():
            where = f"{caller} -> {there}"
            if link.bytes_per_s < least:
                what = f"slow: {rate(link.bytes_per_s)}, usual are {rate(usual_bytes_per_s)}"
                to_do = "look at its cable, card and switch; the planner puts little on slow links"
                found.append(SurveyFinding(where, what, to_do, False))
            if link.round_trip_s > most_s:
                what = f"far: {way(link.round_trip_s)} there and back, usual are {way(usual_s)}"
                to_do = "put machines that talk to each other close together"
                found.append(SurveyFinding(where, what, to_do, False))
        return found

    def _time(self) -> list[SurveyFinding]:
        return [
            SurveyFinding(
                machine,
                f"its clock is {offset.offset_s:+.1f} s off",
                "set it, e.g. by chrony: Holdfast compares no clocks, but S3 and logs do",
                False,
            )
            for machine, offset in self.clocks.items()
            if abs(offset.offset_s) > _MOST_OFFSET_S + offset.within_s
        ]


def rate(bytes_per_s: float) -> str:
    megabits = 8e-6 * bytes_per_s
    return f"{megabits / 1e3:.1f} Gbit/s" if megabits >= 1000 else f"{megabits:.3g} Mbit/s"


def way(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
