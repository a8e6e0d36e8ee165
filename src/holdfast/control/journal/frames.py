"""How records are written to a file: a line for each append, with its length and checksum.

A line is whole or it is not, so what was appended together is there together. Written in order and
flushed one by one, only the last line can be half there after a crash.
"""

import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.control.journal.base import JournalRecord
from holdfast.errors import JournalDamaged, JournalError

_HEAD_BYTES = len("00000000 00000000 ")


class Frame(NamedTuple):
    generation: int  # of who wrote it
    records: list[dict[str, Any]]


class Frames(NamedTuple):
    frames: list[Frame]
    num_bytes: int  # that they take; what follows is half a frame

    def accepted(self) -> list[dict[str, Any]]:
        """Without those of a generation that had been replaced when it wrote them."""
        newest, found = 0, list[dict[str, Any]]()
        for frame in self.frames:
            if frame.generation >= newest:
                newest = frame.generation
                found += frame.records
        return found

    @property
    def newest(self) -> int:
        return max((frame.generation for frame in self.frames), default=0)


def frame_bytes(generation: int, records: Sequence[JournalRecord]) -> bytes:
    content = {"generation": generation, "records": [dict(record) for record in records]}
    body = compact_json(content)
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def compact_json(content: Any) -> bytes:
    try:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as why:
        raise JournalError(f"a record of the journal is no JSON: {why}") from why


def read_frames(data: bytes, where: str) -> Frames:
    """JournalDamaged: a line cannot be read that is not merely half written, at the end."""
    frames, at = list[Frame](), 0
    while at < len(data):
        end = data.find(b"\n", at) + 1
        line = data[at : end or len(data)]
        frame = _frame(line)
        if frame is None:
            if _is_half_written(line) and at + len(line) == len(data):
                break
            raise JournalDamaged(
                f"{where}: line {len(frames) + 1} is damaged; restore the file from a backup, or "
                "move it away and resume from the last checkpoint"
            )
        frames.append(frame)
        at = end
    return Frames(frames, at)


def _frame(line: bytes) -> Frame | None:
    body = line[_HEAD_BYTES:-1]
    if line != b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body):
        return None
    try:
        content = json.loads(body)
        return Frame(content["generation"], content["records"])
    except (KeyError, TypeError, ValueError):
        return None


def _is_half_written(line: bytes) -> bool:
    """The end is missing, or a block that the disk has not got reads as zeros."""
    return not line.endswith(b"\n") or b"\0" in line
