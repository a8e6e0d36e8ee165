"""Given a period: how can every stage get its work done, and with how few moves?

Counts only: ``home[p, k]`` workers of speed class k hold stage p, ``joiners[k]`` hold nothing,
one of class k does ``value[p, k]`` micro-batches of stage p in the period. Knows no worker.
"""

import numpy as np

from holdfast.arrays import Ints
from holdfast.planner.kernel.compiled import compiled

NONE = np.int64(2**40)  # more than any count


@compiled
def greedy(value: Ints, home: Ints, joiners: Ints, goal: int, fewest: int, most: int) -> Ints:
    """Move in whoever fits best wherever most is missing; final counts, or -1s if that fails.

    A stage may have ``fewest`` .. ``most`` holders and always keeps one that is there now.
    """
    num_stages, num_classes = home.shape
    final, stay, free = home.copy(), home.copy(), joiners.copy()
    does = np.zeros(num_stages, np.int64)
    for p in range(num_stages):
        for k in range(num_classes):
            does[p] += value[p, k] * home[p, k]
    while True:
        to = _neediest(does, final, goal, fewest, most, free.sum() > 0)
        if to < 0:
            return final
        source, k = _best_source(to, value, stay, final, free, does, goal, fewest, most)
        if k < 0:
            return np.full_like(home, -1)
        if source < 0:
            free[k] -= 1
        else:
            stay[source, k] -= 1
            final[source, k] -= 1
            does[source] -= value[source, k]
        final[to, k] += 1
        does[to] += value[to, k]


@compiled
def _neediest(does: Ints, final: Ints, goal: int, fewest: int, most: int, joiner_left: bool) -> int:
    """The stage that gets the next worker, -1 if all is well."""
    worst, too_many = -1, joiner_left
    for p in range(len(does)):
        too_many |= final[p].sum() > most
        needy = does[p] < goal or final[p].sum() < fewest
        # Too few holders before too little work; of these the one that does least.
        if needy and (worst < 0 or _before(p, worst, does, final, fewest)):
            worst = p
    if worst >= 0 or not too_many:
        return worst
    for p in range(len(does)):
        room = final[p].sum() < most
        if room and (worst < 0 or does[p] < does[worst]):
            worst = p
    return worst


@compiled
def _before(one: int, other: int, does: Ints, final: Ints, fewest: int) -> bool:
    few_one, few_other = final[one].sum() < fewest, final[other].sum() < fewest
    return (few_one and not few_other) or (few_one == few_other and does[one] < does[other])


@compiled
def _best_source(
    to: int,
    value: Ints,
    stay: Ints,
    final: Ints,
    free: Ints,
    does: Ints,
    goal: int,
    fewest: int,
    most: int,
) -> tuple[int, int]:
    """Whom to give to a stage: (from, class); from -1 is a joiner, class -1 is nobody.

    A joiner first, it must go somewhere; then from a stage with too many. Then the weakest
    that fills the gap, or else the strongest; then from near by, then where most is to spare.
    """
    best_source, best_k = -1, -1
    best = (NONE, NONE, NONE, NONE)
    if final[to].sum() >= most:
        return best_source, best_k
    gap = max(1, goal - does[to])
    for source in range(-1, len(does)):
        if source >= 0:
            count = final[source].sum()
            if source == to or count - 1 < fewest or stay[source].sum() < 2:
                continue
        for k in range(len(free)):
            if source < 0:
                if free[k] == 0:
                    continue
                order, away, spare = -1, 0, 0
            else:
                spare = does[source] - value[source, k] - goal
                if stay[source, k] == 0 or spare < 0:
                    continue
                order, away = (0 if count > most else 1), abs(source - to)
            gives = value[to, k]
            fit = gives - gap if gives >= gap else NONE - gives
            key = (np.int64(order), np.int64(fit), np.int64(away), np.int64(-spare))
            if key < best:
                best, best_source, best_k = key, source, k
    return best_source, best_k


@compiled
def cover(
    need: Ints,
    leaves: Ints,
    bulk_home: Ints,
    most_bulk: Ints,
    bulk_joiners: int,
    digits: Ints,
    strides: Ints,
    most_moves: int,
) -> tuple[int, Ints]:
    """Fewest holders that move, and for each stage the index of its workers outside the bulk.

    The workers outside the bulk (the largest class) are dealt out stage by stage. The state is
    which of them are dealt (``digits``), how many bulk joiners are taken, and the moves so far;
    its value the fewest bulk workers used: fewer is never worse, left-over ones stay at home.
    ``need[p, a]`` bulk workers go with the choice ``a`` at stage p (-1: not allowed).
    ``most_bulk[p, u]``: used more up to stage p, too little is left for the stages after it.
    """
    num_stages, num_states = need.shape
    full = num_states - 1
    used = np.full((num_states, bulk_joiners + 1, most_moves + 1), NONE)
    used[0, 0, 0] = 0
    choice = np.full((num_stages, num_states, bulk_joiners + 1, most_moves + 1), -1)
    for p in range(num_stages):
        after = np.full(used.shape, NONE)
        for u in range(num_states):
            least = used[u].min()
            # The last stage takes all that is left.
            a = full - u if p == num_stages - 1 else 0
            while a >= 0 and least < NONE:
                needs, most = need[p, a], most_bulk[p, u + a]
                if needs >= 0 and least + needs <= most:
                    comes = max(0, needs - bulk_home[p])
                    _deal(used, after, choice[p], u, a, needs, most, leaves[p, a], comes)
                a = -1 if u + a == full else _next_choice(a, u, digits, strides)
        used = after
    return _way_back(used, choice)


@compiled
def _deal(
    used: Ints,
    after: Ints,
    choice: Ints,
    u: int,
    a: int,
    need: int,
    most_bulk: int,
    leave: int,
    comes: int,
) -> None:
    """Choice ``a`` at a stage: from the states ``u`` before it to those after it."""
    _, num_joined, num_moves = used.shape
    for f in range(num_joined):
        f2 = min(num_joined - 1, f + comes)
        paid = leave + f + comes - f2
        for c in range(num_moves - paid):
            now = used[u, f, c] + need
            if now <= most_bulk and now < after[u + a, f2, c + paid]:
                after[u + a, f2, c + paid] = now
                choice[u + a, f2, c + paid] = (a * num_joined + f) * num_moves + c


@compiled
def _next_choice(a: int, u: int, digits: Ints, strides: Ints) -> int:
    """The next choice, like an odometer, of what state ``u`` has left; -1 at the end."""
    left = digits.shape[0] - 1 - u
    for k in range(len(strides)):
        if digits[a, k] < digits[left, k]:
            return a + int(strides[k])
        a -= digits[a, k] * strides[k]
    return -1


@compiled
def _way_back(used: Ints, choice: Ints) -> tuple[int, Ints]:
    num_stages, num_states, num_joined, num_moves = choice.shape
    chosen = np.full(num_stages, -1, np.int64)
    for c in range(num_moves):
        for f in range(num_joined):
            if used[num_states - 1, f, c] < NONE:
                u, moves = num_states - 1, c
                for p in range(num_stages - 1, -1, -1):
                    coded = choice[p, u, f, c]
                    c, f = coded % num_moves, coded // num_moves % num_joined
                    chosen[p] = coded // num_moves // num_joined
                    u -= chosen[p]
                return moves, chosen
    return -1, chosen
