"""Serves the logs of this machine to whoever replays elsewhere: those of dead workers, too.

    segments                                  which there are
    scan   a segment, from a byte on          headers of its whole frames, found here
    read   a segment, some bytes of it

What is damaged is sent as it is: who reads it looks at checksums.
"""

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from holdfast import names
from holdfast.errors import ProtocolError
from holdfast.files.file_link import PIECE_BYTES, FileLink, FileWords
from holdfast.storage.log.frame import HEADER_BYTES, decode_header, encode_header
from holdfast.storage.log.segment import NotOurs, Scan, opened, segment_numbers, segment_path
from holdfast.storage.log.sources import scan_for

MOST_BYTES = 1 << 46
MOST_NUMBER = 10**12 - 1  # of a segment
NOT_OURS = "not_ours"
_COUNTS = struct.Struct("<QQQ")  # end, frames, damaged places
_OFFSET = struct.Struct("<Q")

Roots = Callable[[], Mapping[str, Path]]


class LogShelf:
    """``roots``: by name; one folder a worker is in each."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def answer(self, ask: FileWords, link: FileLink) -> None:
        """ProtocolError: it may not be asked for; OSError: it cannot be done."""
        match ask.get("do"):
            case "segments":
                _send(link, json.dumps(self._segments()).encode())
            case "scan":
                self._scan(ask, link)
            case "read":
                self._read(ask, link)
            case other:
                raise ProtocolError(f"do={other!r}: expected segments, scan or read")

    def _segments(self) -> list[tuple[str, str, int]]:
        found = []
        for name, root in self._roots().items():
            for folder in sorted(root.iterdir()) if root.is_dir() else []:
                if names.WORKER.fits(folder.name):
                    found += [(name, folder.name, number) for number in segment_numbers(folder)]
        return found

    def _scan(self, ask: FileWords, link: FileLink) -> None:
        start = names.check_number(ask.get("start"), "start", 0, MOST_BYTES)
        run = names.RUN_ID.check(ask.get("run"), "run")
        try:
            with opened(self._path(ask)) as fd:
                found = scan_for(fd, start, run)
        except NotOurs as why:
            link.say({NOT_OURS: str(why)})
            return
        _send(link, encode_scan(found))

    def _read(self, ask: FileWords, link: FileLink) -> None:
        at = names.check_number(ask.get("at"), "at", 0, MOST_BYTES)
        wanted = names.check_number(ask.get("size"), "size", 0, MOST_BYTES)
        with opened(self._path(ask)) as fd:
            size = max(0, min(wanted, os.fstat(fd).st_size - at))
            link.say({"size": size})
            link.send_pieces(_pieces(fd, at, size))

    def _path(self, ask: FileWords) -> Path:
        root = self._roots().get(str(ask.get("root")))
        if root is None:
            raise ProtocolError(f"root={ask.get('root')!r}: there is none of this name")
        worker = names.WORKER.check(ask.get("worker"), "worker")
        number = names.check_number(ask.get("number"), "number", 0, MOST_NUMBER)
        return segment_path(root / worker, number)


def _pieces(fd: int, at: int, size: int) -> Iterator[bytes]:
    while size:
        piece = os.pread(fd, min(size, PIECE_BYTES), at)
        if not piece:
            raise ProtocolError("the segment has become shorter")
        at, size = at + len(piece), size - len(piece)
        yield piece


def _send(link: FileLink, data: bytes) -> None:
    link.say({"size": len(data)})
    view = memoryview(data)
    link.send_pieces(view[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))


# --- what a scan has found ---


def encode_scan(found: Scan) -> bytes:
    parts = [_COUNTS.pack(found.end, len(found.frames), len(found.damaged))]
    parts += [_OFFSET.pack(offset) + encode_header(header) for offset, header in found.frames]
    parts += [_OFFSET.pack(offset) for offset in found.damaged]
    return b"".join(parts)


def decode_scan(data: bytes) -> Scan:
    """ProtocolError if it is none."""
    try:
        end, num_frames, num_damaged = _COUNTS.unpack_from(data)
        at, row = _COUNTS.size, _OFFSET.size + HEADER_BYTES
        if len(data) != at + num_frames * row + num_damaged * _OFFSET.size:
            raise ProtocolError(f"a scan of {len(data)} bytes for {num_frames} frames")
        found = Scan(end)
        for _ in range(num_frames):
            header = decode_header(data[at + _OFFSET.size : at + row])
            if header is None:
                raise ProtocolError("a scan with a header that is none")
            found.frames.append((_OFFSET.unpack_from(data, at)[0], header))
            at += row
        rest = range(at, len(data), _OFFSET.size)
        found.damaged = [_OFFSET.unpack_from(data, place)[0] for place in rest]
    except struct.error as why:
        raise ProtocolError(f"no scan of a segment: {why}") from why
    return found
