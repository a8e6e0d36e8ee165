"""The files that hold a run's events: the newest, and older ones that lose their bulk in time.

``events.jsonl`` is written; when it is large enough it becomes ``events-1.jsonl`` and so on. Of
all but the newest few only the lines that are not bulk are kept. Knows no event but by its name.
"""

import fcntl
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

EVENTS_FILE = "events.jsonl"  # inside the directory of a run
_OLDER = re.compile(r"events-([1-9][0-9]{0,8})\.jsonl")
_NEXT_FILE = ".events.next"
_BULK = b'{"event": "WorkerStep"'  # times of all operations of a worker in a step
NUM_WHOLE = 3  # older files that keep their bulk


def all_files(newest: Path) -> list[Path]:
    """In the order in which they were written; of a file of another name only itself."""
    if newest.name != EVENTS_FILE or not newest.parent.is_dir():
        return [newest]
    found = {int(name[1]): one for one in newest.parent.iterdir() if (name := _number(one))}
    return [*(found[number] for number in sorted(found)), newest]


def _number(path: Path) -> re.Match[str] | None:
    return _OLDER.fullmatch(path.name)


class Rotation:
    """For the one process that writes; it holds a lock on the newest file."""

    def __init__(self, folder: Path, limit_bytes: int | None, *, aside: bool = True) -> None:
        """``limit_bytes``: of the bulk, over all files; None: no limit, and one file.

        ``aside``: the bulk of old files is dropped in a thread.
        """
        self._folder = folder
        self.most_bytes = None if limit_bytes is None else limit_bytes // (NUM_WHOLE + 1)
        self._compact: Callable[[Path], None] = self._compact_aside if aside else compact
        self._to_compact: list[Path] = []

    def open(self) -> BinaryIO:
        """BlockingIOError: another process writes there."""
        return _locked(self._folder / EVENTS_FILE)

    def next(self) -> BinaryIO:
        """The file to go on with. There is an ``events.jsonl``, and it is locked, at any moment."""
        newest = self._folder / EVENTS_FILE
        older = all_files(newest)[:-1]
        last = _number(older[-1]) if older else None
        number = int(last[1]) + 1 if last else 1
        fresh = self._folder / _NEXT_FILE
        fresh.unlink(missing_ok=True)
        file = _locked(fresh)
        os.link(newest, self._folder / f"events-{number}.jsonl")
        fresh.replace(newest)
        if number > NUM_WHOLE:
            self._compact(self._folder / f"events-{number - NUM_WHOLE}.jsonl")
        return file

    def _compact_aside(self, path: Path) -> None:
        self._to_compact.append(path)
        paths = tuple(self._to_compact)
        try:
            threading.Thread(
                target=lambda: list(map(compact, paths)), name="compact events", daemon=True
            ).start()
        except RuntimeError:  # no thread to be had: with the next file
            return
        self._to_compact.clear()


def compact(path: Path) -> None:
    """Drop the bulk. The file is the old one or the new one, whatever happens."""
    part = path.with_name(f".{path.name}.part")
    try:
        with path.open("rb") as before, part.open("wb") as after:
            after.writelines(line for line in before if not line.startswith(_BULK))
        part.replace(path)
    except OSError:  # it is tried no more: the file stays as it was
        part.unlink(missing_ok=True)


def _locked(path: Path) -> BinaryIO:
    file = path.open("ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file
