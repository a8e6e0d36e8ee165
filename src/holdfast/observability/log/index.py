"""The index on disk, beside the events: what it takes to open a long run at once.

``index/steps.bin`` has a row for each event but the times of operations, ``index/rare.jsonl`` a
copy of those that are no finished steps. Both only grow. Whoever holds the lock writes: the run, or
a reader that found none. What is torn, missing or of another run is made again from the events.
"""

import fcntl
import os
import struct
import zlib
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from holdfast.observability.events import StepFinished
from holdfast.observability.log.files import BULK, EventFile, event_files
from holdfast.observability.log.reading import event_of
from holdfast.observability.log.rows import ROW, Rows, empty_rows, is_step, num_sound
from holdfast.observability.log.tail import Tail

FOLDER, STEPS, RARE_FILE, _LOCK = "index", "steps.bin", "rare.jsonl", "lock"
_VERSION = 1
_HEADER = struct.Struct(f"<8sII{ROW.itemsize - 16}x")  # magic, version, whose events; a row long
_MAGIC = b"holdfast"
_LONGEST = 4 << 20  # bytes of a line with which the last row is compared


class Indexed(NamedTuple):
    """Rows, and the lines of those that are rare."""

    rows: Rows
    rare: list[bytes]

    @property
    def last(self) -> "np.void | None":
        return self.rows[-1] if len(self.rows) else None

    def with_more(self, rows: Rows, rare: list[bytes]) -> "Indexed":
        """Neither is copied if the other is empty: there may be a million."""
        if not len(rows) or not len(self.rows):
            return Indexed(rows if len(rows) else self.rows, self.rare + rare)
        return Indexed(np.concatenate([self.rows, rows]), self.rare + rare)


NOTHING = Indexed(empty_rows(), [])


def load(newest: Path) -> Indexed:
    """What is sound of it, and of these events; perhaps nothing. Raises nothing."""
    try:
        found = _sound(newest.parent / FOLDER, identity(newest))
        return found if _agrees(newest, found.last) else NOTHING
    except (OSError, ValueError, EOFError, zlib.error):
        return NOTHING


def has_events(newest: Path) -> bool:
    try:
        identity(newest)
    except ValueError:
        return False
    return True


def identity(newest: Path) -> int:
    """Of a run's events: the first of them, which stays as it is. OSError, ValueError: none."""
    tail = Tail(newest)
    try:
        for line in tail.lines():
            if not line.text.startswith(BULK) and event_of(line.text) is not None:
                return zlib.crc32(line.text)
    finally:
        tail.close()
    raise ValueError("there is no event yet")


def _sound(folder: Path, whose: int) -> Indexed:
    with (folder / STEPS).open("rb") as file:
        header = file.read(_HEADER.size)
        if header != _HEADER.pack(_MAGIC, _VERSION, whose):
            return NOTHING
        num_rows = (os.fstat(file.fileno()).st_size - _HEADER.size) // ROW.itemsize
        rows = np.fromfile(file, ROW, num_rows)
    lines = (folder / RARE_FILE).read_bytes().split(b"\n")[:-1]  # rows come after their lines
    rows = rows[: num_sound(rows)]
    rare_rows = np.flatnonzero(~is_step(rows))
    sums = rows["tokens"][rare_rows]
    same = [zlib.crc32(line) == wanted for line, wanted in zip(lines, sums, strict=False)]
    num_rare = same.index(False) if False in same else len(same)
    if num_rare < len(rare_rows):
        rows = rows[: rare_rows[num_rare]]
    return Indexed(rows, lines[:num_rare])


def _agrees(newest: Path, row: "np.void | None") -> bool:
    """Whether the row's event stands where it says."""
    if row is None:
        return True
    file = next((each for each in event_files(newest) if each.number == row["file"]), None)
    if file is None:
        return False
    line = _line_of(file, int(row["end"]), int(row["kept"]))
    event = None if line is None else event_of(line)
    if isinstance(event, StepFinished):
        return bool(event.step == row["step"] and event.at_s == row["at_s"])
    return line is not None and bool(zlib.crc32(line) == row["tokens"])


def _line_of(file: EventFile, end: int, num_kept: int) -> bytes | None:
    """The one that ends there; None: none does."""
    with file.open() as opened:
        if file.is_compressed:
            last = next(islice(opened, num_kept - 1, None), b"")
            return last.removesuffix(b"\n")
        begin = max(0, end - _LONGEST)
        opened.seek(begin)
        text = opened.read(end - begin)
    if len(text) < end - begin or not text.endswith(b"\n"):
        return None
    return text[text.rfind(b"\n", 0, -1) + 1 : -1]


class IndexFiles:
    """For the one that writes it. OSError: it cannot."""

    def __init__(self, newest: Path) -> None:
        self._newest = newest
        self._folder = newest.parent / FOLDER
        self._lock: BinaryIO | None = None
        self._steps: BinaryIO | None = None
        self._rare: BinaryIO | None = None

    def lock(self) -> bool:
        """False: somebody else writes it."""
        self._folder.mkdir(exist_ok=True)
        file = (self._folder / _LOCK).open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as why:
            file.close()
            if isinstance(why, BlockingIOError):
                return False
            raise
        self._lock = file
        return True

    def begin(self) -> Indexed:
        """What is there, to go on after it; what is not sound is cut off. ValueError: no events."""
        whose = identity(self._newest)
        found = load(self._newest)
        self._steps = _cut(self._folder / STEPS, found.rows.nbytes + _HEADER.size)
        self._rare = _cut(self._folder / RARE_FILE, sum(len(line) + 1 for line in found.rare))
        if not len(found.rows):
            self._steps.seek(0)
            self._steps.write(_HEADER.pack(_MAGIC, _VERSION, whose))
        return found

    def append(self, rows: Rows, rare: list[bytes]) -> None:
        assert self._steps is not None
        assert self._rare is not None
        _write(self._rare, b"".join(line + b"\n" for line in rare))
        _write(self._steps, rows.tobytes())

    def close(self) -> None:
        for file in (self._steps, self._rare, self._lock):
            if file is not None:
                with suppress(OSError):
                    file.close()


def _cut(path: Path, size: int) -> BinaryIO:
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
    file.truncate(size)
    file.seek(size)
    return file


def _write(file: BinaryIO, data: bytes) -> None:
    if file.write(data) != len(data):
        raise OSError("no room for all of it")
