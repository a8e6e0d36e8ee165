"""From the files of events to rows of the index: all of them, or those since the last row."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from holdfast.observability.events import StepFinished
from holdfast.observability.log.files import BULK, event_files
from holdfast.observability.log.reading import told, told_event
from holdfast.observability.log.rows import RARE, ROW, RowMaker, Rows, seal
from holdfast.observability.log.tail import EventLine, FilePlace, Tail

STEP_OF_BULK = re.compile(rb'"worker": "[^"]*", "step": ([0-9]{1,9}),')
_TOLD_EVERY = 20_000  # lines


class IndexScan:
    """ConfigError, of all that reads: the files cannot be read, or are not those of a run."""

    def __init__(self, newest: Path, last: "np.void | None" = None) -> None:
        """``last``: the row after which it begins; None: with the first event there is."""
        self._newest = newest
        if last is None:
            self._tail, self._maker = Tail(newest), RowMaker()
        else:
            start = FilePlace(int(last["file"]), int(last["end"]), int(last["kept"]))
            self._tail = Tail(newest, start)
            self._maker = RowMaker(int(last["launch"]), rare_until(last))
        self._lines: Iterator[EventLine] | None = None  # of them some are left
        self._rows = bytearray()
        self._rare: list[bytes] = []
        self.num_lines = 0
        self.is_at_end = False  # there was no more, the last time

    @property
    def place(self) -> FilePlace:
        """After the last line that was read."""
        return self._tail.place

    def run(
        self, most_lines: float = float("inf"), on_progress: Callable[[float], None] | None = None
    ) -> None:
        """Up to the last line that is whole, or so many lines."""
        until, number = self.num_lines + most_lines, self.place.number
        with told(self._tail):
            self._lines = self._lines or self._tail.lines()
            for line in self._lines:
                if line.after.number != number:
                    number = line.after.number
                    self._maker.begin_file()
                self._take(line)
                self.num_lines += 1
                if on_progress is not None and self.num_lines % _TOLD_EVERY == 0:
                    on_progress(self._share())
                if self.num_lines >= until:
                    self.is_at_end = False
                    return
        self.is_at_end, self._lines = True, None

    def check_rest(self) -> None:
        """ConfigError: what stands there after the last whole line is not the beginning of one."""
        if self._tail.rest.text:
            told_event(self._tail, self._tail.rest)

    def _take(self, line: EventLine) -> None:
        if line.text.startswith(BULK):
            if match := STEP_OF_BULK.search(line.text, len(BULK), 300):
                self._maker.saw_operations(int(match[1]))
            return
        event = told_event(self._tail, line)
        if event is None:
            return
        self._rows += self._maker.row(event, line.text, line.after)
        if not isinstance(event, StepFinished):
            self._rare.append(line.text)

    def take(self) -> tuple[Rows, list[bytes]]:
        """What was found since the last time."""
        rows, rare = np.frombuffer(self._rows, ROW), self._rare
        seal(rows)
        self._rows, self._rare = bytearray(), []
        return rows, rare

    def _share(self) -> float:
        files = event_files(self._newest)
        done = sum(each.num_bytes for each in files if each.number < self.place.number)
        total = sum(each.num_bytes for each in files)
        return min(1.0, (done + self.place.end) / total) if total else 1.0

    def close(self) -> None:
        """Files are not held open; it can be run again."""
        self._tail.close()


def rare_until(row: "np.void") -> int:
    """How many rare events there are with this row."""
    return int(row["rare_before"]) + bool(row["flags"] & RARE)
