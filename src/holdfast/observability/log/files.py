"""The files that hold a run's events: ``events.jsonl``, and before it older ones with numbers.

An older one may be compressed, and may have lost the times of operations. Knows names and order.
"""

import gzip
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

EVENTS_FILE = "events.jsonl"  # inside the directory of a run; the one that is written
BULK = b'{"event": "WorkerStep"'  # times of all operations of a worker in a step
NUM_WHOLE = 3  # older files that keep times of operations
_OLDER = re.compile(r"events-([1-9][0-9]{0,8})\.jsonl(\.gz)?")


@dataclass(frozen=True)
class EventFile:
    number: int  # from 1 on, in the order in which they were written; the newest has the highest
    path: Path

    @property
    def is_compressed(self) -> bool:
        """Then the times of operations are gone, too."""
        return self.path.suffix == ".gz"

    @property
    def num_bytes(self) -> int:
        """On disk; 0: it is not there any more."""
        with suppress(OSError):
            return self.path.stat().st_size
        return 0

    def open(self) -> BinaryIO:
        """What was written. OSError: among others that it has just been compressed."""
        if self.is_compressed:
            return cast(BinaryIO, gzip.open(self.path, "rb"))
        return self.path.open("rb")


def older_file(folder: Path, number: int) -> Path:
    return folder / f"events-{number}.jsonl"


def event_files(newest: Path) -> list[EventFile]:
    """In the order in which they were written; of a file of another name only itself."""
    if newest.name != EVENTS_FILE or not newest.parent.is_dir():
        return [EventFile(1, newest)]
    older: dict[int, Path] = {}
    for name in sorted(os.listdir(newest.parent)):  # a compressed one after the one it was made of
        if match := _OLDER.fullmatch(name):
            older[int(match[1])] = newest.parent / name
    files = [EventFile(number, older[number]) for number in sorted(older)]
    last = files[-1] if files else None
    if last is not None and _is_same(last.path, newest):  # it is about to be replaced
        return [*files[:-1], EventFile(last.number, newest)]
    return [*files, EventFile(last.number + 1 if last else 1, newest)]


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
