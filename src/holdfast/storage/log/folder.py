"""One worker's segments in one folder, as the worker that writes them sees them.

A segment is only ever appended to. One that could not be written to is left as it is, and
the next frame begins a new one. Knows nothing of queues, budgets and torch.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.storage.log.segment import (
    LogIdentity,
    encode_segment_header,
    last_use,
    segment_numbers,
    segment_path,
)

SEGMENT_BYTES = 64 << 20  # a segment that is larger gets no further frame

Buffers = Sequence[bytes | memoryview]


@dataclass
class _Segment:
    path: Path
    num_bytes: int
    last_use: int  # the newest checkpoint that needs it


class LogFolder:
    def __init__(self, folder: Path | Callable[[], Path], identity: LogIdentity) -> None:
        """``folder`` may be something that tells it when it is first needed."""
        self._folder = folder
        self._identity = identity
        self.num_bytes = 0  # on disk now
        self._segments: list[_Segment] = []
        self._fd: int | None = None
        self._next_number = 0

    @property
    def path(self) -> Path:
        """OSError: it cannot be had."""
        if not isinstance(self._folder, Path):
            self._folder = self._folder()
        return self._folder

    def __str__(self) -> str:
        return str(self._folder) if isinstance(self._folder, Path) else "the directory of logs"

    def prepare(self) -> None:
        """Find what an earlier process of the same worker left: it goes with the log."""
        numbers = segment_numbers(self.path)
        self._next_number = max(numbers, default=-1) + 1
        for number in numbers:
            path = segment_path(self.path, number)
            newest = last_use(path, self._identity.run)
            if newest is not None:
                self._segments.append(_Segment(path, path.stat().st_size, newest))
        self.num_bytes = sum(segment.num_bytes for segment in self._segments)

    def write(self, frame: Buffers, needed_until: int) -> None:
        """Append a frame. After an OSError the next one begins a new segment."""
        try:
            if self._fd is None:
                self._open()
            assert self._fd is not None
            segment = self._segments[-1]
            segment.last_use = max(segment.last_use, needed_until)
            self._append(segment, frame)
        except OSError:
            self.end_segment()
            raise
        if segment.num_bytes > SEGMENT_BYTES:
            self.end_segment()

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        path = self._create()
        self._segments.append(_Segment(path, 0, -1))
        self._append(self._segments[-1], [encode_segment_header(self._identity)])

    def _create(self) -> Path:
        """A file that nobody else writes to, not even another writer of the same worker."""
        while True:
            path = segment_path(self.path, self._next_number)
            self._next_number += 1
            with suppress(FileExistsError):
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                return path

    def _append(self, segment: _Segment, buffers: Buffers) -> None:
        assert self._fd is not None
        try:
            write_all(self._fd, buffers)
        finally:  # a part of it takes room too
            before, segment.num_bytes = segment.num_bytes, os.fstat(self._fd).st_size
            self.num_bytes += segment.num_bytes - before

    def end_segment(self) -> None:
        """The next frame begins a new one."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def trim(self, before_step: int) -> None:
        """Remove whole segments that no replay from ``before_step`` needs."""
        self.end_segment()
        for segment in [one for one in self._segments if one.last_use < before_step]:
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)
            self.num_bytes -= segment.num_bytes


def write_all(fd: int, buffers: Buffers) -> None:
    left = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while left:
        written = os.writev(fd, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
