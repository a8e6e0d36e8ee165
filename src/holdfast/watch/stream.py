"""The calls of one rank, cut into iterations. Pure; other ranks are not known here."""

from collections import deque
from typing import NamedTuple

from holdfast.watch.iteration import find_period
from holdfast.watch.records import STEP, Call, Record

_FIRST_SEARCH_CALLS = 6
_COARSE_AFTER_CALLS = 64  # then sizes may differ from one iteration to the next
_LONGEST_SEARCH_CALLS = 8192
_LOST_AFTER_PERIODS = 4  # without a whole iteration: look for another period


class Iteration(NamedTuple):
    counted_anew: int  # how often what was taken for an iteration turned out not to be one
    number: int  # the first is 1
    took_s: float
    calls: tuple[Call, ...]
    calls_s: tuple[float, ...]  # time inside of each

    @property
    def busy_s(self) -> float:
        """Outside of all calls: the rank's own work."""
        return max(0.0, self.took_s - sum(self.calls_s))


class Stream:
    """Calls in, iterations out; the first ones as soon as the period is known."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.num_iterations = 0
        self._counted_anew = 0
        self._pattern: tuple[Call, ...] = ()
        self._coarse = False
        self._unplaced: list[Record] = []  # since the last whole iteration
        self._last: Record | None = None  # of the last whole iteration
        self._next_search = _FIRST_SEARCH_CALLS
        self._marked = False

    @property
    def pattern(self) -> tuple[Call, ...]:
        """The calls of one iteration; empty as long as the period is not known."""
        return self._pattern

    @property
    def num_unplaced(self) -> int:
        """Calls that are kept because no iteration they belong to is whole yet."""
        return len(self._unplaced)

    @property
    def _num_marks(self) -> int:
        return sum(call.op == STEP for call in self._pattern)

    def add(self, record: Record) -> list[Iteration]:
        self.num_calls += 1
        self._unplaced.append(record)
        if record.call.op == STEP:
            self._mark()
        if self._pattern and (iteration := self._whole()):
            return [iteration]
        if len(self._unplaced) >= self._next_search:
            return self._search()
        return []

    def _mark(self) -> None:
        """Equal calls before the first step of an optimizer have a period too, but a wrong one."""
        self._marked = True
        if self._pattern and not self._num_marks:
            self._pattern, self._coarse = (), False
            self._last = None
            self._next_search = _FIRST_SEARCH_CALLS
            self.num_iterations = 0
            self._counted_anew += 1

    def _whole(self) -> Iteration | None:
        length = len(self._pattern)
        calls = self._unplaced[-length:]
        if len(calls) < length or self._shape(calls) != self._pattern:
            return None
        before = self._unplaced[-length - 1] if len(self._unplaced) > length else self._last
        self.num_iterations += self._num_passed()
        self._unplaced, self._last = [], calls[-1]
        self._next_search = _LOST_AFTER_PERIODS * length
        if before is None:
            return None  # where it began is not known
        took_s = (calls[-1].leave_ns - before.leave_ns) / 1e9
        names, times = [r.call for r in calls], [r.took_s for r in calls]
        return Iteration(
            self._counted_anew, self.num_iterations, took_s, tuple(names), tuple(times)
        )

    def _num_passed(self) -> int:
        """Iterations that have ended: more than one if something came between."""
        if not self._marked:
            return max(1, len(self._unplaced) // len(self._pattern))
        marks = sum(record.call.op == STEP for record in self._unplaced)
        return max(1, marks // self._num_marks)

    def _search(self) -> list[Iteration]:
        self._next_search = len(self._unplaced) * 5 // 4 + 1  # each costs more than the last
        if self._find(coarse=False):
            return self._replay()
        if len(self._unplaced) >= _COARSE_AFTER_CALLS and self._find(coarse=True):
            return self._replay()
        if len(self._unplaced) > _LONGEST_SEARCH_CALLS:
            self._unplaced = self._unplaced[_LONGEST_SEARCH_CALLS // 2 :]
            self._next_search = _LONGEST_SEARCH_CALLS * 3 // 4
        return []

    def _find(self, coarse: bool) -> bool:
        self._coarse, old = coarse, self._coarse
        shape = self._shape(self._unplaced)
        numbers: dict[Call, int] = {}
        sequence = [numbers.setdefault(call, len(numbers)) for call in shape]
        marks = {number for call, number in numbers.items() if call.op == STEP}
        period = find_period(sequence, marks) if marks or not self._marked else None
        if period is None:
            self._coarse = old
            return False
        self._pattern = shape[period.start : period.start + period.length]
        skipped, self._unplaced = self._unplaced[: period.start], self._unplaced[period.start :]
        if skipped:
            self._last = skipped[-1]
        self.num_iterations += sum(r.call.op == STEP for r in skipped) // max(1, self._num_marks)
        return True

    def _replay(self) -> list[Iteration]:
        waiting, self._unplaced = deque(self._unplaced), []
        found = []
        while waiting:
            self._unplaced.append(waiting.popleft())
            if iteration := self._whole():
                found.append(iteration)
        return found

    def _shape(self, records: list[Record]) -> tuple[Call, ...]:
        if self._coarse:
            return tuple(record.call._replace(size=0) for record in records)
        return tuple(record.call for record in records)
