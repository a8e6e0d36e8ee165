"""The side that coordinates a preflight: lets machines in, and has each pair look at each other."""

import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.auth.handshake import COORDINATOR
from holdfast.clocks import ClockEstimate, ClockOffset, Exchange
from holdfast.errors import HoldfastError, PeerLost
from holdfast.launch.preflight.facts import LinkFacts, MachineFacts, link_facts, machine_facts
from holdfast.launch.preflight.findings import Surveyed
from holdfast.launch.preflight.talk import Talk, answered
from holdfast.names import MACHINE

_TURN_S = 0.2
_PROBE_LIMIT_S = 90.0
_TIME_LIMIT_S = 10.0
_NUM_EXCHANGES = 8


class Survey:
    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        wanted: int,
        say: Callable[[str], None],
        wall_s: Callable[[], float] = lambda: time.time(),
    ) -> None:
        self._listener, self._secret, self._wanted = listener, secret, wanted
        self._say, self._wall_s = say, wall_s
        self._here: dict[str, tuple[MachineFacts, Talk]] = {}
        self._lost: dict[str, str] = {}

    def gather(self, limit_s: float, is_vain: Callable[[], bool]) -> None:
        """Until all are here, or no more can come, or the time is over."""
        deadline_s = time.monotonic() + limit_s
        self._listener.settimeout(_TURN_S)
        while len(self._here) < self._wanted and time.monotonic() < deadline_s and not is_vain():
            try:
                sock = self._listener.accept()[0]
            except TimeoutError:
                continue
            try:
                self._let_in(answered(sock, self._secret, COORDINATOR))
            except (HoldfastError, ValueError, TypeError):
                continue  # a stranger, or one that went away

    def _let_in(self, talk: Talk) -> None:
        facts = machine_facts(talk.read(_TIME_LIMIT_S))
        name = MACHINE.check(facts.machine, "machine")
        if name in self._here:
            why = f"two machines are called {name}; give them different names"
            talk.send(do="refused", why=why)
            talk.close()
            self._lost[name] = "two machines have this name"
            return
        self._here[name] = (facts, talk)
        self._say(f"{name} is here ({len(self._here)} of {self._wanted})")

    def look(self) -> Surveyed:
        """At every pair, both ways; each machine is in one probe at a time."""
        clocks = {name: clock for name in self._here if (clock := self._clock(name)) is not None}
        links: dict[tuple[str, str], LinkFacts] = {}
        with ThreadPoolExecutor(max_workers=max(1, len(self._here) // 2)) as threads:
            for pairs in rounds(list(self._here)):
                for ways in (pairs, [(there, here) for here, there in pairs]):
                    links |= zip(ways, threads.map(self._probe, ways), strict=True)
        machines = [self._here[name][0] for name in sorted(self._here)]
        return Surveyed(machines, links, clocks, self._lost, self._wanted)

    @property
    def num_here(self) -> int:
        return len(self._here)

    def expect(self, machines: int) -> None:
        """More than at first: spares are looked at too."""
        self._wanted = machines

    def miss(self, machine: str, why: str) -> None:
        self._lost[machine] = why

    def close(self) -> None:
        for _, talk in self._here.values():
            try:
                talk.send(do="end")
            except PeerLost:
                pass
            finally:
                talk.close()

    def _probe(self, pair: tuple[str, str]) -> LinkFacts:
        caller, there = pair
        facts, talk = self._here[there][0], self._here[caller][1]
        try:
            talk.send(do="probe", host=facts.host, port=facts.port)
            return link_facts(talk.read(_PROBE_LIMIT_S))
        except (HoldfastError, ValueError, TypeError) as why:
            self._lost.setdefault(caller, f"is not heard any more ({why})")
            return LinkFacts(reason=f"{caller} is not heard any more")

    def _clock(self, name: str) -> ClockOffset | None:
        """The time of day there, beside ours."""
        talk, estimate = self._here[name][1], ClockEstimate()
        try:
            for _ in range(_NUM_EXCHANGES):
                start_s = self._wall_s()
                talk.send(do="time")
                there_s = float(talk.read(_TIME_LIMIT_S)["wall_s"])
                end_s = self._wall_s()
                at_s = time.monotonic()
                estimate.add(Exchange(at_s, there_s - end_s, there_s - start_s))
        except (HoldfastError, ValueError, TypeError, KeyError) as why:
            self._lost.setdefault(name, f"is not heard any more ({why})")
            return None
        return estimate.at(at_s)


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Each pair once, nobody twice in a round: the first stays, the others go round."""
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(one, two) for one, two in pairs if one is not None and two is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found
