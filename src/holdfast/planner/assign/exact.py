"""Counts of workers by stage and speed, and the exact search for one period.

``Deal`` prepares the tables of ``roles_kernels.cover`` and reads its answer. Which periods to try
is not decided here.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.planner.assign.kernels import NONE, cover
from holdfast.planner.route.shares import ROUNDING, least_time

# Limits in counts, not in seconds: every machine gives the same answer.
MAX_NODES = 30_000_000  # transitions of one search
MAX_CELLS = 2_000_000  # of its table


@dataclass(frozen=True)
class Counts:
    """``home[p, k]`` live workers of speed ``speed[k]`` hold stage p, ``joiners[k]`` nothing."""

    home: Ints
    joiners: Ints
    speed: Floats
    cost_s: Floats  # of one micro-batch at speed 1, a stage
    step_s: Floats
    goal: int  # micro-batches a step

    @cached_property
    def unit_s(self) -> Floats:
        return self.cost_s[:, None] / self.speed[None, :]

    @cached_property
    def total(self) -> Ints:
        return np.asarray(self.home.sum(axis=0) + self.joiners)

    @property
    def stages(self) -> int:
        return len(self.cost_s)

    @property
    def scarce(self) -> bool:
        """Too few for two a stage. Then one or two each leaves the fewest stages with one."""
        return int(self.total.sum()) < 2 * self.stages

    @property
    def fewest(self) -> int:
        return 1 if self.scarce else 2

    @property
    def most(self) -> int:
        return 2 if self.scarce else int(NONE)

    def value_at(self, period_s: Floats) -> Ints:
        """Micro-batches that one worker does: [..., stage, speed]."""
        left_s = (period_s[..., None] - self.step_s)[..., None]
        done = np.floor(left_s / self.unit_s * (1 + ROUNDING))
        return np.asarray(np.maximum(done, 0).astype(np.int64))

    def period_s(self, final: Ints) -> float:
        times_s = (
            least_time(self.goal, np.repeat(unit_s, holders))
            for unit_s, holders in zip(self.unit_s, final, strict=True)
        )
        return float(max(np.fromiter(times_s, np.float64, self.stages) + self.step_s))

    def moves(self, final: Ints) -> int:
        return int(self.joiners.sum() + np.maximum(self.home - final, 0).sum())


@dataclass(frozen=True)
class Deal:
    """The exact search for one period. All but the largest speed class are dealt out one by one.

    With too few workers for two a stage there is no bulk: who is left over may not stay at home.
    """

    counts: Counts
    period_s: float
    value: Ints

    @cached_property
    def bulk(self) -> Ints:
        """The class of the bulk as an array of one index, or of none."""
        return np.array([] if self.counts.scarce else [self.counts.total.argmax()], np.int64)

    @cached_property
    def single(self) -> Ints:
        return np.delete(np.arange(len(self.counts.speed)), self.bulk)

    @cached_property
    def bulk_joiners(self) -> int:
        return int(self.counts.joiners[self.bulk].sum())

    def affordable(self, most_moves: int) -> bool:
        sizes = self.counts.total[self.single].astype(np.float64) + 1
        each = (self.bulk_joiners + 1) * (most_moves + 1) * self.counts.stages
        cells, nodes = sizes.prod() * each, (sizes * (sizes + 1) / 2).prod() * each
        return bool(cells <= MAX_CELLS and nodes <= MAX_NODES)

    @cached_property
    def strides(self) -> Ints:
        sizes = self.counts.total[self.single] + 1
        return np.asarray(np.cumprod(np.concatenate(([1], sizes)))[:-1].astype(np.int64))

    @cached_property
    def digits(self) -> Ints:
        """Every choice of workers outside the bulk: [choice, class]."""
        sizes = self.counts.total[self.single] + 1
        choices = np.arange(int(sizes.prod()), dtype=np.int64)
        return np.asarray(choices[:, None] // self.strides % sizes)

    @cached_property
    def need(self) -> Ints:
        """Bulk workers that must go with a choice at a stage, -1 if the choice is not allowed."""
        counts, digits = self.counts, self.digits
        gap = counts.goal - self.value[:, self.single] @ digits.T
        num = digits.sum(axis=1)
        stays = np.minimum(counts.home[:, None, self.single], digits).sum(axis=2) > 0
        if not len(self.bulk):
            allowed = (gap <= 0) & (num >= counts.fewest) & (num <= counts.most) & stays
            return np.where(allowed, 0, -1)
        value, home = self.value[:, self.bulk], counts.home[:, self.bulk]
        need = -(-np.maximum(gap, 0) // np.maximum(value, 1))
        need = np.maximum(need, np.maximum(counts.fewest - num, ~stays))
        return np.where(((gap > 0) & (value == 0)) | (~stays & (home == 0)), -1, need)

    @cached_property
    def most_bulk(self) -> Ints:
        """Of the bulk, how many may be used up to a stage when so much of the others is dealt."""
        counts = self.counts
        weight = counts.cost_s / (self.period_s - counts.step_s)
        worth = (weight[:, None] * self.value).max(axis=0)
        later = counts.goal * (weight.sum() - np.cumsum(weight))
        later -= counts.goal * weight.sum() * ROUNDING
        left = (counts.total[self.single] - self.digits) @ worth[self.single]
        lacks = np.maximum(later[:, None] - left[None, :], 0)
        # Without a bulk any lack is too much, whatever one worker of it were worth.
        keep = np.ceil(lacks / (float(worth[self.bulk].sum()) or 1.0))
        return np.asarray(counts.total[self.bulk].sum() - keep.astype(np.int64))

    def anyhow(self) -> Ints | None:
        """Some assignment, whatever the moves."""
        anywhere = np.full(self.counts.stages, NONE)
        return self._cover(self.need, np.zeros_like(self.need), anywhere, 0, 0)

    def with_moves(self, most_moves: int) -> Ints | None:
        """The assignment with the fewest holders that move, if ``most_moves`` are enough."""
        home = self.counts.home
        change = self.digits - home[:, None, self.single]
        comes, leaves = np.maximum(change, 0).sum(axis=2), np.maximum(-change, 0).sum(axis=2)
        # Whoever comes has left another stage, or has just joined.
        few = (leaves <= most_moves) & (comes <= most_moves + self.counts.joiners.sum())
        need, bulk_home = np.where(few, self.need, -1), home[:, self.bulk].sum(axis=1)
        return self._cover(need, leaves, bulk_home, self.bulk_joiners, most_moves)

    def _cover(
        self, need: Ints, leaves: Ints, bulk_home: Ints, bulk_joiners: int, most_moves: int
    ) -> Ints | None:
        tables = self.most_bulk, bulk_joiners, self.digits, self.strides, most_moves
        leaves = np.ascontiguousarray(leaves)  # one layout, one compilation
        moves, chosen = cover(need, leaves, bulk_home, *tables)
        if moves < 0:
            return None
        final = np.zeros_like(self.counts.home)
        final[:, self.single] = self.digits[chosen]
        if len(self.bulk):
            need = self.need[np.arange(len(chosen)), chosen]
            final[:, self.bulk] = self._filled(final, need)[:, None]
        return final

    def _filled(self, final: Ints, need: Ints) -> Ints:
        """Bulk workers at each stage: as needed, and who is not needed elsewhere stays at home."""
        home = self.counts.home[:, self.bulk].sum(axis=1)
        comes = np.repeat(np.arange(len(need)), np.maximum(need - home, 0))
        filled: Ints = np.maximum(need, home)
        room = np.maximum(home - need, 0)
        for to in comes[self.bulk_joiners :]:
            away = np.abs(np.arange(len(need)) - to)
            source = min(np.flatnonzero(room), key=lambda p: (away[p], -room[p], p))
            filled[source] -= 1
            room[source] -= 1
        value = self.value[:, self.bulk].sum(axis=1)
        does = (final * self.value).sum(axis=1) + filled * value
        for _ in range(self.bulk_joiners - len(comes)):
            to = int(does.argmin())
            filled[to] += 1
            does[to] += value[to]
        return filled
