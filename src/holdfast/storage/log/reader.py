"""Reads the boundary logs of all workers of a run: any good copy of a fact will do.

Opening reads headers only. A checksum is looked at when its fact is asked for; a bad copy is
passed over for the next one, a folder for its mirror, this machine for another. Knows nothing of
stages to be replayed.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from holdfast.errors import LogGap, TransferFailed
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
from holdfast.storage.log.segment import NotOurs
from holdfast.storage.log.sources import DiskLogs, LogDamaged, LogSegment, LogSource
from holdfast.storage.log.tensors import decode_shapes, empty

_HINTS = 3  # reasons told at most


class LoggedVerdict(NamedTuple):
    norm: float
    scale: float | None
    skip: bool


# One copy of a fact: where it is, and its bytes. Plain and small, for there may be millions.
_Place = tuple[LogSegment, int, int]


class LogReader(AbstractContextManager["LogReader"]):
    """For one thread. ``ignored``: segments that are not read and why; ``damaged``: bad places."""

    def __init__(self, sources: Iterable[LogSource], run: str, workers: Iterable[str]) -> None:
        self.ignored: list[str] = []
        self.damaged: list[str] = []
        self.num_bytes = 0  # of facts read so far
        self._sources = list(sources)
        self._run, self._workers = run, list(workers)
        self._scanned: dict[LogSegment, int] = {}  # up to where; 0: not even its header
        self._places: dict[FrameName, list[_Place]] = {}
        self.refresh()

    @staticmethod
    def open(
        directory: str | Path,
        mirror: str | Path,
        run: object,
        workers: Iterable[str] = (),
        more: Sequence[LogSource] = (),
    ) -> "LogReader":
        """``mirror`` may be empty. ``workers``: whose folders should be there."""
        roots = [DiskLogs(Path(place)) for place in (directory, mirror) if str(place)]
        return LogReader([*roots, *more], str(run), workers)

    def __exit__(self, *_: object) -> None:
        for source in self._sources:
            source.close()

    def refresh(self) -> None:
        """Take in what was written since."""
        for source in self._sources:
            for segment in source.segments(self._ignore):
                self._take_in(segment)

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

    def _take_in(self, segment: LogSegment) -> None:
        try:
            found = segment.scan(self._scanned.setdefault(segment, 0), self._run)
        except (OSError, NotOurs, TransferFailed) as why:
            self._ignore(f"{segment}: {why}")
            return
        self._scanned[segment] = found.end
        for offset in found.damaged:
            self._note(self.damaged, f"{segment}: damaged at byte {offset}")
        for offset, header in found.frames:
            place = (segment, offset, header.frame_bytes)
            self._places.setdefault(header.name.fact, []).append(place)

    def _ignore(self, text: str) -> None:
        self._note(self.ignored, text)

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
                except (OSError, LogDamaged, TransferFailed) as why:
                    problems.append(f"{place[0]}: {why}")
                    self._note(self.damaged, problems[-1])
        raise LogGap(name.step, str(name), "; ".join(problems or self._why_missing()))

    def _read_copy(self, place: _Place) -> tuple[tuple[Tensor, ...], int]:
        segment, offset, num_bytes = place
        damaged = LogDamaged(f"checksum differs at byte {offset}")
        with segment.view(offset, num_bytes) as view:
            header = decode_header(view.read(HEADER_BYTES, offset))
            if header is None:
                raise damaged
            shapes_data = view.read(header.shapes_bytes, offset + HEADER_BYTES)
            try:
                shapes = decode_shapes(shapes_data, header.num_tensors)
            except ValueError:
                raise damaged from None
            if sum(s.nbytes for s in shapes) != header.payload_bytes - header.shapes_bytes:
                raise damaged
            made = [empty(shape) for shape in shapes]
            memories, stored = [memory for _, memory in made], bytearray(SEAL_BYTES)
            start = offset + HEADER_BYTES + header.shapes_bytes
            view.fill([*memories, memoryview(stored)], start)
        if seal([encode_header(header), shapes_data, *memories]) != stored:
            raise damaged
        self.num_bytes += header.frame_bytes
        for (tensor, _), shape in zip(made, shapes, strict=True):
            tensor.requires_grad_(shape.requires_grad)
        return tuple(tensor for tensor, _ in made), header.flags

    def _why_missing(self) -> list[str]:
        there = {segment.worker for segment in self._scanned}
        gone = [worker for worker in self._workers if worker not in there]
        reasons = ["never logged"]
        if gone:
            reasons.append(f"no log of worker {', '.join(gone)} in {self._sources[0]}")
        elif not there:
            reasons.append(f"no log in {self._sources[0]}")
        return [*reasons, *self.damaged[:_HINTS], *self.ignored[:_HINTS]]
