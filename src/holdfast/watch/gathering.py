"""The iterations of all ranks side by side: how long each worked, and how long it waited.
Pure; who is slow is decided in ``detection``."""

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from holdfast.watch.records import Call, RankHello, Record
from holdfast.watch.stream import Iteration, Stream

_NUM_HELD = 1000  # iterations that some rank has not told yet
MOST_HELD_CALLS = 1 << 20  # in them, over all ranks: about 40 bytes each


class IterationRow(NamedTuple):
    """One iteration of the job."""

    counted_anew: int  # as in ``Iteration``
    number: int
    took_s: float  # median over the ranks
    ranks: tuple[int, ...]  # those that the times below are of
    busy_s: list[float]  # outside of all calls
    waited_s: list[float]  # inside of them
    is_alike: bool  # same ranks and calls as in the iteration before


class Gathering:
    """Records of any rank in, in any order; an iteration out once all ranks have told it."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.world_size = 0
        # (counted anew, number) -> rank -> iteration
        self._held: dict[tuple[int, int], dict[int, Iteration]] = {}
        self.num_held_calls = 0
        self.num_dropped = 0  # iterations of a rank that were not kept until the others had come
        self._gone: set[int] = set()
        self._shapes: dict[int, tuple[tuple[str, str], ...]] = {}

    @property
    def num_held(self) -> int:
        """Iterations of a rank that wait for those of others."""
        return sum(map(len, self._held.values()))

    def join(self, hello: RankHello) -> None:
        self.world_size = hello.world_size
        self.streams[hello.rank] = Stream()
        self._gone.discard(hello.rank)  # the end of the one before may have been heard just now

    def leave(self, rank: int) -> None:
        """It tells no more; iterations that only it has not told are not waited for."""
        self._gone.add(rank)

    def add(self, rank: int, record: Record) -> list[IterationRow]:
        rows = []
        for iteration in self.streams[rank].add(record):
            place = (iteration.counted_anew, iteration.number)
            told = self._hold(place, rank, iteration)
            if told.keys() >= self.streams.keys() - self._gone:
                rows.append(self._row(place, told))
                self._forget(place)
        while len(self._held) > _NUM_HELD or self.num_held_calls > MOST_HELD_CALLS:
            self.num_dropped += self._drop(min(self._held))
        return rows

    def _hold(
        self, place: tuple[int, int], rank: int, iteration: Iteration
    ) -> dict[int, Iteration]:
        told = self._held.setdefault(place, {})
        before = told.get(rank)
        self.num_held_calls += len(iteration.calls) - (len(before.calls) if before else 0)
        told[rank] = iteration
        return told

    def _drop(self, place: tuple[int, int]) -> int:
        """How many iterations it was, of that many ranks."""
        told = self._held.pop(place)
        self.num_held_calls -= sum(len(iteration.calls) for iteration in told.values())
        return len(told)

    def _forget(self, place: tuple[int, int]) -> None:
        for old in [held for held in self._held if held <= place]:
            self._drop(old)

    def _row(self, place: tuple[int, int], told: Mapping[int, Iteration]) -> IterationRow:
        shapes = {rank: _shape(iteration.calls) for rank, iteration in told.items()}
        is_alike, self._shapes = self._shapes == shapes, shapes
        counted_anew, number = place
        return IterationRow(
            counted_anew=counted_anew,
            number=number,
            took_s=median(iteration.took_s for iteration in told.values()),
            ranks=tuple(sorted(told)),
            busy_s=[told[rank].busy_s for rank in sorted(told)],
            waited_s=[sum(told[rank].calls_s) for rank in sorted(told)],
            is_alike=is_alike,
        )


def _shape(calls: tuple[Call, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((call.op, call.group) for call in calls)
