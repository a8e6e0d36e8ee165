"""Writes a worker's boundary log, from a thread of its own, while the worker has nothing to do.

Handing over a frame costs an append to a queue. Trouble with the disk never reaches the training:
the log stops, says why, and begins again after the next checkpoint. What is logged, and what a
gap means, is decided elsewhere.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from holdfast.storage.log.folder import LogFolder
from holdfast.storage.log.frame import Flag, FrameKind, FrameName
from holdfast.storage.log.segment import LogIdentity
from holdfast.storage.log.tensors import encode_frame

MAX_AGE_S = 0.2  # a frame that has waited this long is written whatever the worker does
CLOSE_LIMIT_S = 10.0

OnState = Callable[[bool, int, str], None]  # is logging now, step, reason in one line


class _Queued(NamedTuple):
    """A frame to be written; without a name: the next one begins a new segment."""

    name: FrameName | None
    flags: Flag
    tensors: Sequence[Tensor]
    requires_grad: Sequence[bool]
    num_bytes: int
    at_s: float


def _queued(name: FrameName, tensors: Sequence[Tensor], flags: Flag) -> _Queued:
    num_bytes = sum([tensor.nbytes for tensor in tensors])
    requires_grad = [tensor.requires_grad for tensor in tensors]
    return _Queued(name, flags, tensors, requires_grad, num_bytes, time.monotonic())


class _Waits:
    """Cheaper than a generator: it is entered before every operation."""

    def __init__(self, writer: "LogWriter") -> None:
        self._writer = writer

    def __enter__(self) -> None:
        self._writer._set_idle(True)

    def __exit__(self, *_: object) -> None:
        self._writer._set_idle(False)


class LogWriter:
    """``on_state`` is called from the writing thread, or from the one that finds the trouble.

    ``limit_bytes``: most that the log may take on disk, in each of the two folders; 0: no limit.
    """

    def __init__(
        self,
        folder: Path | Callable[[], Path],
        mirror: Path | None,
        identity: LogIdentity,
        *,
        limit_bytes: int,
        queue_bytes: int,
        on_state: OnState,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        self.limit_bytes, self.queue_bytes = limit_bytes, queue_bytes
        self.num_bytes = 0  # written in all; a copy in the mirror does not count
        self._on_state, self._max_age_s = on_state, max_age_s
        places = [folder] if mirror is None else [folder, mirror]
        self._folders = [LogFolder(place, identity) for place in places]
        self._told: set[str] = set()  # troubles with one folder of two
        self._is_prepared = False
        self._sound = list(self._folders)  # those that can be written to, as far as is known
        self._changed = threading.Condition()
        self._queue: deque[_Queued] = deque()
        self._queued_bytes, self._writing_bytes = 0, 0
        self._is_writing = self._is_idle = self._is_closing = False
        self._num_flushing = 0
        self._stopped = self._is_silent = False
        self._begin_again_at: int | None = None  # step; None: after a trim only
        self._newest_step = -1  # that has begun
        self._trim_before, self._trimmed_before = -1, -1  # wanted, done
        self._said_again: _Queued | None = None  # to be written before that
        self._idle = _Waits(self)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        with suppress(RuntimeError):  # no thread to be had: it is tried again at every step
            self._thread.start()

    def _start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as why:
            self._stop(max(0, self._newest_step), f"{self._folders[0]}: {why}")

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def num_queued(self) -> int:
        """Frames whose memory is held until they are written."""
        return len(self._queue)

    # --- from the worker ---

    def append(
        self,
        kind: FrameKind,
        stage: int,
        step: int,
        attempt: int,
        microbatch: int,
        tensors: Sequence[Tensor],
        flags: Flag = Flag.NONE,
    ) -> None:
        """Never waits for the disk. The tensors must not be changed any more."""
        if self._stopped:
            return
        queued = _queued(FrameName(kind, stage, step, attempt, microbatch), tensors, flags)
        with self._changed:
            if self._stopped or self._is_closing:
                return
            self._queue.append(queued)
            self._queued_bytes += queued.num_bytes
            waiting_bytes = self._queued_bytes + self._writing_bytes
            if 4 * waiting_bytes > self.queue_bytes:
                self._changed.notify_all()
        if waiting_bytes > self.queue_bytes:
            self._stop(step, f"{self._folders[0]}: the disk is too slow for the log")

    def begin_step(self, step: int, *, new_segment: bool = False) -> None:
        """``new_segment``: a checkpoint may fall here; what was before will be of no use then."""
        if self._thread.ident is None:
            self._start()
        with self._changed:
            self._newest_step = max(self._newest_step, step)
            again = self._begin_again_at is not None and step >= self._begin_again_at
            if again:
                self._stopped, self._begin_again_at = False, None
            if new_segment and not self._stopped:
                self._queue.append(_Queued(None, Flag.NONE, (), (), 0, time.monotonic()))
        if again:
            self._on_state(True, step, "it begins again, and counts from the next checkpoint on")

    def waits(self) -> _Waits:
        """As long as the worker waits for others, the thread may write."""
        return self._idle

    def _set_idle(self, is_idle: bool) -> None:
        self._is_idle = is_idle
        if is_idle and self._queue:
            with self._changed:
                self._changed.notify_all()

    def trim(
        self,
        before_step: int,
        name: FrameName | None = None,
        tensors: Sequence[Tensor] = (),
        flags: Flag = Flag.NONE,
    ) -> None:
        """A checkpoint of this step is whole. From any thread; the files go in a moment.

        ``name``: what is written once more before they go. A replay may be reading.
        """
        with self._changed:
            if before_step > self._trim_before:
                self._trim_before = before_step
                self._said_again = None if name is None else _queued(name, tensors, flags)
            self._changed.notify_all()

    def silence(self) -> None:
        """Nothing is to be logged any more: what waits is dropped, and nobody is told."""
        with self._changed:
            self._stopped = self._is_silent = True
            self._begin_again_at = None
            self._drop_queue()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written, whoever computes meanwhile; False if it is not."""
        with self._changed:
            self._num_flushing += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(self._is_done, timeout_s)
                return self._is_done() and (self._is_silent or not self._stopped)
            finally:
                self._num_flushing -= 1

    def _is_done(self) -> bool:
        busy = self._queue or self._is_writing or self._trim_before > self._trimmed_before
        return not busy or not self.is_alive

    def close(self, timeout_s: float = CLOSE_LIMIT_S) -> None:
        """Write what is left, for at most ``timeout_s``; 0: drop it. Repeatable."""
        with self._changed:
            self._is_closing = True
            if timeout_s <= 0:
                self._drop_queue()
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s if timeout_s > 0 else CLOSE_LIMIT_S)

    # --- the thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                while (work := self._next()) is None:
                    self._changed.wait(self._pause_s())
            if not self._guarded(work if self._is_prepared else partial(self._prepared, work)):
                return

    def _guarded(self, work: Callable[[], bool]) -> bool:
        """Whatever goes wrong here is no reason to end a training."""
        try:
            return work()
        except Exception as why:
            self._stop(self._newest_step, f"{type(why).__name__}: {why}")
            return True
        finally:
            with self._changed:
                self._is_writing, self._writing_bytes = False, 0
                self._changed.notify_all()

    def _prepared(self, work: Callable[[], bool]) -> bool:
        """Not before there is something to do: where the log is may not be known until then."""
        self._is_prepared = True
        for folder in self._folders:
            try:
                folder.prepare()
            except OSError as why:
                reason = f"{folder}: {why.strerror or why}"
                self._lose(folder, max(0, self._newest_step), reason)
        return work()

    def _next(self) -> Callable[[], bool] | None:
        """What to do now, if anything. Called with the lock."""
        if self._trim_before > self._trimmed_before:
            return self._trim
        if self._queue and self._may_write():
            queued = self._queue.popleft()
            self._queued_bytes -= queued.num_bytes
            self._is_writing, self._writing_bytes = True, queued.num_bytes
            return lambda: self._write(queued)
        return self._end if self._is_closing and not self._queue else None

    def _may_write(self) -> bool:
        hurry = self._is_idle or self._is_closing or self._num_flushing > 0
        much = 4 * self._queued_bytes > self.queue_bytes
        return hurry or much or time.monotonic() - self._queue[0].at_s >= self._max_age_s

    def _pause_s(self) -> float:
        """Until the oldest frame is too old; none that comes meanwhile can be older."""
        if not self._queue:
            return self._max_age_s
        return max(0.0, self._queue[0].at_s + self._max_age_s - time.monotonic())

    def _write(self, queued: _Queued, *, may_exceed: bool = False) -> bool:
        name, flags, tensors, requires_grad = queued[:4]
        if name is None:
            self._end_segments()
            return True
        frame = encode_frame(name, flags, tensors, requires_grad)
        num_bytes = sum(map(len, frame))
        taken = max([folder.num_bytes for folder in self._sound], default=0)
        if self.limit_bytes and taken + num_bytes > self.limit_bytes and not may_exceed:
            self._stop(name.step, f"the log reached its limit of {self.limit_bytes:,} bytes")
            return True
        for folder in list(self._sound):
            try:
                folder.write(frame, name.last_use)
            except OSError as why:
                self._lose(folder, name.step, f"{folder}: {why.strerror or why}")
        self.num_bytes += num_bytes if self._sound else 0
        return True

    def _lose(self, folder: LogFolder, step: int, reason: str) -> None:
        """It goes on in the other folder, if there is one."""
        self._sound.remove(folder)
        if self._sound:
            if reason not in self._told:  # it is tried again after each checkpoint
                self._on_state(True, step, f"{reason}; the log goes on in {self._sound[0]}")
            self._told.add(reason)
        else:
            self._stop(step, reason)

    def _trim(self) -> bool:
        with self._changed:
            before_step, said_again = self._trim_before, self._said_again
        try:
            if said_again is not None and not self._stopped:
                self._end_segments()  # it must not keep what was before
                self._write(said_again, may_exceed=True)  # room is made for it at once
            for folder in self._folders:
                with suppress(OSError):  # then it keeps its files, and the budget shows them
                    folder.trim(before_step)
        finally:  # it is not tried again
            self._sound = list(self._folders)
            with self._changed:
                self._drop_queue(before_step)
                self._trimmed_before = before_step
                if self._stopped and not self._is_silent:
                    self._begin_again_at = self._newest_step + 1
        return True

    def _end(self) -> bool:
        self._end_segments()
        return False

    def _end_segments(self) -> None:
        for folder in self._folders:
            folder.end_segment()

    # --- either ---

    def _stop(self, step: int, reason: str) -> None:
        """No part of a step that has a gap is of use: drop all that waits."""
        with self._changed:
            if self._stopped:
                return
            self._stopped, self._begin_again_at = True, None
            self._drop_queue()
            self._changed.notify_all()
        self._on_state(False, step, reason)

    def _drop_queue(self, before_step: int | None = None) -> None:
        """All of it, or what no replay from ``before_step`` needs. Called with the lock."""
        if before_step is None:
            self._queue.clear()
        else:
            kept = [one for one in self._queue if not one.name or one.name.last_use >= before_step]
            self._queue = deque(kept)
        self._queued_bytes = sum(queued.num_bytes for queued in self._queue)
