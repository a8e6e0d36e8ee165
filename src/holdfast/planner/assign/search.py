"""How many workers of each speed each stage should have: the least of step time and moves.

Exact where the search can close; ``proven`` says so. Counts only; knows no worker by name.
"""

from typing import NamedTuple

import numpy as np

from holdfast.arrays import Floats, Ints
from holdfast.planner.assign.exact import Counts, Deal
from holdfast.planner.assign.kernels import NONE, greedy
from holdfast.planner.route.shares import ROUNDING

# A limit in counts, not in seconds: every machine gives the same answer.
MAX_TABLE = 2_000_000  # periods looked at, times stages, times speeds


class RoleCounts(NamedTuple):
    final: Ints  # workers by stage and speed
    period_s: float
    moves: int
    proven: bool = False


def search(counts: Counts, horizon_steps: int, move_s: float) -> RoleCounts:
    """Least ``horizon_steps * period + move_s * moves``, then fewest moves."""
    rate = counts.speed[None, :] / counts.cost_s[:, None]
    anyhow = np.maximum(1, rate / rate.max() * 1e6).astype(np.int64)
    best = _found(counts, _greedy(counts, anyhow, 0))
    periods_s, complete = _periods(counts, best.period_s)
    values = counts.value_at(periods_s)
    at_least = _fewest_moves(counts, periods_s, values)
    looked_at = np.zeros(len(periods_s), bool)
    while True:
        better = _better(best, periods_s, at_least, horizon_steps, move_s)
        todo = np.flatnonzero(better & ~looked_at)
        if not len(todo):
            return best._replace(proven=complete and not better.any())
        i = int(todo[len(todo) // 2])
        final, moves = _solve(counts, periods_s[i], values[i], int(at_least[i]))
        # A shorter period never takes fewer moves.
        at_least[: i + 1] = np.maximum(at_least[: i + 1], moves)
        # An attempt that failed without proof will fail for shorter periods too.
        looked_at[i if final is not None else slice(i + 1)] = True
        if final is not None:
            found = _found(counts, final)
            now = np.array([found.period_s]), np.array([found.moves])
            best = found if _better(best, *now, horizon_steps, move_s)[0] else best


def _found(counts: Counts, final: Ints) -> RoleCounts:
    return RoleCounts(final, counts.period_s(final), counts.moves(final))


def _better(
    best: RoleCounts, periods_s: Floats, moves: Ints, horizon_steps: int, move_s: float
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    cost_s = horizon_steps * periods_s + move_s * moves
    best_s = horizon_steps * best.period_s + move_s * best.moves
    same = cost_s <= best_s * (1 + ROUNDING)
    clearly = cost_s < best_s * (1 - ROUNDING)
    return np.asarray((moves < NONE) & (clearly | (same & (moves < best.moves))))


def _greedy(counts: Counts, value: Ints, goal: int) -> Ints:
    limits = goal, counts.fewest, counts.most
    return np.asarray(greedy(value, counts.home, counts.joiners, *limits))


def _periods(counts: Counts, below_s: float) -> tuple[Floats, bool]:
    """All periods an assignment can have below ``below_s``, and whether that is all of them."""
    work_s = counts.goal * counts.cost_s.sum() / (counts.total @ counts.speed)
    above_s = work_s + counts.step_s.min()
    unit_s = counts.unit_s.ravel()
    step_s = np.repeat(counts.step_s, len(counts.speed))
    if len(counts.speed) == 1:
        # n workers of one speed: the busiest has ceil(goal / n).
        each = np.unique(-(-counts.goal // np.arange(1, counts.total[0] + 1)))
        periods_s = (each[None, :] * unit_s[:, None] + step_s[:, None]).ravel()
    else:
        first = np.maximum(1, np.floor((above_s - step_s) / unit_s * (1 - ROUNDING)))
        last = np.minimum(counts.goal, np.ceil((below_s - step_s) / unit_s))
        num = np.maximum(0, last - first + 1).astype(np.int64)
        nth = np.arange(num.sum()) - np.repeat(np.cumsum(num) - num, num)
        periods_s = (np.repeat(first, num) + nth) * np.repeat(unit_s, num) + np.repeat(step_s, num)
    inside = (periods_s >= above_s * (1 - ROUNDING)) & (periods_s < below_s * (1 - ROUNDING))
    periods_s = np.unique(periods_s[inside])
    most = max(64, MAX_TABLE // len(unit_s))
    if len(periods_s) <= most:
        return periods_s, True
    return periods_s[np.linspace(0, len(periods_s) - 1, most).astype(np.int64)], False


def _fewest_moves(counts: Counts, periods_s: Floats, values: Ints) -> Ints:
    """A lower bound on the moves for each period; NONE where it cannot be met at all."""
    holders = counts.home.sum(axis=1)
    does = np.einsum("tpk,pk->tp", values, counts.home)
    strongest = values.max(axis=2)
    per_worker = np.maximum(strongest, 1)
    comes = -(-np.maximum(counts.goal - does, 0) // per_worker)
    comes = np.maximum(comes, np.maximum(counts.fewest - holders, 0))
    need = np.maximum(-(-counts.goal // per_worker), counts.fewest)
    # Work in seconds at speed 1, so that unlike stages can be added up.
    weight = counts.cost_s / np.maximum(periods_s[:, None] - counts.step_s, 1e-300)
    can = (weight[:, :, None] * values).max(axis=1) @ counts.total
    impossible = (strongest == 0).any(axis=1) | (need > counts.most).any(axis=1)
    impossible |= need.sum(axis=1) > counts.total.sum()
    impossible |= can < counts.goal * weight.sum(axis=1) * (1 - ROUNDING)
    forced = counts.joiners.sum() + np.maximum(holders - counts.most, 0).sum()
    return np.where(impossible, NONE, np.maximum(comes.sum(axis=1), forced))


def _solve(counts: Counts, period_s: float, value: Ints, at_least: int) -> tuple[Ints | None, int]:
    """An assignment that meets the period, if one is found, and the fewest moves it surely takes.

    NONE moves: it surely cannot be met.
    """
    final: Ints | None = _greedy(counts, value, counts.goal)
    if final is not None and final.min() < 0:
        final = None
    if final is not None and counts.moves(final) == at_least:
        return final, at_least
    return _solve_exactly(Deal(counts, period_s, value), final, at_least)


def _solve_exactly(deal: Deal, final: Ints | None, at_least: int) -> tuple[Ints | None, int]:
    """From few moves up to as many as ``final`` takes: the tables grow with the moves allowed."""
    joiners = int(deal.counts.joiners.sum())
    allowed = at_least - joiners + 1
    while final is None or at_least < deal.counts.moves(final):
        if final is not None:
            allowed = min(allowed, deal.counts.moves(final) - joiners - 1)
        if not deal.affordable(allowed):
            return final, at_least
        best = deal.with_moves(allowed)
        if best is not None:
            return best, deal.counts.moves(best)
        at_least, allowed = allowed + 1 + joiners, 2 * allowed + 1
        if final is None:
            final = deal.anyhow()
            if final is None:
                return None, int(NONE)
    return final, at_least
