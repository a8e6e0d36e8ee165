"""Times of operations of some steps, found in the files that still have them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from holdfast.observability.events import WorkerStep
from holdfast.observability.log.files import BULK, event_files
from holdfast.observability.log.reading import event_of
from holdfast.observability.log.rows import NO_STEP, Rows
from holdfast.observability.log.scan import STEP_OF_BULK

Where: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""Of rows, one each: file, where its line ends, first and last step of the operations before it."""

_COLUMNS = ("file", "end", "ops_first", "ops_last")
_AT_ONCE_BYTES = 8 << 20
_TRIES = 5  # another file may be begun meanwhile


class Range(NamedTuple):
    begin: int
    end: int


def where(rows: Rows) -> Where:
    return np.column_stack([rows[name].astype(np.int64) for name in _COLUMNS])


def find(newest: Path, rows: Where, first: int, last: int) -> list[WorkerStep]:
    """OSError: a file cannot be read."""
    for _ in range(_TRIES):
        files = event_files(newest)
        found = []
        for each in files:
            if not each.is_compressed and each.path.exists():
                ranges = ranges_of(rows[rows[:, 0] == each.number], each.num_bytes, first, last)
                found += [event for one in ranges for event in _within(each.path, one, first, last)]
        if event_files(newest) == files:
            break
    return found


def ranges_of(rows: Where, size: int, first: int, last: int) -> list[Range]:
    """Of one file: where the steps may be. What stands after the last row is not known: it counts.

    Ranges that touch each other are one.
    """
    ends = rows[:, 1]
    begins = np.concatenate(([0], ends[:-1]))
    hit = (rows[:, 2] <= last) & (rows[:, 3] >= first) & (rows[:, 2] != NO_STEP)
    found = [Range(int(begins[row]), int(ends[row])) for row in np.flatnonzero(hit)]
    tail = Range(int(ends[-1]) if len(ends) else 0, size)
    joined: list[Range] = []
    for one in [*found, tail]:
        if joined and joined[-1].end == one.begin:
            joined[-1] = Range(joined[-1].begin, one.end)
        else:
            joined.append(one)
    return joined


def _within(path: Path, place: Range, first: int, last: int) -> Iterator[WorkerStep]:
    for line in _lines(path, place):
        match = STEP_OF_BULK.search(line, len(BULK), 300) if line.startswith(BULK) else None
        if match and first <= int(match[1]) <= last:
            event = event_of(line)
            if isinstance(event, WorkerStep):  # else torn
                yield event


def _lines(path: Path, place: Range) -> Iterator[bytes]:
    left, rest = place.end - place.begin, b""
    with path.open("rb") as file:
        file.seek(place.begin)
        while left > 0 and (chunk := file.read(min(left, _AT_ONCE_BYTES))):
            left -= len(chunk)
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
    yield rest
