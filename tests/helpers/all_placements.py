"""Every way to spread a few workers over a few machines: what the best could be."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product


def all_counts(need: Sequence[int], rooms: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Machines' holders of each stage, ``[stage][machine]``, for every way that fits."""
    if not need:
        yield []
        return
    for row in product(*(range(min(need[0], room) + 1) for room in rooms)):
        if sum(row) == need[0]:
            left = [room - taken for room, taken in zip(rooms, row, strict=True)]
            yield from ([row, *more] for more in all_counts(need[1:], left))


def num_on_one_machine(counts: Sequence[Sequence[int]]) -> int:
    return sum(sum(number > 0 for number in row) == 1 for row in counts)


def fewest_on_one_machine(pipelines: int, stages: int, rooms: Sequence[int]) -> int:
    return min(map(num_on_one_machine, all_counts([pipelines] * stages, rooms)))


def fewest_split(pipelines: int, stages: int, rooms: Sequence[int], on_one: int) -> int:
    """Neighbours on two machines, of the ways with ``on_one`` stages on one machine."""
    best = pipelines * stages
    for flat in product(range(len(rooms)), repeat=pipelines * stages):
        if any(flat.count(index) > room for index, room in enumerate(rooms)):
            continue
        lanes = [flat[start : start + stages] for start in range(0, len(flat), stages)]
        if sum(len(set(holders)) == 1 for holders in zip(*lanes, strict=True)) == on_one:
            best = min(best, sum(a != b for lane in lanes for a, b in pairwise(lane)))
    return best
