"""Reads the boundary logs of all workers of a run: any good copy of a fact will do.

Opening reads headers only. A checksum is looked at when its fact is asked for; a bad copy is
passed over for the next one, a folder for its mirror. Knows nothing of stages to be replayed.
"""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from holdfast.errors import LogGap
from holdfast.storage.log.frame import (
    HEADER_BYTES,
    SEAL_BYTES,
    Flag,
    FrameKind,
    FrameName,
    decode_header,
    encode_header,
    seal,
)
from holdfast.storage.log.segment import (
    NotOurs,
    opened,
    read_segment_header,
    scan,
    segment_numbers,
    segment_path,
)
from holdfast.storage.log.tensors import decode_shapes, empty

_HINTS = 3  # reasons told at most


class LoggedVerdict(NamedTuple):
    norm: float
    scale: float | None
    skip: bool


class _Damaged(Exception):
    """This copy of a frame is of no use; says why."""


@dataclass
class _Segment:
    path: Path
    scanned_to: int  # 0: not even its header

    def __str__(self) -> str:
        folder = self.path.parent
        return f"worker {folder.name}, {self.path.name} in {folder.parent}"


# One copy of a fact: where it is. Plain and small, for there may be millions.
_Place = tuple[_Segment, int]


class LogReader(AbstractContextManager["LogReader"]):
    """For one thread. ``ignored``: segments that are not read and why; ``damaged``: bad places."""

    def __init__(self, folders: Iterable[Path], run: str, workers: Iterable[str]) -> None:
        self.ignored: list[str] = []
        self.damaged: list[str] = []
        self.num_bytes = 0  # of facts read so far
        self._roots = list(folders)
        self._run, self._workers = run, list(workers)
        self._segments: dict[Path, _Segment] = {}
        self._places: dict[FrameName, list[_Place]] = {}
        self.refresh()

    @staticmethod
    def open(
        directory: str | Path, mirror: str | Path, run: object, workers: Iterable[str] = ()
    ) -> "LogReader":
        """``mirror`` may be empty. ``workers``: whose folders should be there."""
        roots = [Path(place) for place in (directory, mirror) if str(place)]
        return LogReader(roots, str(run), workers)

    def __exit__(self, *_: object) -> None:
        return None

    def refresh(self) -> None:
        """Take in what was written since."""
        for root in self._roots:
            for folder in _entries(root):
                try:
                    numbers = segment_numbers(folder)
                except OSError as why:
                    self._note(self.ignored, f"{folder}: {why.strerror or why}")
                    continue
                for number in numbers:
                    self._take_in(segment_path(folder, number))

    # --- what is there ---

    @property
    def num_facts(self) -> int:
        return len(self._places)

    @property
    def num_copies(self) -> int:
        """Of all facts together."""
        return sum(map(len, self._places.values()))

    def has(
        self, kind: FrameKind, stage: int, step: int, attempt: int = 0, microbatch: int = 0
    ) -> bool:
        return FrameName(kind, stage, step, attempt, microbatch).fact in self._places

    def read(
        self, kind: FrameKind, stage: int, step: int, attempt: int, microbatch: int
    ) -> tuple[Tensor, ...]:
        """Tensors of memory of their own, with ``requires_grad`` as their maker had it."""
        return self._read(FrameName(kind, stage, step, attempt, microbatch))[0]

    def verdict(self, step: int) -> LoggedVerdict:
        tensors, flags = self._read(FrameName(FrameKind.VERDICT, 0, step, 0, 0))
        norm, scale = tensors[0].tolist()
        return LoggedVerdict(norm, scale if flags & Flag.SCALED else None, bool(flags & Flag.SKIP))

    def tied(self, number: int, step: int, attempt: int) -> tuple[Tensor, bool]:
        """Reduced gradient of a tied parameter, padded, and whether anything contributed to it."""
        tensors, flags = self._read(FrameName(FrameKind.TIED, 0, step, attempt, number))
        return tensors[0], bool(flags & Flag.TOUCHED)

    # --- segments ---

    def _take_in(self, path: Path) -> None:
        segment = self._segments.setdefault(path, _Segment(path, 0))
        try:
            with opened(path) as fd:
                if not segment.scanned_to:
                    segment.scanned_to = self._begin(segment, fd)
                found = scan(fd, segment.scanned_to)
        except (OSError, NotOurs) as why:
            self._note(self.ignored, f"{segment}: {why}")
            return
        segment.scanned_to = found.end
        for offset in found.damaged:
            self._note(self.damaged, f"{segment}: damaged at byte {offset}")
        for offset, header in found.frames:
            self._places.setdefault(header.name.fact, []).append((segment, offset))

    def _begin(self, segment: _Segment, fd: int) -> int:
        identity, start = read_segment_header(fd)
        if identity.run != self._run:
            raise NotOurs(f"of run {identity.run}, not {self._run}")
        return start

    def _note(self, notes: list[str], text: str) -> None:
        if text not in notes:
            notes.append(text)

    # --- facts ---

    def _read(self, name: FrameName) -> tuple[tuple[Tensor, ...], int]:
        problems: list[str] = []
        tried: list[_Place] = []
        for is_fresh in (False, True):  # what was known may be gone, and written once more
            if is_fresh:
                self.refresh()
            for place in [one for one in self._places.get(name.fact, []) if one not in tried]:
                tried.append(place)
                try:
                    return self._read_copy(place)
                except (OSError, _Damaged) as why:
                    problems.append(f"{place[0]}: {why}")
                    self._note(self.damaged, problems[-1])
        raise LogGap(name.step, str(name), "; ".join(problems or self._why_missing()))

    def _read_copy(self, place: _Place) -> tuple[tuple[Tensor, ...], int]:
        segment, offset = place
        damaged = _Damaged(f"checksum differs at byte {offset}")
        with opened(segment.path) as fd:
            header = decode_header(os.pread(fd, HEADER_BYTES, offset))
            if header is None:
                raise damaged
            shapes_data = os.pread(fd, header.shapes_bytes, offset + HEADER_BYTES)
            try:
                shapes = decode_shapes(shapes_data, header.num_tensors)
            except ValueError:
                raise damaged from None
            if sum(s.nbytes for s in shapes) != header.payload_bytes - header.shapes_bytes:
                raise damaged
            made = [empty(shape) for shape in shapes]
            memories, stored = [memory for _, memory in made], bytearray(SEAL_BYTES)
            start = offset + HEADER_BYTES + header.shapes_bytes
            _fill(fd, [*memories, memoryview(stored)], start)
        if seal([encode_header(header), shapes_data, *memories]) != stored:
            raise damaged
        self.num_bytes += header.frame_bytes
        for (tensor, _), shape in zip(made, shapes, strict=True):
            tensor.requires_grad_(shape.requires_grad)
        return tuple(tensor for tensor, _ in made), header.flags

    def _why_missing(self) -> list[str]:
        there = {path.parent.name for path in self._segments}
        gone = [worker for worker in self._workers if worker not in there]
        reasons = ["never logged"]
        if gone:
            reasons.append(f"no log of worker {', '.join(gone)} in {self._roots[0]}")
        elif not there:
            reasons.append(f"no log in {self._roots[0]}")
        return [*reasons, *self.damaged[:_HINTS], *self.ignored[:_HINTS]]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _fill(fd: int, memories: list[memoryview], at: int) -> None:
    left = [memory for memory in memories if len(memory)]
    while left:
        got = os.preadv(fd, left, at)
        if not got:
            raise _Damaged("cut off")
        at += got
        while left and got >= len(left[0]):
            got -= len(left.pop(0))
        if got:
            left[0] = left[0][got:]
