"""Standard output that never blocks: a reader that stops delays what is shown, not the training.

A terminal with Ctrl-S, a pager or a full pipe takes nothing for as long as it likes. A thread of
its own writes; what it cannot get rid of is dropped, and their number is shown later.
"""

import io
import os
import threading
import time
from contextlib import suppress
from typing import Any, TextIO

from holdfast.observability.text import count

MOST_BYTES = 1 << 20  # that wait to be written
_CHUNK_BYTES = 1 << 12  # at most so much is in the hands of the system and cannot be told apart
_AGAIN_S = 0.05  # a terminal that somebody has made non-blocking


class Screen:
    """A text stream over another one. Without a file descriptor below it there is no thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._writing = False
        self._broken = False  # nobody will ever read it
        self._num_dropped = 0  # lines, since the last one that was shown
        self._thread: threading.Thread | None = None
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError, io.UnsupportedOperation):
            self._descriptor = None

    def write(self, text: str) -> int:
        if self._descriptor is None:
            return self._stream.write(text)
        data = text.encode(self._stream.encoding or "utf-8", "replace")
        with self._changed:
            if self._broken:
                return len(text)
            if len(self._waiting) + len(data) > MOST_BYTES:
                self._num_dropped += max(1, text.count("\n"))
                return len(text)
            self._waiting += self._note_of_dropped() + data
            self._start()
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        if self._descriptor is None:
            self._stream.flush()

    @property
    def is_behind(self) -> bool:
        """Something is not written yet: a picture that replaces the last one may as well wait."""
        return bool(self._waiting) or self._writing

    def close(self, limit_s: float) -> None:
        """Wait until all is written, but not for ever. The stream below stays open."""
        deadline_s = time.monotonic() + limit_s
        with self._changed:
            if self._num_dropped and not self._broken:
                self._waiting += self._note_of_dropped()
                self._changed.notify_all()
            if self._waiting:
                self._start()
            while self.is_behind and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _note_of_dropped(self) -> bytes:
        num, self._num_dropped = self._num_dropped, 0
        note = f"({count(num, 'line')} not shown: the reader of this output was too slow)\n"
        return note.encode() if num else b""

    def _start(self) -> None:
        if self._thread is None:
            with suppress(OSError, ValueError):
                self._stream.flush()  # what was written before this was here
            thread = threading.Thread(target=self._run, name="screen", daemon=True)
            with suppress(RuntimeError):  # no thread to be had: perhaps with the next line
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                chunk = bytes(self._waiting[:_CHUNK_BYTES])
                self._writing = True
            written = self._written(chunk)
            with self._changed:
                self._writing = False
                del self._waiting[: len(self._waiting) if self._broken else written]
                self._changed.notify_all()

    def _written(self, chunk: bytes) -> int:
        assert self._descriptor is not None
        try:
            return os.write(self._descriptor, chunk)
        except BlockingIOError:
            time.sleep(_AGAIN_S)
            return 0
        except OSError:  # the reader is gone, or the terminal is
            self._broken = True
            return 0
