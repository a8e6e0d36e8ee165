"""Follows the logs of another machine: what is appended to them there is appended to a copy here.

A copy is a moment behind. Whatever goes wrong costs the copy and nothing else. Bytes go to the
place that they had, so two who copy the same log write the same. Who reads a copy looks at its
checksums; knows nothing of frames.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.errors import TransferFailed
from holdfast.files.courier import Courier
from holdfast.storage.log.far_logs import FarLogs, FarSegment
from holdfast.storage.log.folder import write_all
from holdfast.storage.log.segment import NotOurs, segment_path

OWN_LOGS = "log"  # as a machine names the root of its own logs: copies are not copied again
COPY_LIMIT_S = 5.0  # of one piece
FREE_SHARE = 20  # one in so many bytes of the disk stays free: the machine's own log goes first
_PIECE_BYTES = 1 << 20
_LEAST_PAUSE_S = 0.1
_MOST_PAUSE_S = 2.0  # when nothing comes
_LONG_S = 3600.0

IsStopped = Callable[[], bool]


class MachineCopy:
    """Of the logs of one machine, asked of any of ``couriers``. For one thread."""

    def __init__(
        self, machine: str, couriers: Sequence[Courier], folder: Callable[[], Path]
    ) -> None:
        self._machine, self._couriers, self._folder = machine, couriers, folder
        self._logs: FarLogs | None = None
        self._whole: set[FarSegment] = set()  # a later one has begun, and it was read to its end

    def __str__(self) -> str:
        return f"machine {self._machine}"

    def pull(self, is_stopped: IsStopped) -> int:
        """How many bytes have come. TransferFailed: nobody there answers; OSError: of this disk."""
        if self._logs is None:
            self._logs, self._whole = FarLogs(self._machine, self._couriers), set()
        found = [one for one in self._logs.listed() if one.root == OWN_LOGS]
        newest = {one.worker: one.number for one in sorted(found, key=lambda one: one.number)}
        num_bytes = 0
        for segment in found:
            if segment in self._whole:
                continue
            num_bytes += self._append(segment, is_stopped)
            if is_stopped():
                break
            if segment.number < newest[segment.worker]:
                self._whole.add(segment)
        self._whole &= set(found)
        return num_bytes

    def _append(self, segment: FarSegment, is_stopped: IsStopped) -> int:
        path = segment_path(self._folder() / segment.worker, segment.number)
        start = at = path.stat().st_size if path.exists() else 0
        try:
            for piece in _pieces(segment, at):
                if is_stopped():
                    break
                _write(path, piece, at)
                at += len(piece)
        except TransferFailed as why:
            if not why.refused:  # else it was trimmed since
                raise
        return at - start

    def close(self) -> None:
        """What comes next begins with a new connection."""
        if self._logs is not None:
            self._logs.close()
            self._logs = None


def _pieces(segment: FarSegment, at: int) -> Iterator[bytes]:
    while True:
        with segment.view(at, _PIECE_BYTES) as view:
            piece = view.read(_PIECE_BYTES, at)
        if piece:
            yield piece
        if len(piece) < _PIECE_BYTES:
            return
        at += len(piece)


def _write(path: Path, piece: bytes, at: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk = os.statvfs(path.parent)
    if disk.f_bavail * FREE_SHARE < disk.f_blocks:
        raise OSError(errno.ENOSPC, f"less than 1/{FREE_SHARE} of the disk is free", str(path))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_size < at:  # a hole would hide what is behind it
            raise OSError(errno.ENOENT, "it was trimmed meanwhile", str(path))
        os.lseek(fd, at, os.SEEK_SET)
        write_all(fd, [piece])
    finally:
        os.close(fd)


class LogCopier:
    """Has a thread of its own from the first ``follow`` on. ``warn`` is told once of a trouble."""

    def __init__(self, warn: Callable[[str], None], retry_s: float = 2.0) -> None:
        self._warn, self._retry_s = warn, retry_s
        self._copy: MachineCopy | None = None
        self._is_closing = False
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-copier", daemon=True)

    def follow(self, copy: MachineCopy | None) -> None:
        """From now on this one, if any, and no other. By any thread."""
        self._copy = copy
        self._changed.set()
        if copy is not None and self._thread.ident is None:
            with suppress(RuntimeError):  # no thread to be had: there is no copy then
                self._thread.start()

    def close(self) -> None:
        """Repeatable. It waits for one piece at most."""
        self._is_closing = True
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(COPY_LIMIT_S + 1.0)

    # --- the thread ---

    def _run(self) -> None:
        while True:
            self._changed.clear()  # first: what is set after it is looked at below
            if self._is_closing:
                return
            copy = self._copy
            if copy is None:
                self._changed.wait(_LONG_S)
            else:
                self._keep_up(copy)
                copy.close()

    def _keep_up(self, copy: MachineCopy) -> None:
        """Until there is another one."""
        pause_s, num_failed = _LEAST_PAUSE_S, 0
        while not self._changed.is_set():
            try:
                num_bytes = copy.pull(self._changed.is_set)
                num_failed = 0
                pause_s = _LEAST_PAUSE_S if num_bytes else min(2 * pause_s, _MOST_PAUSE_S)
            except (OSError, NotOurs, TransferFailed) as why:
                copy.close()
                num_failed += 1
                pause_s = self._retry_s
                if num_failed == 2:  # the first time it may be that the run is about to end
                    reason = why.strerror if isinstance(why, OSError) and why.strerror else why
                    self._warn(f"the logs of {copy} are not copied: {reason}; it is tried again")
            self._changed.wait(pause_s)
