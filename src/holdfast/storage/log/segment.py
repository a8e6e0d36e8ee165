"""Files of the boundary log: segments, named by a number, each with frames of one worker.

Reads headers only and seeks over payloads. Whatever is damaged is skipped and remembered; what is
cut off at the end was being written when its process died. Knows nothing of torch.
"""

import json
import os
import struct
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.names import SEGMENT, WORKER
from holdfast.storage.log.frame import (
    FORMAT,
    FRAME_MAGIC,
    HEADER_BYTES,
    LogFrameHeader,
    decode_header,
)

_MAGIC = b"HFbndlog"
_HEAD = struct.Struct("<8sII")  # magic, format, bytes of the identity
_CRC = struct.Struct("<I")
_PREFIX, _SUFFIX = "segment-", ".log"
WINDOW_BYTES = 1 << 20  # read at once when looking for the next frame behind damage
_IDENTITY_LIMIT_BYTES = 4096


class NotOurs(Exception):
    """A segment that is not to be read; says why."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Whose log it is."""

    run: str
    worker: str


@dataclass
class Scan:
    """What a segment holds. ``end``: where a later scan may go on."""

    end: int
    frames: list[tuple[int, LogFrameHeader]] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)  # offsets


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{_PREFIX}{number:08d}{_SUFFIX}"


def segment_numbers(folder: Path) -> list[int]:
    """In order; none if there is no such folder."""
    try:
        found = [name for name in os.listdir(folder) if SEGMENT.fits(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) for name in found)


def encode_segment_header(identity: LogIdentity) -> bytes:
    text = json.dumps({"run": identity.run, "worker": identity.worker}).encode()
    body = _HEAD.pack(_MAGIC, FORMAT, len(text)) + text
    return body + _CRC.pack(zlib.crc32(body))


def read_segment_header(fd: int) -> tuple[LogIdentity, int]:
    """Whose it is, and where its frames begin. NotOurs if it cannot be read."""
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise NotOurs("cut off before its first frame")
    magic, version, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise NotOurs("no segment of a log")
    if version != FORMAT:
        raise NotOurs(f"format {version}, expected {FORMAT}")
    if length > _IDENTITY_LIMIT_BYTES:
        raise NotOurs("its header is damaged")
    rest = os.pread(fd, length + _CRC.size, _HEAD.size)
    if len(rest) < length + _CRC.size:
        raise NotOurs("cut off before its first frame")
    if zlib.crc32(head + rest[:length]) != _CRC.unpack_from(rest, length)[0]:
        raise NotOurs("its header is damaged")
    values = json.loads(rest[:length])
    return LogIdentity(values["run"], values["worker"]), _HEAD.size + len(rest)


def scan(fd: int, start: int) -> Scan:
    """All whole frames from ``start`` on. OSError if the disk cannot read them."""
    size, found = os.fstat(fd).st_size, Scan(start)
    while found.end + HEADER_BYTES <= size:
        header = decode_header(os.pread(fd, HEADER_BYTES, found.end))
        if header is None:
            found.damaged.append(found.end)
            found.end = _next_frame(fd, found.end + 1, size)
        elif found.end + header.frame_bytes > size:
            break
        else:
            found.frames.append((found.end, header))
            found.end += header.frame_bytes
    return found


def _next_frame(fd: int, start: int, size: int) -> int:
    """Where the next whole header is; the file's end if there is none."""
    at = start
    while at < size:
        window = os.pread(fd, WINDOW_BYTES + HEADER_BYTES, at)
        place = window.find(FRAME_MAGIC)
        while 0 <= place < WINDOW_BYTES:
            if decode_header(window[place : place + HEADER_BYTES]) is not None:
                return at + place
            place = window.find(FRAME_MAGIC, place + 1)
        at += WINDOW_BYTES
    return size


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def last_use(path: Path, run: str) -> int | None:
    """The newest checkpoint that needs the segment; None: it is not of this run."""
    with opened(path) as fd:
        try:
            identity, start = read_segment_header(fd)
        except NotOurs:
            return None
        if identity.run != run:
            return None
        frames = scan(fd, start).frames
    return max([header.name.last_use for _, header in frames], default=-1)


def trim_folder(folder: Path, run: str, before_step: int) -> int:
    """Remove what no replay from ``before_step`` needs, of a worker that does not write any more.

    Returns how many bytes that freed. Segments of other runs stay.
    """
    freed_bytes = 0
    for number in segment_numbers(folder):
        path = segment_path(folder, number)
        newest = last_use(path, run)
        if newest is not None and newest < before_step:
            freed_bytes += path.stat().st_size
            path.unlink()
    return freed_bytes


def tidy_root(root: Path, run: str, before_step: int, gone: Collection[str]) -> None:
    """Remove segments of other runs, and of workers that are ``gone`` what is needed no more."""
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if not WORKER.fits(folder.name):
            continue
        with suppress(OSError):  # somebody else tidies too, or it only takes room
            _remove_others(folder, run)
            if folder.name in gone:
                trim_folder(folder, run, before_step)


def _remove_others(folder: Path, run: str) -> None:
    for number in segment_numbers(folder):
        path = segment_path(folder, number)
        with opened(path) as fd:
            try:
                is_ours = read_segment_header(fd)[0].run == run
            except NotOurs:
                continue  # its header may be on its way
        if not is_ours:
            path.unlink()
