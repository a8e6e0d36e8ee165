"""Which boundaries between stages to log, so that a lost stage is back soonest on average.

Stages between two logged boundaries are a group: to lose one is to replay them all. Pure; does not
know files, workers or who is lost. The times are replay_time's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from holdfast.arrays import Floats
from holdfast.errors import ConfigError
from holdfast.planner.logs.replay_time import ReplayCosts
from holdfast.planner.logs.search import MOST_POINTS, search

# Times are compared in so many parts of the longest replay: finer differences are rounding.
_TICKS = 2.0**50


@dataclass(frozen=True)
class Groups:
    groups: tuple[tuple[int, ...], ...]
    boundaries: tuple[int, ...]  # logged; boundary b is the one after stage b
    num_bytes: int  # of log, from one checkpoint to the next
    expected_s: float  # until training goes on, over the stages that may be lost
    worst_s: float
    stage_s: tuple[float, ...]  # if this stage is lost
    proven: bool  # no grouping within the budget is better
    bound_s: float  # expected_s of every grouping within the budget is at least this; 0: not known
    reason: str


def best_groups(
    costs: ReplayCosts, budget_bytes: int | None, most_points: int = MOST_POINTS
) -> Groups:
    """Least expected recovery time within the budget (None: any size); on a tie the least log."""
    _check_budget(budget_bytes)
    boundary_bytes = np.array(costs.boundary_bytes, np.int64)
    budget = int(boundary_bytes.sum()) if budget_bytes is None else budget_bytes
    tick_s = _tick_s(costs)
    found = search(_group_ticks(costs), boundary_bytes, budget, most_points)
    best = described(costs, found.cuts, "")
    return Groups(
        **{name: getattr(best, name) for name in _MEASURED},
        proven=found.proven,
        bound_s=best.expected_s if found.proven else found.bound * tick_s,
        reason=_reason(costs, best, budget_bytes, proven=found.proven),
    )


def greedy_groups(costs: ReplayCosts, budget_bytes: int | None) -> Groups:
    """SWIFT's way: from all boundaries logged, give up the one that costs least time a byte saved.

    Until the rest fits. SWIFT counts a group of many machines as one; here it counts in full.
    """
    _check_budget(budget_bytes)
    ticks: list[list[float]] = _group_ticks(costs).tolist()
    boundary_bytes = costs.boundary_bytes
    boundaries = list(range(costs.num_stages - 1))
    num_bytes = sum(boundary_bytes)
    while budget_bytes is not None and num_bytes > budget_bytes:
        given_up = _cheapest(ticks, boundary_bytes, boundaries)
        num_bytes -= boundary_bytes[given_up]
        boundaries.remove(given_up)
    return described(
        costs, boundaries, "pairs of groups merged one by one, least time a byte first"
    )


def _cheapest(
    ticks: Sequence[Sequence[float]], boundary_bytes: Sequence[int], boundaries: Sequence[int]
) -> int:
    def price(at: int) -> float:
        first, boundary, last = edges[at] + 1, edges[at + 1], edges[at + 2]
        if not boundary_bytes[boundary]:
            return float("inf")
        apart = ticks[first][boundary] + ticks[boundary + 1][last]
        return (ticks[first][last] - apart) / boundary_bytes[boundary]

    edges = [-1, *boundaries, len(ticks) - 1]
    return boundaries[min(range(len(boundaries)), key=price)]


def described(costs: ReplayCosts, boundaries: Iterable[int], reason: str) -> Groups:
    """What logging just these boundaries takes and gives."""
    logged = sorted(set(boundaries))
    if logged and not 0 <= logged[0] <= logged[-1] < costs.num_stages - 1:
        raise ConfigError(
            f"boundaries {logged}: expected numbers from 0 to {costs.num_stages - 2}, "
            f"the boundaries between {costs.num_stages} stages"
        )
    edges = [-1, *logged, costs.num_stages - 1]
    groups = tuple(tuple(range(before + 1, last + 1)) for before, last in pairwise(edges))
    stage_s = tuple(costs.times.lost_s(run[0], run[-1], stage) for run in groups for stage in run)
    return Groups(
        groups=groups,
        boundaries=tuple(logged),
        num_bytes=sum(costs.boundary_bytes[boundary] for boundary in logged),
        expected_s=sum(w * lost_s for w, lost_s in zip(costs.likely, stage_s, strict=True)),
        worst_s=max(stage_s),
        stage_s=stage_s,
        proven=False,
        bound_s=0.0,
        reason=reason,
    )


_MEASURED = ("groups", "boundaries", "num_bytes", "expected_s", "worst_s", "stage_s")


def _group_ticks(costs: ReplayCosts) -> Floats:
    """What each group adds to the expected time, in ticks: row first, column last stage."""
    likely = np.concatenate([[0.0], np.cumsum(costs.likely)])
    hand_over_s = np.concatenate([[0.0], np.cumsum(costs.times.hand_over_s * costs.likely)])
    table_s: Floats = (likely[None, 1:] - likely[:-1, None]) * costs.times.replay_s
    table_s += hand_over_s[None, 1:] - hand_over_s[:-1, None]
    # A restart that takes longer than any replay is the last choice, no matter how much longer.
    table_s[0, -1] = min(costs.times.restart_s, 2 * _longest_replay_s(costs))
    return np.rint(table_s / _tick_s(costs))


def _tick_s(costs: ReplayCosts) -> float:
    return _longest_replay_s(costs) / _TICKS or 1.0


def _longest_replay_s(costs: ReplayCosts) -> float:
    replay_s = costs.times.replay_s[np.triu_indices(costs.num_stages)]
    return float(replay_s.max() + costs.times.hand_over_s.max())


def _check_budget(budget_bytes: int | None) -> None:
    if budget_bytes is not None and budget_bytes < 0:
        raise ConfigError(f"budget {budget_bytes} bytes: expected at least 0, or none for any size")


def _reason(costs: ReplayCosts, best: Groups, budget_bytes: int | None, *, proven: bool) -> str:
    num_boundaries = costs.num_stages - 1
    back = "who loses a stage sends everyone back to the checkpoint"
    if not num_boundaries:
        return f"one stage has no boundary to log: {back}"
    least_bytes = min(costs.boundary_bytes)
    if budget_bytes is not None and budget_bytes < least_bytes:
        return (
            f"the budget of {size_words(budget_bytes)} is too small for any boundary: the smallest "
            f"takes {size_words(least_bytes)} in {costs.interval_steps} steps; nothing is "
            f"logged, and {back}"
        )
    if not best.boundaries:
        return f"no grouping within the budget beats a global restart: nothing is logged, {back}"
    allowed = "no budget" if budget_bytes is None else f"a budget of {size_words(budget_bytes)}"
    words = f"{len(best.boundaries)} of {num_boundaries} boundaries logged, with {allowed}"
    return f"{words}; {'no grouping is better' if proven else 'a better grouping may exist'}"


def size_words(num_bytes: float) -> str:
    """``839 MB``; units of ten, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if num_bytes < 999.95:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} EB"
