"""How many holders of each stage each machine runs, where some run already: exact, by flows.

Least are, in this order: stages on one machine, workers that move, starts without a hot spare. Each
is a convex cost of the number of a stage's holders on a machine, or of a machine's workers; so a
spread is best as soon as no cycle of shifts from machine to machine gains anything.
"""

from typing import NamedTuple

import numpy as np

from holdfast.arrays import Ints

_COLD, _MOVE, _ON_ONE = 1, 1 << 17, 1 << 34  # one of a kind outweighs all of the next
_NEVER = 1 << 60


class SpreadProblem(NamedTuple):
    room: Ints  # workers that each machine can run
    kept: Ints  # [machine][stage] that run there now
    starts: Ints  # [stage] that are to be started; there is room for all
    hot: Ints  # machines' processes that are started already and hold nothing

    @property
    def holders(self) -> Ints:
        """Of each stage, afterwards."""
        return np.asarray(self.kept.sum(0) + self.starts)


def best_counts(problem: SpreadProblem, guess: Ints, *, may_move: bool) -> Ints:
    """[machine][stage], with all that are to be started; the guess itself if none is better."""
    evenly = _filled(problem)
    counts = guess.copy() if _cost(problem, guess) <= _cost(problem, evenly) else evenly
    if _cannot_be_better(problem, counts):
        return counts
    while True:
        shifts = _Shifts.of(problem, counts, may_move=may_move)
        cycle = shifts.gaining_cycle()
        if not cycle:
            return counts
        for here, there in cycle:
            stage = shifts.stage[here, there]
            if stage >= 0:
                counts[here, stage] -= 1
                counts[there, stage] += 1


def on_one_machine(counts: Ints) -> int:
    """Stages that only one machine holds."""
    return int(((counts > 0).sum(0) == 1).sum())


def _cost(problem: SpreadProblem, counts: Ints) -> tuple[int, int]:
    """If nobody moves."""
    return on_one_machine(counts), num_cold(problem, counts)


def num_cold(problem: SpreadProblem, counts: Ints) -> int:
    """Starts that no hot spare is there for."""
    starts = (counts - problem.kept).sum(1)
    return int(np.maximum(starts - problem.hot, 0).sum())


def _cannot_be_better(problem: SpreadProblem, counts: Ints) -> bool:
    """If nobody moves."""
    free = problem.room - problem.kept.sum(1)
    least_cold = max(0, int(problem.starts.sum() - np.minimum(problem.hot, free).sum()))
    alone = int((problem.holders == 1).sum())
    return _cost(problem, counts) == (alone, least_cold)


def _filled(problem: SpreadProblem) -> Ints:
    """One start after the other: those first without which a stage is on one machine."""
    counts, load = problem.kept.copy(), problem.kept.sum(1)
    ready = load + problem.hot
    needy = np.flatnonzero(((problem.kept > 0).sum(0) < 2) & (problem.starts > 0))
    once = np.zeros_like(problem.starts)
    once[needy] = 1
    for stage in [*needy.tolist(), *np.repeat(np.arange(len(once)), problem.starts - once)]:
        alone = counts[:, stage] == counts[:, stage].sum()
        share = (load + 1) / np.maximum(problem.room, 1)
        badness = 4 * alone + 2 * (load >= ready) + share
        machine = int(np.where(load < problem.room, badness, np.inf).argmin())
        counts[machine, stage] += 1
        load[machine] += 1
    return counts


class _Shifts(NamedTuple):
    """The cheapest shift of a worker from any machine to any other; the last row is no machine:
    from there a worker is missing, to there it fills a free slot."""

    cost: Ints
    stage: Ints  # of the worker that is shifted

    @classmethod
    def of(cls, problem: SpreadProblem, counts: Ints, *, may_move: bool) -> "_Shifts":
        number, load = len(counts), counts.sum(1)
        cost = np.full((number + 1, number + 1), _NEVER)
        stage = np.full((number + 1, number + 1), -1)
        leave, enter = _slopes(problem, counts, may_move=may_move)
        for each in range(counts.shape[1]):
            rows = np.flatnonzero(leave[:, each] < _NEVER)
            by_stage = leave[rows, each, None] + enter[None, :, each]
            known = cost[rows, :-1]
            cheaper = by_stage < known
            cost[rows, :-1] = np.where(cheaper, by_stage, known)
            stage[rows, :-1] = np.where(cheaper, each, stage[rows, :-1])
        ready = problem.kept.sum(1) + problem.hot
        cost[:-1, -1] = np.where(load < problem.room, (load >= ready) * _COLD, _NEVER)
        cost[-1, :-1] = np.where(load > 0, (load > ready) * -_COLD, _NEVER)
        np.fill_diagonal(cost, _NEVER)
        return cls(cost, stage)

    def gaining_cycle(self) -> list[tuple[int, int]]:
        """Shifts that together cost less than nothing; none if there are no such."""
        number = len(self.cost)
        length, before = np.zeros(number, np.int64), np.full(number, -1)
        while True:
            ways = length[:, None] + self.cost
            last = ways.argmin(0)
            shortest = ways[last, np.arange(number)]
            shorter = shortest < length
            if not shorter.any():
                return []
            length = np.where(shorter, shortest, length)
            before = np.where(shorter, last, before)
            cycle = _cycle(before.tolist())
            if cycle:
                return cycle


def _slopes(problem: SpreadProblem, counts: Ints, *, may_move: bool) -> tuple[Ints, Ints]:
    """[machine][stage]: what it costs that one holder more leaves, and that one more comes."""
    holders, settled = problem.holders, counts <= problem.kept
    leave = settled * (_MOVE if may_move else _NEVER) - (counts == holders) * _ON_ONE
    enter = (counts + 1 == holders) * _ON_ONE - (counts < problem.kept) * _MOVE
    return np.where((counts > 0) & ~(settled & (not may_move)), leave, _NEVER), enter


def _cycle(before: list[int]) -> list[tuple[int, int]]:
    """The edges of a cycle in what comes before what, if there is one."""
    seen = [-1] * len(before)
    for start in range(len(before)):
        at = start
        while at >= 0 and seen[at] < 0:
            seen[at] = start
            at = before[at]
        if at >= 0 and seen[at] == start:
            edges: list[tuple[int, int]] = []
            node = at
            while not edges or node != at:
                edges.append((before[node], node))
                node = before[node]
            return edges
    return []
