"""What the planner is asked: shape, costs, memory, links, and who is there, how fast, with what.

A dead worker is one that is not among the members, or whose speed is 0. No decisions here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import NamedTuple

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError
from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Shape

# Larger steps would take minutes to plan.
_MOST_PLACES = 100_000
_LARGEST_RATIO = 1_000_000


class Member(NamedTuple):
    """A live worker. ``stage`` None: it holds nothing yet (it has just joined)."""

    worker: WorkerId
    stage: int | None
    speed: float = 1.0  # 1 = normal, 0.5 = takes twice as long, 0 = dead
    version: int = 0  # optimizer steps its parameters have had


class LinkCost(NamedTuple):
    delay_s: float
    bytes_s: float = inf


@dataclass(frozen=True, kw_only=True)
class LinkCosts:
    """How long a boundary tensor is under way. The usual delay is ``Costs.link_s``."""

    bytes_s: float = inf  # the usual rate
    boundary_bytes: tuple[int, ...] = ()  # a micro-batch's tensor at each boundary; empty: 0
    # either way
    unusual: Mapping[tuple[WorkerId, WorkerId], LinkCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for link in (LinkCost(0.0, self.bytes_s), *self.unusual.values()):
            if not (isfinite(link.delay_s) and link.delay_s >= 0 and link.bytes_s > 0):
                raise ConfigError(
                    f"link delay {link.delay_s} s, {link.bytes_s} bytes/s: "
                    "expected a finite delay >= 0 and a rate > 0"
                )
        twice = [pair for pair in self.unusual if pair[::-1] in self.unusual]
        if twice:
            one, other = min(twice)
            raise ConfigError(f"link {one}-{other} is given twice: expected each link once")

    def between(self, one: WorkerId, other: WorkerId, usual_delay_s: float) -> LinkCost:
        unusual = self.unusual.get((one, other)) or self.unusual.get((other, one))
        return unusual or LinkCost(usual_delay_s, self.bytes_s)

    def bytes_at(self, boundary: int) -> int:
        return self.boundary_bytes[boundary] if self.boundary_bytes else 0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """In any unit; by default a forwarded micro-batch counts 1 until its weight gradient is done.

    With two stages on a worker each stage has such a limit of its own.
    """

    limit: float  # a worker and stage
    held: tuple[float, ...] = ()  # a stage: from F to B; empty: 1 each
    pending: tuple[float, ...] = ()  # a stage: from B to W; empty: as held
    limits: Mapping[WorkerId, float] = field(default_factory=dict)  # whose limit differs

    def limit_of(self, worker: WorkerId) -> float:
        return self.limits.get(worker, self.limit)

    def held_at(self, stage: int) -> float:
        return self.held[stage] if self.held else 1.0

    def pending_at(self, stage: int) -> float:
        return self.pending[stage] if self.pending else self.held_at(stage)


@dataclass(frozen=True, kw_only=True)
class Problem:
    shape: Shape
    costs: Costs
    memory: Memory
    members: tuple[Member, ...]
    links: LinkCosts = field(default_factory=LinkCosts)
    staggered: bool = True
    horizon_steps: int = 1000
    """A move is worth it when it pays within this many steps."""
    move_s: float = 0.0
    """Seconds of training that giving one worker another stage's state costs."""
    two_stages: bool = True
    """Whether a worker may be given a second stage, to help out there."""
    may_move: bool = True
    """False: everyone keeps the stage it holds, as it must until a copy has been made."""

    def __post_init__(self) -> None:
        if self.horizon_steps < 0 or not 0 <= self.move_s < inf:
            raise ConfigError(
                f"horizon_steps = {self.horizon_steps}, move_s = {self.move_s}: "
                "expected numbers >= 0"
            )
        self._check_members()
        self._check_memory()
        self._check_size()

    def _check_members(self) -> None:
        seen: set[WorkerId] = set()
        for worker, stage, speed, _version in self.members:
            if not (speed == 0 or 1 / _LARGEST_RATIO <= speed <= 1):
                raise ConfigError(
                    f"worker {worker} has speed {speed}: expected 0 (dead) to 1 (normal); "
                    "costs are those of a normal worker"
                )
            if stage is not None and not 0 <= stage < self.shape.stages:
                raise ConfigError(
                    f"worker {worker} holds stage {stage}: expected 0 to {self.shape.last_stage}"
                )
            if worker in seen:
                raise ConfigError(f"worker {worker} is listed twice: expected one entry a worker")
            seen.add(worker)

    def _check_memory(self) -> None:
        memory = self.memory
        for name, row, wanted in (
            ("memory.held", memory.held, self.shape.stages),
            ("memory.pending", memory.pending, self.shape.stages),
            ("links.boundary_bytes", self.links.boundary_bytes, self.shape.stages - 1),
        ):
            if row and len(row) != wanted:
                raise ConfigError(f"{name} has {len(row)} entries: expected {wanted}, or none")
        live = self._live
        theirs = [limit for worker, limit in memory.limits.items() if worker in live]
        least = min([memory.limit, *theirs])
        for stage in range(self.shape.stages):
            held, pending = memory.held_at(stage), memory.pending_at(stage)
            if not 0 < held < inf or not 0 <= pending <= held:
                raise ConfigError(
                    f"memory of a micro-batch at stage {stage}: {held} held, {pending} pending: "
                    "expected held > 0 and pending from 0 to held"
                )
            if not held <= least:
                raise ConfigError(
                    f"memory limit {least:g}: no schedule fits, stage {stage} needs at least "
                    f"{held:g} for a single micro-batch"
                )

    @property
    def _live(self) -> set[WorkerId]:
        return {member.worker for member in self.members if member.speed > 0}

    def _check_size(self) -> None:
        """The longest sum of durations there can be must be a number."""
        costs = self.costs
        costs.require_stages(self.shape.stages)
        rows = (costs.forward_s, costs.input_s, costs.weight_s, costs.fused_s, costs.step_s)
        self._check_ratios([seconds for row in rows for seconds in row])
        longest_s = sum(map(sum, rows)) + 2 * self.shape.stages * costs.link_s
        if not isfinite(longest_s * self.shape.microbatches * 1e6):
            raise ConfigError(
                f"costs up to {max(map(max, rows)):g} s: a step of {self.shape.microbatches} "
                "micro-batches is too long to be counted; expected smaller numbers"
            )
        if self.shape.microbatches_per_pipeline * self.shape.stages > _MOST_PLACES:
            raise ConfigError(
                f"{self.shape.microbatches_per_pipeline} micro-batches a pipeline x "
                f"{self.shape.stages} stages: expected a product of at most {_MOST_PLACES:,}"
            )

    def _check_ratios(self, durations_s: list[float]) -> None:
        """Times are counted in whole ticks: none may vanish beside another."""
        costs, stages = self.costs, range(self.shape.stages)
        delays_s = [link.delay_s for link in self.links.unusual.values()]
        longest_s = max([costs.link_s, *durations_s, *delays_s])
        shortest_s = min(costs.forward_s[stage] + costs.backward_s(stage) for stage in stages)
        if longest_s > _LARGEST_RATIO * shortest_s:
            raise ConfigError(
                f"costs from {shortest_s:g} s (F and backward of a stage) to {longest_s:g} s: "
                f"expected none above {_LARGEST_RATIO:,} times another"
            )

    def hop_s(self, boundary: int, one: WorkerId, other: WorkerId) -> float:
        """From the end of an operation on ``one`` to its result being with ``other``."""
        if one == other:
            return 0.0
        link = self.links.between(one, other, self.costs.link_s)
        return link.delay_s + self.links.bytes_at(boundary) / link.bytes_s

    def least_hop_s(self, boundary: int) -> float:
        """No link is faster."""
        size, live = self.links.bytes_at(boundary), self._live
        others = (
            link.delay_s + size / link.bytes_s
            for pair, link in self.links.unusual.items()
            if live.issuperset(pair)
        )
        return min([self.usual_hop_s(boundary), *others])

    def usual_hop_s(self, boundary: int) -> float:
        return self.costs.link_s + self.links.bytes_at(boundary) / self.links.bytes_s
