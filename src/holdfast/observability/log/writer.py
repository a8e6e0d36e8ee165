"""Writes a run's events. Emitting never raises, and waits for no disk.

A thread writes. While the disk keeps up, an event is in its file when ``emit`` returns, but for the
times of operations, which follow within moments: a crash of the process loses nothing else. A disk
that does not keep up is waited for no more, until it does; what does not fit into the queue is
dropped and counted.
"""

import math
import threading
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO

from holdfast.observability.events import Event, WorkerStep, encode_event
from holdfast.observability.log.indexer import Indexer
from holdfast.observability.log.rotation import Rotation

PATIENCE_S = 0.1  # for which a disk is waited for, once
_PAUSES_S = (10.0, 640.0)  # for which it is not after that: at first, and at most
QUEUE_BYTES = 32 << 20
CLOSE_LIMIT_S = 10.0  # for what is left in the queue


class EventWriter:
    """Each event is one line, written at once and whole."""

    def __init__(
        self,
        file: BinaryIO,
        rotation: Rotation | None = None,
        *,
        patience_s: float = PATIENCE_S,
        queue_bytes: int = QUEUE_BYTES,
        close_limit_s: float = CLOSE_LIMIT_S,
        indexer: Indexer | None = None,
    ) -> None:
        """``file`` is not buffered: what failed to be written is not tried again."""
        self._file, self._rotation, self._indexer = file, rotation, indexer
        self.patience_s, self._most_bytes = patience_s, queue_bytes
        self._close_limit_s = close_limit_s
        self._lock = threading.Lock()
        self._more, self._done = threading.Condition(self._lock), threading.Condition(self._lock)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0  # those that are being written included
        self._num_taken = self._num_done = 0
        self._closing = self._is_closed = False
        self._hurried_until_s = -math.inf  # the disk is not waited for
        self._pause_s = _PAUSES_S[0]
        self._is_torn = False  # the last line has no end
        self._thread: threading.Thread | None = None
        self.num_dropped = 0  # reported at the end of the run

    @classmethod
    def open(cls, path: Path) -> "EventWriter":
        """A file alone: without a limit, a lock or an index."""
        return cls(path.open("ab", buffering=0))

    @classmethod
    def of_run(cls, run_dir: Path, limit_bytes: int | None) -> "EventWriter":
        """BlockingIOError: another process writes there."""
        rotation = Rotation(run_dir, limit_bytes)
        writer = cls(rotation.open(), rotation, indexer=Indexer(rotation.newest))
        writer._is_torn = rotation.is_torn()
        return writer

    def emit(self, event: Event) -> None:
        is_bulk = isinstance(event, WorkerStep)
        try:
            line = encode_event(event).encode() + b"\n"
        except (ValueError, TypeError):  # a value has no form in JSON
            line = b""
        with self._lock:
            room = self._most_bytes // 2 if is_bulk else self._most_bytes
            if not line or self._closing or self._queued_bytes + len(line) > room:
                self.num_dropped += 1
                return
            self._queue.append(line)
            self._queued_bytes += len(line)
            self._num_taken += 1
            self._wake()
            if not is_bulk:
                self._wait()

    def _wake(self) -> None:
        if self._thread is None and not self._start():  # no thread to be had: it is tried again
            self._write_all([self._queue.popleft() for _ in range(len(self._queue))])
        self._more.notify()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="write events", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        if self._indexer is not None:
            self._indexer.start()
        return True

    def _wait(self) -> None:
        """As long as the disk keeps up."""
        if time.monotonic() < self._hurried_until_s:
            return
        number = self._num_taken
        if not self._done.wait_for(lambda: self._num_done >= number, self.patience_s):
            self._hurried_until_s = math.inf  # until it has written what it has begun to

    def _run(self) -> None:
        while True:
            with self._lock:
                self._more.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    break
                lines = list(self._queue)
                self._queue.clear()
            began_s = time.monotonic()
            num_dropped = sum(not self._write(line) for line in lines)
            with self._lock:
                self._settle(lines, num_dropped, time.monotonic() - began_s)
        self._file.close()

    def _write_all(self, lines: list[bytes]) -> None:
        self._settle(lines, sum(not self._write(line) for line in lines), 0.0)

    def _settle(self, lines: list[bytes], num_dropped: int, took_s: float) -> None:
        self._queued_bytes -= sum(map(len, lines))
        self._num_done += len(lines)
        self.num_dropped += num_dropped
        if self._hurried_until_s == math.inf or took_s > self.patience_s:
            self._hurried_until_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _PAUSES_S[1])
        elif time.monotonic() > self._hurried_until_s + self._pause_s:
            self._pause_s = _PAUSES_S[0]
        self._done.notify_all()

    def _write(self, line: bytes) -> bool:
        """False: the disk is full, or the file is closed."""
        if self._is_torn:
            line = b"\n" + line
        try:
            num_bytes = self._file.write(line)
        except (OSError, ValueError):
            return False
        is_whole = num_bytes == len(line)
        self._is_torn = not is_whole and (self._is_torn or bool(num_bytes))
        self._rotate()
        return is_whole

    def _rotate(self) -> None:
        rotation = self._rotation
        if rotation is None or rotation.most_bytes is None:
            return
        try:
            if self._file.tell() > rotation.most_bytes:
                before, self._file = self._file, rotation.next()
                before.close()
                self._is_torn = False
        except (OSError, ValueError):
            self._rotation = None  # one large file is better than none

    def close(self) -> None:
        """All that can be written is, within a limit."""
        with self._lock:
            if self._is_closed:
                return
            self._closing = self._is_closed = True
            self._more.notify()
            thread = self._thread
        if thread is None:
            self._file.close()
        else:
            thread.join(self._close_limit_s)
            with self._lock:  # of a thread that is stuck
                self.num_dropped += self._num_taken - self._num_done
        if self._indexer is not None:
            self._indexer.close()
