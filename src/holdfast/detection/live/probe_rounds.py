"""In which rounds links are measured so that no worker serves two of them at once.

Edge colouring: as many rounds as the busiest worker has links if the graph has no odd ring
(rings of even length: 2, trees), mostly one more if it has. What a probe is, is not known here.
"""

from collections.abc import Iterable
from itertools import count
from typing import TypeVar

from holdfast.cluster import WorkerId

_Colours = dict[WorkerId, dict[int, WorkerId]]  # worker -> round -> the other end
_L = TypeVar("_L", bound=tuple[WorkerId, WorkerId])


def rounds(links: Iterable[_L]) -> list[list[_L]]:
    """Each link once (a link and its way back are one); pairs of a round are disjoint."""
    asked = {frozenset(link): link for link in links if link[0] != link[1]}
    taken: _Colours = {end: {} for link in asked.values() for end in link}
    for one, other in asked.values():
        colour = _colour(taken, one, other)
        taken[one][colour], taken[other][colour] = other, one
    placed: dict[int, list[_L]] = {}
    for pair, link in asked.items():
        colour = next(c for c, end in taken[link[0]].items() if frozenset((link[0], end)) == pair)
        placed.setdefault(colour, []).append(link)
    return [placed[colour] for colour in sorted(placed)]


def _colour(taken: _Colours, one: WorkerId, other: WorkerId) -> int:
    free_one, free_other = _free(taken[one]), _free(taken[other])
    both = _free(taken[one] | taken[other])
    if both <= max(free_one, free_other):
        return both
    if one in _chain(taken, other, free_one, free_other):  # an odd ring
        return both
    _flip(taken, other, free_one, free_other)
    return free_one


def _free(used: dict[int, WorkerId]) -> int:
    return next(colour for colour in count() if colour not in used)


def _chain(taken: _Colours, start: WorkerId, first: int, second: int) -> list[WorkerId]:
    """Workers reached from ``start`` by links of the two rounds in turn."""
    path, colour = [start], first
    while colour in taken[path[-1]]:
        path.append(taken[path[-1]][colour])
        colour = second if colour == first else first
    return path


def _flip(taken: _Colours, start: WorkerId, first: int, second: int) -> None:
    """Exchange the two rounds along the chain: ``first`` is then free at its start."""
    for worker in _chain(taken, start, first, second):
        ends = taken[worker]
        swapped = {second: ends.get(first), first: ends.get(second)}
        for colour, end in swapped.items():
            ends.pop(colour, None)
            if end is not None:
                ends[colour] = end
