"""Keeps the index of a run that is under way, from a thread that reads what was written.

The writer of events does not know of it. If it fails, it is left as it is: readers make it whole.
"""

import threading
from contextlib import suppress
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.observability.log.index import IndexFiles, has_events
from holdfast.observability.log.scan import IndexScan

_PAUSE_S = 1.0  # what readers catch up with themselves
_AT_ONCE = 2000  # lines between two pauses: an old log is indexed beside the work, not before it
_BREATH_S = 0.05
_CLOSE_LIMIT_S = 5.0


class Indexer:
    def __init__(self, newest: Path) -> None:
        self._files, self._newest = IndexFiles(newest), newest
        self._scan: IndexScan | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="index events", daemon=True)

    def start(self) -> None:
        with suppress(RuntimeError):  # no thread to be had: readers make the index
            self._thread.start()

    def close(self) -> None:
        """The index has all events then, unless there are far too many."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_LIMIT_S)

    def _run(self) -> None:
        try:
            while not self._closing.wait(self._pause_s()):
                self._go_on()
            self._go_on(most_lines=20 * _AT_ONCE)
        except (OSError, ValueError, ConfigError):
            pass  # a full disk, or events of somebody else
        finally:
            self._files.close()
            if self._scan is not None:
                self._scan.close()

    def _pause_s(self) -> float:
        return _PAUSE_S if self._scan is None or self._scan.is_at_end else _BREATH_S

    def _go_on(self, most_lines: int = _AT_ONCE) -> None:
        if self._scan is None:
            if not has_events(self._newest) or not self._files.lock():
                return  # for now
            self._scan = IndexScan(self._newest, self._files.begin().last)
        self._scan.run(most_lines)
        self._files.append(*self._scan.take())
