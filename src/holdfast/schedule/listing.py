"""Event-driven list scheduling of one pipeline's step, each stage with its own start.

The staggered optimizer keeps two steps of one worker apart, so the steady state is one
step in windows [start of the stage, start + period]; the starts are found by iteration.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from holdfast.schedule.costs import Costs
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.schedule import Lane

_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Choice:
    """How an idle stage picks its next operation: B before F before W, unless ..."""

    forward_first: bool = False  # ... F goes first, as far as memory admits
    pending_weights: int | None = None  # ... more W than this are pending: then W before F
    patience: float = 0.0  # ... a better one is known to arrive within this share of a forward
    fused_first_stage: bool = True  # nobody waits for the gradient of stage 0's input


@dataclass(frozen=True, slots=True)
class Policy:
    choice: Choice
    fused: range  # micro-batches whose B and W are done in one go, at every stage


@dataclass(frozen=True, slots=True)
class Listing:
    """Lanes of one pipeline, without R, and the period of their windows."""

    lanes: tuple[Lane, ...]
    period_s: float


@dataclass
class _Stage:
    """One stage while the step is being laid out. Micro-batches go through in order."""

    index: int
    free_s: float
    forward_arrivals_s: list[float] = field(default_factory=list)
    gradient_arrivals_s: list[float] = field(default_factory=list)
    lane: list[Op] = field(default_factory=list)
    num_forward: int = 0
    num_backward: int = 0
    pending_weights: deque[int] = field(default_factory=deque)

    @property
    def in_flight(self) -> int:
        return self.num_forward - self.num_backward + len(self.pending_weights)

    def next_forward_s(self) -> float:
        return _at(self.forward_arrivals_s, self.num_forward)

    def next_gradient_s(self) -> float:
        return _at(self.gradient_arrivals_s, self.num_backward)


def _at(arrivals_s: Sequence[float], index: int) -> float:
    return arrivals_s[index] if index < len(arrivals_s) else float("inf")


class _Layout:
    """Lays out one step. ``starts_s``: when each stage is free of the step before."""

    def __init__(
        self,
        costs: Costs,
        memory: int,
        policy: Policy,
        starts_s: Sequence[float],
        microbatches: int,
    ) -> None:
        self._costs, self._memory, self._policy = costs, memory, policy
        self._stages = [_Stage(index, start_s) for index, start_s in enumerate(starts_s)]
        self._stages[0].forward_arrivals_s = [starts_s[0]] * microbatches
        self._tick = count()  # same time: first come, first served
        self._wakes: list[tuple[float, int, int]] = []

    def run(self) -> list[_Stage]:
        for stage in self._stages:
            self._wake(stage.free_s, stage.index)
        while self._wakes:
            now_s, _, index = heapq.heappop(self._wakes)
            stage = self._stages[index]
            if stage.free_s <= now_s:
                kind, wait_until_s = self._choose(stage, now_s)
                if kind is not None:
                    self._start(stage, kind, now_s)
                elif wait_until_s < float("inf"):
                    self._wake(wait_until_s, index)
        return self._stages

    def _wake(self, at_s: float, index: int) -> None:
        heapq.heappush(self._wakes, (at_s, next(self._tick), index))

    def _choose(self, stage: _Stage, now_s: float) -> tuple[Kind | None, float]:
        """What to start now, or until when to wait for what is known to come."""
        backward = self._backward(stage)
        admits = stage.in_flight < self._memory
        arrivals_s = {backward: stage.next_gradient_s()}
        if admits:
            arrivals_s[Kind.F] = stage.next_forward_s()
        pending, limit = len(stage.pending_weights), self._policy.choice.pending_weights
        ranking = [backward, Kind.F, Kind.W]
        if self._policy.choice.forward_first and admits:
            ranking = [Kind.F, backward, Kind.W]
        if limit is not None and pending > limit:
            ranking = [backward, Kind.W, Kind.F]
        if pending:
            arrivals_s[Kind.W] = now_s
        horizon_s = now_s + self._policy.choice.patience * self._costs.forward_s[stage.index]
        for kind in ranking:
            at_s = arrivals_s.get(kind, float("inf"))
            if at_s <= now_s:
                return kind, now_s
            if at_s < horizon_s:
                return None, at_s
        return None, min(arrivals_s.values())

    def _backward(self, stage: _Stage) -> Kind:
        first_fused = stage.index == 0 and self._policy.choice.fused_first_stage
        return Kind.BW if first_fused or stage.num_backward in self._policy.fused else Kind.B

    def _start(self, stage: _Stage, kind: Kind, now_s: float) -> None:
        op = Op(stage.index, kind, self._take(stage, kind))
        end_s = now_s + self._costs.duration_s(op)
        stage.lane.append(op)
        stage.free_s = end_s
        if kind is Kind.F:
            self._forwarded(stage.index, end_s)
        elif kind is not Kind.W:
            self._gradient_made(stage.index, end_s)
        self._wake(end_s, stage.index)

    def _take(self, stage: _Stage, kind: Kind) -> int:
        """Number of the micro-batch whose turn it is."""
        if kind is Kind.F:
            stage.num_forward += 1
            return stage.num_forward - 1
        if kind is Kind.W:
            return stage.pending_weights.popleft()
        if kind is Kind.B:
            stage.pending_weights.append(stage.num_backward)
        stage.num_backward += 1
        return stage.num_backward - 1

    def _forwarded(self, index: int, end_s: float) -> None:
        if index + 1 == len(self._stages):
            self._stages[index].gradient_arrivals_s.append(end_s)
        else:
            arrival_s = end_s + self._costs.link_s
            self._stages[index + 1].forward_arrivals_s.append(arrival_s)
            self._wake(arrival_s, index + 1)

    def _gradient_made(self, index: int, end_s: float) -> None:
        if index:
            arrival_s = end_s + self._costs.link_s
            self._stages[index - 1].gradient_arrivals_s.append(arrival_s)
            self._wake(arrival_s, index - 1)


def list_step(
    microbatches: int, costs: Costs, memory: int, policy: Policy, *, staggered: bool = True
) -> Listing:
    """Lay out one step after another until the stages' starts settle; the shortest period wins."""
    starts_s = [0.0] * costs.stages
    listings: list[Listing] = []
    for _ in range(_ROUNDS if staggered else 1):
        stages = _Layout(costs, memory, policy, starts_s, microbatches).run()
        ends_s = [stage.free_s + costs.step_s[stage.index] for stage in stages]
        period_s = max(end_s - start_s for end_s, start_s in zip(ends_s, starts_s, strict=True))
        listings.append(Listing(tuple(tuple(stage.lane) for stage in stages), period_s))
        settled = [end_s - min(ends_s) for end_s in ends_s]
        if settled == starts_s:
            break
        starts_s = settled
    return min(listings, key=lambda listing: listing.period_s)
