"""What is wrong with machines and links, and what to do about it. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from holdfast.addresses import host_port
from holdfast.clocks import ClockOffset
from holdfast.launch.preflight.facts import LinkFacts, MachineFacts

Pair = tuple[str, str]  # who calls, and who is called
Links = Mapping[Pair, LinkFacts]
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
        rates = {pair: link.bytes_per_s for pair, link in good.items()}
        ways = {pair: link.round_trip_s for pair, link in good.items()}
        if not good:
            return []
        least = max(_LEAST_BYTES_PER_S, _SLOW_SHARE * median(rates.values()))
        most_s = min(_MOST_ROUND_TRIP_S, _FAR_TIMES * median(ways.values()) + _FAR_S)
        slow = {pair: each for pair, each in rates.items() if each < least}
        far = {pair: each for pair, each in ways.items() if each > most_s}
        found = []
        for where, pairs in _gathered(slow, good):
            what = f"slow: {rate(min(slow[pair] for pair in pairs))}{_others(rates, slow, rate)}"
            to_do = "look at its cable, card and switch"
            found.append(SurveyFinding(where, what, to_do, False))
        for where, pairs in _gathered(far, good):
            longest_s = max(far[pair] for pair in pairs)
            what = f"far: {way(longest_s)} there and back{_others(ways, far, way)}"
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


def _gathered(bad: Iterable[Pair], links: Iterable[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    """A machine all of whose links are bad is one finding, and so are both ways between two."""
    left, every = list(bad), list(links)
    machines = dict.fromkeys(name for pair in left for name in pair)
    for machine in machines if len({name for pair in every for name in pair}) > 2 else ():
        own = [pair for pair in every if machine in pair]
        if left and all(pair in left for pair in own):
            left = [pair for pair in left if pair not in own]
            yield f"{machine}, all its links", own
    while left:
        one, two = left[0]
        both = [pair for pair in left if set(pair) == {one, two}]
        left = [pair for pair in left if pair not in both]
        yield f"{one} {'<->' if len(both) == 2 else '->'} {two}", both


def _others(
    every: Mapping[Pair, float], bad: Mapping[Pair, float], words: Callable[[float], str]
) -> str:
    good = [value for pair, value in every.items() if pair not in bad]
    return f", others have {words(median(good))}" if good else ""


def rate(bytes_per_s: float) -> str:
    megabits = 8e-6 * bytes_per_s
    return f"{megabits / 1e3:.1f} Gbit/s" if megabits >= 1000 else f"{megabits:.3g} Mbit/s"


def way(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
