"""The search for a good order: a portfolio of policies, then local search around the best.

Steady state: the optimizer step keeps two steps of a stage apart, so it is one step in windows
[start of the stage, start + period]; the starts are found by iteration. Effort is a number of
trials, never a time, so the same question has the same answer everywhere.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from holdfast.arrays import Flags, Ints
from holdfast.planner.kernel import kernel as k
from holdfast.planner.kernel.graph import Template
from holdfast.planner.kernel.list_schedule import Board, ListSchedule

_ROUNDS = 6
# Policies for the first order; fewer where each takes tens of milliseconds.
_NUM_FIRST, _NUM_FIRST_IF_LARGE, _LARGE_OPS = 5, 2, 20_000
# Ways to fuse from which the local search sets out.
_NUM_BASES = 3
# Rows of a policy, as in the kernel's table of hosts from RANKING on.
_RANKING, _MOST_PENDING, _WAIT_BACKWARD, _WAIT_FORWARD = range(4)


@dataclass(frozen=True)
class Order:
    """Repeats for ever with ``period`` (ticks). ``fused``: [first, last + 1][stage], by turn."""

    period: int
    starts: Ints
    policy: Ints
    fused: Ints
    layout: ListSchedule
    board: Board


def portfolio(forward: int, hop: int, num_stages: int, num_hosts: int) -> list[Ints]:
    """Policies for all hosts alike, the most promising first."""
    never, late = k.NEVER, forward * 7 // 8
    # In the order of what they won in a sweep over shapes and memories (lab book, section 2).
    rows = [
        (k.BACKWARD_FIRST, never, forward // 2, forward // 2),
        (k.BACKWARD_FIRST, never, forward // 4, forward // 4),
        (k.BACKWARD_FIRST, never, late, late),
        (k.BACKWARD_FIRST, never, 2 * hop, 2 * hop),
        (k.BACKWARD_FIRST, never, 0, late),
        (k.BACKWARD_FIRST, 1, forward // 4, forward // 4),
        (k.FORWARD_FIRST, never, 0, 0),
        (k.BACKWARD_FIRST, never, 0, 0),
        (k.BACKWARD_FIRST, never, forward // 4, late),
        (k.BACKWARD_FIRST, 1, 0, 0),
        (k.BACKWARD_FIRST, 2, 0, 0),
        (k.BACKWARD_FIRST, 0, 0, 0),
        (k.BACKWARD_FIRST, num_stages // 2, forward // 4, forward // 4),
        (k.WEIGHT_FIRST, never, 0, 0),
    ]
    return [np.repeat(np.array(row)[:, None], num_hosts, axis=1) for row in rows]


def _period(order: Order) -> int:
    return order.period


class OrderSearch:
    """Tries orders of one template and keeps the best; never tries on below ``target``.

    ``between`` is called before each trial and ends the search by raising. ``measure``: the true
    period, where windows alone say too much.
    """

    def __init__(
        self,
        template: Template,
        target: int,
        *,
        plain: bool | None = None,
        between: Callable[[], None] = lambda: None,
        measure: Callable[[Order], float] | None = None,
    ) -> None:
        self._template, self._target, self._plain = template, target, plain
        self._between, self._measure = between, measure
        self._hosts = template.hosts
        self._shared = self._hosts.shared
        self.policies = portfolio(
            template.forward, template.hop, template.num_stages, len(self._hosts.stage)
        )
        large = 3 * template.route.size > _LARGE_OPS
        self._num_first = _NUM_FIRST_IF_LARGE if large else _NUM_FIRST
        self._best: Order | None = None
        self._tried_others = False
        self._bases: list[Order] = []  # the best for each way to fuse
        self._boards: dict[bytes, Board] = {}

    @property
    def best(self) -> Order | None:
        return self._best

    @property
    def done(self) -> bool:
        return self._best is not None and self._best.period <= self._target

    def first(self) -> Order | None:
        """The best few policies. None if memory is too small for any order."""
        at_once = np.zeros(self._template.num_stages, np.int64)
        for fused in self._fusings():
            found = []
            for policy in self.policies[: self._num_first]:
                found.append(self.attempt(policy, at_once, fused))
                if self.done:
                    return self._best
            self._bases += sorted(filter(None, found), key=_period)[:1]
        return self._best

    def _others(self) -> None:
        """The rest of the portfolio, and all of it from other starts."""
        assert self._best is not None
        self._tried_others = True
        num_stages = self._template.num_stages
        at_once = np.zeros(num_stages, np.int64)
        slant = np.arange(num_stages) * (self._template.forward + self._template.hop)
        fused = self._best.fused
        for number, policy in enumerate(self.policies):
            for starts in (at_once, slant):
                tried = starts is at_once and number < self._num_first
                if not (self.done or tried):
                    self.attempt(policy, starts, fused)

    def improve(self, num_trials: int, seed: int = 0) -> Order:
        """Local search from the best order, and from the best with other backwards fused."""
        assert self._best is not None
        if not self._tried_others:
            self._others()
        others = [base for base in self._bases if (base.fused != self._best.fused).any()]
        bases = [self._best, *sorted(others, key=_period)[: _NUM_BASES - 1]]
        rng = random.Random(seed)
        for base in bases:
            self._climb(base, num_trials // len(bases), rng)
        return self._best

    def _climb(self, current: Order, num_trials: int, rng: random.Random) -> None:
        """Other policies at some stages or at all, other turns fused, other starts."""
        for _ in range(num_trials):
            if self.done:
                break
            policy, fused = self._mutated(current, rng)
            starts = np.zeros_like(current.starts)
            if rng.random() < 0.5:
                starts = self._shaken(current.starts, rng)
            found = self.attempt(policy, starts, fused)
            if found is not None and found.period <= current.period:
                current = found

    def attempt(self, policy: Ints, starts: Ints, fused: Ints) -> Order | None:
        """Lay out step after step until the starts settle; the best of these, None if stuck."""
        self._between()
        board, found = self._board(fused), None
        for _ in range(_ROUNDS if self._template.staggered else 1):
            layout = board.lay_out(starts[self._hosts.stage], policy)
            if layout is None:
                return None
            period, ends = self._period(layout)
            tried = Order(period, starts - starts.min(), policy, fused, layout, board)
            if self._measure is not None:
                tried = replace(tried, period=ceil(self._measure(tried)))
            if found is None or tried.period < found.period:
                found = tried
            settled = ends - ends.min()
            if (settled == starts).all():
                break
            starts = settled
        if found is not None and (self._best is None or found.period < self._best.period):
            self._best = found
        return found

    def _board(self, fused: Ints) -> Board:
        key = fused.tobytes()
        if key not in self._boards:
            graph = self._template.graph(self._template.fused_turns(fused))
            self._boards.clear()  # one is enough: neighbours in the search share it
            self._boards[key] = Board(graph, plain=self._plain)
        return self._boards[key]

    def _period(self, layout: ListSchedule) -> tuple[int, Ints]:
        """The length of the longest window, and when each stage may start its next step."""
        stage, num_stages = self._hosts.stage, self._template.num_stages
        last = self._lane_ends(layout)
        starts, ends = np.full(num_stages, k.NEVER), np.zeros(num_stages, np.int64)
        np.minimum.at(starts, stage, layout.first_start)
        np.maximum.at(ends, stage, last)
        ends += self._template.tails
        if not self._template.staggered:
            # All wait for the last one, and only then does each stage step.
            span = int(last.max() + self._template.tails.max() - starts.min())
            return span, np.zeros_like(ends)
        period = int((ends - starts).max())
        if self._shared:
            # A worker with two stages starts its next step when both have met.
            first = np.full(self._hosts.num_workers, k.NEVER)
            np.minimum.at(first, self._hosts.worker, layout.first_start)
            period = max(period, int((ends[stage] - first[self._hosts.worker]).max()))
        return period, ends

    def _lane_ends(self, layout: ListSchedule) -> Ints:
        """A worker with two stages reduces both when all its work is done."""
        if not self._shared:
            return layout.last_end
        last = np.zeros(self._hosts.num_workers, np.int64)
        np.maximum.at(last, self._hosts.worker, layout.last_end)
        return last[self._hosts.worker]

    def _fusings(self) -> Iterator[Ints]:
        """Ranges of turns with a fused backward; ramp and tail gain most from a split."""
        stages, turns = self._template.num_stages, self._template.num_turns
        nothing = np.zeros((2, stages), np.int64)
        if self._template.fusing_pays:
            for width in (turns, turns - 2 * stages, turns - 2 * stages - 2, turns - 3 * stages):
                if width > 0:
                    first = (turns - width) // 2
                    fused = np.repeat(np.array([[first], [first + width]]), stages, axis=1)
                    yield fused
                    # Nobody waits for the gradient of stage 0's input.
                    fused = fused.copy()
                    fused[:, 0] = 0, turns
                    yield fused
        yield nothing

    def _mutated(self, order: Order, rng: random.Random) -> tuple[Ints, Ints]:
        policy, fused = order.policy.copy(), order.fused
        for _ in range(rng.randint(1, 2)):
            if self._template.fusing_pays and rng.random() < 0.3:
                fused = self._refused(fused, rng)
            else:
                self._mutate_policy(policy, rng)
        return policy, fused

    def _mutate_policy(self, policy: Ints, rng: random.Random) -> None:
        forward, hop, stages = self._template.forward, self._template.hop, self._template.num_stages
        row, where = rng.randrange(4), self._some_hosts(rng)
        if row == _RANKING:
            value = rng.choice((k.BACKWARD_FIRST, k.BACKWARD_FIRST, k.FORWARD_FIRST))
        elif row == _MOST_PENDING:
            value = rng.choice((k.NEVER, *range(stages + 1)))
        else:
            shares = (forward // 8, forward // 4, forward // 2, forward * 3 // 4, forward * 7 // 8)
            value = rng.choice((0, hop, 2 * hop, 3 * hop, *shares, forward))
        policy[row, where] = value

    def _some_hosts(self, rng: random.Random) -> Flags:
        """Those of one stage, of it and all before, of it and all after, or all."""
        stages, stage = self._hosts.stage, rng.randrange(self._template.num_stages)
        which = rng.randrange(5)
        chosen: Flags = stages == stage
        if which >= 2:
            chosen = (stages <= stage, stages >= stage, stages >= 0)[which - 2]
        return chosen

    def _refused(self, fused: Ints, rng: random.Random) -> Ints:
        """One edge of the fused turns elsewhere, at one stage or at all."""
        changed, turns = fused.copy(), self._template.num_turns
        stage = rng.randrange(self._template.num_stages)
        where = slice(stage, stage + 1) if rng.random() < 0.7 else slice(None)
        edge = rng.randrange(2)
        moved = changed[edge, where] + rng.choice((-4, -2, -1, 1, 2, 4))
        changed[edge, where] = np.clip(moved, 0, turns)
        return changed

    def _shaken(self, starts: Ints, rng: random.Random) -> Ints:
        shifts = np.array([rng.randint(-2, 2) for _ in range(len(starts))])
        shaken: Ints = np.maximum(0, starts + shifts * self._template.forward)
        return shaken
