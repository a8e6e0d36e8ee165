"""Random worlds from a seed: single failures, racks, preemption, maintenance.

Times between failures are of the whole cluster. Slowness is drawn elsewhere.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.errors import ConfigError
from holdfast.faults.rng import SeededRandom
from holdfast.simulator.worlds.world import (
    World,
    WorldEvent,
    WorldKind,
    in_order,
    require_count,
    require_few,
)

KINDS = ("poisson", "weibull", "rack", "preemption")
_WEIBULL_SHAPE = 0.7  # below 1: failures come in flocks, as in large clusters


@dataclass(frozen=True, kw_only=True)
class Failures:
    """``mtbf_s`` inf: none. ``repair_s`` is the mean time until a lost machine is back."""

    kind: str = "poisson"
    mtbf_s: float = math.inf
    repair_s: float = 1200.0
    notice_s: float = 0.0
    shape: float = _WEIBULL_SHAPE
    rack: int = 8  # machines behind one switch
    rack_share: float = 0.1  # of failures that take a whole rack
    at_once: int = 6  # most machines that are preempted together
    maintenance_every_s: float = math.inf
    maintenance_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"failures {self.kind}: expected one of {', '.join(KINDS)}")
        for name, value in (
            ("mtbf", self.mtbf_s),
            ("shape", self.shape),
            ("maintenance every", self.maintenance_every_s),
        ):
            if not value > 0:
                raise ConfigError(f"{name} {value}: expected a number above 0")
        for name, value in (("repair", self.repair_s), ("notice", self.notice_s)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name} {value}: expected a time of 0 or more")
        if self.rack < 1 or self.at_once < 1 or not 0 <= self.rack_share <= 1:
            raise ConfigError(
                f"rack of {self.rack}, {self.at_once} at once, share {self.rack_share}: "
                "expected at least 1, at least 1, and a share from 0 to 1"
            )


def generated(
    failures: Failures,
    *,
    machines: int,
    length_s: float,
    seed: int,
    workers_a_machine: int = 1,
) -> World:
    """All machines are there at the start."""
    require_count("machines", machines)
    often = 1 / failures.mtbf_s + 1 / failures.maintenance_every_s
    require_few(f"{_name(failures)}, for {length_s:g} s", length_s * often)
    story = _Story(machines)
    rng = SeededRandom(seed)
    gap, victims = _gaps(failures, rng), _victims(failures, rng)
    pending = [(gap(), 0)] if failures.mtbf_s < math.inf else []
    if failures.maintenance_every_s < length_s:
        pending.append((failures.maintenance_every_s, 1))
    heapq.heapify(pending)
    while pending and pending[0][0] < length_s:
        at_s, planned = heapq.heappop(pending)
        story.until(at_s)
        if planned:
            story.maintain(at_s, failures)
            heapq.heappush(pending, (at_s + failures.maintenance_every_s, 1))
            continue
        for machine_group in victims(story):
            back_s = at_s + _exponential(rng, failures.repair_s)
            story.lose(at_s, machine_group, failures.notice_s, back_s)
        heapq.heappush(pending, (at_s + gap(), 0))
    story.until(length_s)
    name = _name(failures)
    alive = tuple(range(machines))
    return World(name, machines, workers_a_machine, length_s, alive, in_order(story.events))


def _name(failures: Failures) -> str:
    parts = []
    if failures.mtbf_s < math.inf:
        parts.append(f"{failures.kind}, a failure every {failures.mtbf_s / 60:.4g} min")
    if failures.maintenance_every_s < math.inf:
        parts.append(f"maintenance every {failures.maintenance_every_s / 60:.4g} min")
    return ", ".join(parts) or "calm"


@dataclass
class _Story:
    machines: int
    events: list[WorldEvent] = field(default_factory=list)
    gone: dict[int, float] = field(default_factory=dict)  # machine: when it comes back
    returns: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    windows: int = 0

    @property
    def live(self) -> list[int]:
        return [number for number in range(self.machines) if number not in self.gone]

    def until(self, at_s: float) -> None:
        """Who is back at this very moment cannot go in it: at a moment losses come first."""
        while self.returns and self.returns[0][0] < at_s:
            back_s, group = heapq.heappop(self.returns)
            for number in group:
                del self.gone[number]
            self.events.append(WorldEvent(back_s, WorldKind.RETURN, group))

    def lose(self, at_s: float, group: tuple[int, ...], notice_s: float, back_s: float) -> None:
        self.events.append(WorldEvent(at_s, WorldKind.LOSS, group, min(notice_s, at_s)))
        self.gone |= dict.fromkeys(group, back_s)
        heapq.heappush(self.returns, (max(back_s, math.nextafter(at_s, math.inf)), group))

    def maintain(self, at_s: float, failures: Failures) -> None:
        """The next rack in turn, announced."""
        racks = math.ceil(self.machines / failures.rack)
        first = (self.windows % racks) * failures.rack
        self.windows += 1
        end = min(first + failures.rack, self.machines)
        group = tuple(number for number in range(first, end) if number not in self.gone)
        if group:
            self.lose(at_s, group, failures.maintenance_s, at_s + failures.maintenance_s)


def _exponential(rng: SeededRandom, mean: float) -> float:
    return -math.log1p(-rng.between(0.0, 1.0)) * mean


def _gaps(failures: Failures, rng: SeededRandom) -> Callable[[], float]:
    if failures.kind != "weibull":
        return lambda: _exponential(rng, failures.mtbf_s)
    scale_s = failures.mtbf_s / math.gamma(1 + 1 / failures.shape)
    return lambda: scale_s * _exponential(rng, 1.0) ** (1 / failures.shape)


def _victims(
    failures: Failures, rng: SeededRandom
) -> Callable[[_Story], Iterator[tuple[int, ...]]]:
    """Groups that go at once and come back together."""

    def chosen(story: _Story) -> Iterator[tuple[int, ...]]:
        live = story.live
        if not live:
            return
        if failures.kind == "rack" and rng.hits(failures.rack_share):
            rack = rng.one_of(live) // failures.rack
            yield tuple(number for number in live if number // failures.rack == rack)
            return
        count = 1 + rng.below(failures.at_once) if failures.kind == "preemption" else 1
        for _ in range(min(count, len(live))):
            yield (live.pop(rng.below(len(live))),)

    return chosen
