"""The events of a run, for whoever looks at it: while it runs, and after."""

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from holdfast.errors import ConfigError
from holdfast.observability.events import Event, WorkerStep
from holdfast.observability.log import index, operations
from holdfast.observability.log.files import EVENTS_FILE, NUM_WHOLE
from holdfast.observability.log.reading import event_of, told, told_event
from holdfast.observability.log.rows import Rows, is_step
from holdfast.observability.log.scan import IndexScan
from holdfast.observability.log.table import StepTable
from holdfast.observability.log.tail import Tail

_WORTH_KEEPING = 10_000  # lines that had to be read because the index did not have them


class RunLog:
    """Made by :meth:`open`: what there was then. ``follow`` brings what comes after that."""

    def __init__(self, newest: Path, found: index.Indexed, scan: IndexScan) -> None:
        self.run_dir = newest.parent
        self.rare: tuple[Event, ...] = tuple(filter(None, map(event_of, found.rare)))
        """All but WorkerStep and StepFinished, in order."""
        self.steps = StepTable.of_rows(found.rows, is_step(found.rows))
        self._newest, self._place, self._scan = newest, scan.place, scan
        first_whole = scan.place.number - NUM_WHOLE
        begin = int(np.searchsorted(found.rows["file"], first_whole))
        self._where = operations.where(found.rows[begin:])
        self._lock = threading.Lock()  # of what operations() adds

    @classmethod
    def open(cls, run_dir: Path, *, on_progress: Callable[[float], None] | None = None) -> "RunLog":
        """``on_progress`` hears how much of the files is read, from 0 to 1, if that takes long.

        ConfigError: there is no run, or its events cannot be read.
        """
        newest = check_run(Path(run_dir))
        found = index.load(newest)
        scan = IndexScan(newest, found.last)
        try:
            scan.run(on_progress=on_progress)
            scan.check_rest()
        finally:
            scan.close()
        rows, rare = scan.take()
        if scan.num_lines > _WORTH_KEEPING:
            _keep(newest, len(found.rows), rows, rare)
        return cls(newest, found.with_more(rows, rare), scan)

    @property
    def is_running(self) -> bool:
        """Some process is writing events."""
        return is_written(self.run_dir)

    def operations(self, first_step: int, last_step: int) -> list[WorkerStep]:
        """Of these steps, both included, as far as they are still kept: also of new ones."""
        with self._lock, told(self._newest):
            self._scan.run()
            self._scan.close()
            new, _ = self._scan.take()
            self._where = np.concatenate([self._where, operations.where(new)])
            return operations.find(self._newest, self._where, first_step, last_step)

    def follow(self, *, poll_s: float = 0.25) -> Iterator[Event | None]:
        """Events that came after this was opened, for ever; None: nothing new for ``poll_s``.

        Goes on when the writer has died, too: the run may be taken over, or resumed.
        """
        tail = Tail(self._newest, self._place)
        try:
            while True:
                for line in tail.lines():
                    if (event := told_event(tail, line)) is not None:
                        yield event
                time.sleep(poll_s)
                yield None
        except OSError as why:
            raise ConfigError(f"cannot read events from {tail.path}: {why}") from why
        finally:
            tail.close()


def check_run(run_dir: Path) -> Path:
    """Its newest file of events. ConfigError: there is none."""
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: no such directory; expected the directory of a run")
    newest = run_dir / EVENTS_FILE
    if not newest.is_file():
        raise ConfigError(f"{run_dir} holds no {EVENTS_FILE}: expected the directory of a run")
    return newest


def is_written(run_dir: Path) -> bool:
    """By some process of this machine."""
    with (run_dir / EVENTS_FILE).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _keep(newest: Path, num_known: int, rows: Rows, rare: list[bytes]) -> None:
    """For the next time. Where nothing may be written, or the run itself does, it is left."""
    files = index.IndexFiles(newest)
    with suppress(OSError, ValueError):
        if files.lock() and len(files.begin().rows) == num_known:
            files.append(rows, rare)
    files.close()
