"""The fewest ends of bad links that are to be left out so that no bad link is needed. Pure.

Exact for what happens: a card, a cable, a network that falls into parts. Of very many bad links
at once a good answer is enough.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import combinations
from typing import Any, TypeVar

_MOST_EXACT = 12  # ends of bad links, up to which every set is tried

End = TypeVar("End", bound=Any)  # of a link; they can be sorted


def smallest_cover(
    links: Sequence[tuple[End, End]],
    cost: Callable[[tuple[End, ...]], Any] = lambda some: 0,
    *,
    keep: End | None = None,
) -> tuple[End, ...]:
    """As few ends as touch every link; among equals the cheapest, then by name.

    ``keep``: that one of very many is to stay, if that takes no more.
    """
    ends = sorted({end for link in links for end in link})
    if len(ends) > _MOST_EXACT:
        covers = [_greedy_cover(links), _greedy_cover(links, keep)]
        return min(covers, key=lambda some: (len(some), cost(some), some))
    for size in range(len(ends) + 1):
        covers = [some for some in combinations(ends, size) if _covers(some, links)]
        if covers:
            return min(covers, key=lambda some: (cost(some), some))
    raise AssertionError("all ends together cover every link")


def _covers(some: Collection[End], links: Iterable[tuple[End, End]]) -> bool:
    return all(one in some or other in some for one, other in links)


def _greedy_cover(links: Sequence[tuple[End, End]], keep: End | None = None) -> tuple[End, ...]:
    """At most a logarithm more than the fewest."""
    taken = {end for link in links if keep in link for end in link} - {keep}
    left = [link for link in links if taken.isdisjoint(link)]
    while left:
        ends = sorted({end for link in left for end in link})
        most = max(ends, key=lambda end: sum(end in link for link in left))
        taken.add(most)
        left = [link for link in left if most not in link]
    return tuple(sorted(taken))
