"""All workers of a run on machines that run none yet.

Whole pipelines go first. What is left of the machines is filled with pieces of the pipelines that
are left, one behind the other. Why no stage is on one machine if that can be helped: a machine
takes at most ``stages * (pipelines - 1)`` workers. Its whole pipelines hold each stage once, and so
does its piece, which is shorter than a pipeline; so it lacks at least one holder of every stage.
Only where the other machines have fewer slots than there are stages must one take more.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace

MachineNumbers = list[list[int]]  # by pipeline and stage


def fresh(pipelines: int, stages: int, rooms: Sequence[int]) -> MachineNumbers:
    """``rooms``: workers that each machine can run, enough for all in sum."""
    usable = _usable(pipelines, stages, rooms)
    num_whole = min(pipelines, sum(room // stages for room in usable))
    whole = _whole(num_whole, stages, rooms, usable)
    left = [room - stages * whole.count(index) for index, room in enumerate(usable)]
    flat = list(_pieces(pipelines - num_whole, stages, left))
    cut = [flat[start : start + stages] for start in range(0, len(flat), stages)]
    return [*([index] * stages for index in whole), *cut]


def _usable(pipelines: int, stages: int, rooms: Sequence[int]) -> list[int]:
    """What each may run so that it lacks a holder of every stage, if all still fit so."""
    most = stages * max(pipelines - 1, 1)
    usable = [min(room, most) for room in rooms]
    lacking = pipelines * stages - sum(usable)
    if lacking > 0:  # then one machine is larger than that, and all others together are small
        usable[rooms.index(max(rooms))] += lacking
    return usable


def _whole(number: int, stages: int, rooms: Sequence[int], usable: Sequence[int]) -> list[int]:
    """Machines that run a pipeline each, in turn the one that is then least full."""
    queue = [
        (stages / rooms[index], index, 1) for index, room in enumerate(usable) if room >= stages
    ]
    heapify(queue)
    found = []
    for _ in range(number):
        _, index, count = queue[0]
        found.append(index)
        fits = stages * (count + 1) <= usable[index]
        share = stages * (count + 1) / rooms[index] if fits else float("inf")
        heapreplace(queue, (share, index, count + 1))
    return sorted(found)


def _pieces(pipelines: int, stages: int, rooms: Sequence[int]) -> Iterator[int]:
    """The machine of each worker, pipeline by pipeline; each machine is used once, in one go.

    The largest that does not reach beyond the end of a pipeline; else the smallest that reaches
    it, of which the rest stays empty if enough is left for all, and else begins the next pipeline.
    """
    free = sorted((room, -index) for index, room in enumerate(rooms) if room)
    slack = sum(rooms) - pipelines * stages
    need = stages
    for _ in range(pipelines):
        while need > 0:
            size, index = free.pop(_choice(free, need))
            if size > need and size - need <= slack:
                slack -= size - need
                size = need
            yield from (-index for _ in range(size))
            need -= size
        need += stages


def _choice(free: Sequence[tuple[int, int]], need: int) -> int:
    fitting = sum(size <= need for size, _ in free)
    return max(fitting - 1, 0)
