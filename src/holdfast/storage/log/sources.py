"""Where segments of the log are read from: here, the folders of this machine.

What a reader asks of any place is at the top; those of another machine are in ``far_logs.py``.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.storage.log.segment import (
    NotOurs,
    Scan,
    opened,
    read_segment_header,
    scan,
    segment_numbers,
    segment_path,
)

TellTrouble = Callable[[str], None]


class LogDamaged(Exception):
    """This copy of a frame is of no use; says why."""


class SegmentView(Protocol):
    """Some bytes of a segment, by their place in it."""

    def read(self, num_bytes: int, at: int) -> bytes:
        """Fewer only at its end."""

    def fill(self, memories: Sequence[memoryview], at: int) -> None:
        """One after the other. LogDamaged: it ends before."""


class LogSegment(Protocol):
    """Equal to another one of the same place. Its text says where that is."""

    @property
    def worker(self) -> str: ...

    def scan(self, start: int, run: str) -> Scan:
        """Whole frames from ``start`` on; 0: from the first one. NotOurs: of another run."""

    def view(self, at: int, num_bytes: int) -> AbstractContextManager[SegmentView]: ...


class LogSource(Protocol):
    def segments(self, note: TellTrouble) -> Sequence[LogSegment]:
        """``note`` is told of what cannot be read."""

    def close(self) -> None: ...


# --- of this machine ---


@dataclass(frozen=True, slots=True)
class _FileView:
    fd: int

    def read(self, num_bytes: int, at: int) -> bytes:
        return os.pread(self.fd, num_bytes, at)

    def fill(self, memories: Sequence[memoryview], at: int) -> None:
        left = [memory for memory in memories if len(memory)]
        while left:
            got = os.preadv(self.fd, left, at)
            if not got:
                raise LogDamaged("cut off")
            at += got
            while left and got >= len(left[0]):
                got -= len(left.pop(0))
            if got:
                left[0] = left[0][got:]


@dataclass(frozen=True, slots=True)
class DiskSegment:
    path: Path

    def __str__(self) -> str:
        folder = self.path.parent
        return f"worker {folder.name}, {self.path.name} in {folder.parent}"

    @property
    def worker(self) -> str:
        return self.path.parent.name

    def scan(self, start: int, run: str) -> Scan:
        with opened(self.path) as fd:
            return scan_for(fd, start, run)

    @contextmanager
    def view(self, at: int, num_bytes: int) -> Iterator[SegmentView]:
        with opened(self.path) as fd:
            yield _FileView(fd)


def scan_for(fd: int, start: int, run: str) -> Scan:
    if not start:
        identity, start = read_segment_header(fd)
        if identity.run != run:
            raise NotOurs(f"of run {identity.run}, not {run}")
    return scan(fd, start)


@dataclass(frozen=True, slots=True)
class DiskLogs:
    """One folder a worker is in ``root``."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    def segments(self, note: TellTrouble) -> list[LogSegment]:
        found: list[LogSegment] = []
        for folder in _entries(self.root):
            try:
                numbers = segment_numbers(folder)
            except OSError as why:
                note(f"{folder}: {why.strerror or why}")
                continue
            found += [DiskSegment(segment_path(folder, number)) for number in numbers]
        return found

    def close(self) -> None: ...


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
