"""A file of events that is large enough makes room for the next; older ones become small.

``events.jsonl`` becomes ``events-1.jsonl`` and so on. Of all but the newest few only the lines that
are no times of operations are kept, compressed.
"""

import fcntl
import gzip
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

from holdfast.observability.log.files import (
    BULK,
    EVENTS_FILE,
    NUM_WHOLE,
    event_files,
    older_file,
)

_NEXT_FILE = ".events.next"
_PEEK_S = 0.05  # a reader that asks whether somebody writes holds the lock for far less
_PEEKS = 6


class Rotation:
    """For the one process that writes; it holds a lock on the newest file."""

    def __init__(self, folder: Path, limit_bytes: int | None, *, aside: bool = True) -> None:
        """``limit_bytes``: of times of operations, over all files; None: no limit, and one file.

        ``aside``: old files are made small in a thread.
        """
        self.newest = folder / EVENTS_FILE
        self.most_bytes = None if limit_bytes is None else limit_bytes // (NUM_WHOLE + 1)
        self._shrink = self._shrink_aside if aside else shrink_all
        self._shrinking: threading.Thread | None = None

    def open(self) -> BinaryIO:
        """BlockingIOError: another process writes there."""
        for _ in range(_PEEKS - 1):
            try:
                return _locked(self.newest)
            except BlockingIOError:
                time.sleep(_PEEK_S)
        return _locked(self.newest)

    def is_torn(self) -> bool:
        """The last line has no end: the process that wrote it was killed, or the disk was full."""
        with self.newest.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read() not in (b"", b"\n")

    def next(self) -> BinaryIO:
        """The file to go on with. There is an ``events.jsonl``, and it is locked, at any moment."""
        number = event_files(self.newest)[-1].number
        fresh = self.newest.with_name(_NEXT_FILE)
        fresh.unlink(missing_ok=True)
        file = _locked(fresh)
        os.link(self.newest, older_file(self.newest.parent, number))
        fresh.replace(self.newest)
        self._shrink(self.newest)
        return file

    def _shrink_aside(self, newest: Path) -> None:
        is_busy = self._shrinking is not None and self._shrinking.is_alive()
        if is_busy or not _too_large(newest):
            return
        thread = threading.Thread(
            target=shrink_all, args=(newest,), name="compress events", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread to be had: with the next file
            return
        self._shrinking = thread


def shrink_all(newest: Path) -> None:
    """All that are old enough; one that could not be made small the last time is tried again."""
    tried: set[Path] = set()
    while left := [path for path in _too_large(newest) if path not in tried]:
        shrink(left[0])
        tried.add(left[0])


def _too_large(newest: Path) -> list[Path]:
    """With those whose small form is there already."""
    older = event_files(newest)[: -1 - NUM_WHOLE]
    paths = [older_file(newest.parent, each.number) for each in older]
    return [path for path in paths if path.exists()]


def shrink(path: Path) -> None:
    """The file is the old one or the new one, whatever happens."""
    small = path.with_name(f"{path.name}.gz")
    if small.exists():  # the writer ended in between
        path.unlink(missing_ok=True)
        return
    part = path.with_name(f".{small.name}.part")
    try:
        with path.open("rb") as before, part.open("wb") as after:
            with gzip.GzipFile("", "wb", fileobj=after, mtime=0) as packed:
                packed.writelines(line for line in before if not line.startswith(BULK))
            after.flush()
            os.fsync(after.fileno())
        part.replace(small)
        path.unlink()
    except OSError:  # the file stays as it was, or is ignored beside the small one
        part.unlink(missing_ok=True)


def _locked(path: Path) -> BinaryIO:
    file = path.open("ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file
