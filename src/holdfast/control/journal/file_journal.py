"""A journal in the run directory, for a coordinator whose successor has that directory too.

A lock says who leads: it ends with the process, so a lease is not needed. On a file system where
locks do not hold, the generation in the directory and in each line still sorts writers out.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.auth.secret import last_generation, write_generation
from holdfast.control.journal.base import APPEND_LIMIT_S, Claim, JournalRecord
from holdfast.control.journal.file_lock import FileLock
from holdfast.control.journal.frames import frame_bytes, read_frames
from holdfast.errors import Deposed, JournalAway, JournalDamaged

JOURNAL_FILE = "journal"  # inside the directory of a run
LOCK_FILE = "journal.lock"


class FileJournal:
    def __init__(self, run_dir: Path, name: str) -> None:
        """``name``: of this process, for those who find that it leads."""
        self._run_dir, self._name = run_dir, name
        self._path = run_dir / JOURNAL_FILE
        self._lock: FileLock | None = None
        self._descriptor = -1
        self._generation = 0
        self._num_bytes = 0  # that are flushed
        self._must_rewrite = False  # an append was cut short: nobody knows what the disk has got

    def claim(self, *, above: int = 0, limit_s: float = APPEND_LIMIT_S) -> Claim:
        """Limits cannot be kept: nothing interrupts a disk."""
        self.close()
        with self._away_if_unwritable():
            lock = FileLock(self._run_dir / LOCK_FILE, generation=last_generation(self._run_dir))
            try:
                return self._lead(lock, above)
            except BaseException:
                lock.close(in_good_order=False)
                raise

    def _lead(self, lock: FileLock, above: int) -> Claim:
        data = self._data()
        found = read_frames(data, str(self._path))
        generation = max(last_generation(self._run_dir), found.newest, above) + 1
        write_generation(self._run_dir, generation)
        # Lines that an older generation adds after this one count for nothing.
        self._replace(data[: found.num_bytes] + frame_bytes(generation, []))
        lock.sign(f"launch {generation}, {self._name}")
        self._lock, self._generation = lock, generation
        return Claim(generation, lock.left_by)

    def records(self) -> list[dict[str, Any]]:
        with self._away_if_unwritable():
            return read_frames(self._data(), str(self._path)).accepted()

    def append(self, record: JournalRecord, *, limit_s: float = APPEND_LIMIT_S) -> None:
        self.append_all([record], limit_s=limit_s)

    def append_all(
        self, records: Sequence[JournalRecord], *, limit_s: float = APPEND_LIMIT_S
    ) -> None:
        with self._away_if_unwritable():
            self._check_that_we_lead()
            frame = frame_bytes(self._generation, records)
            if self._must_rewrite:
                self._replace(os.pread(self._descriptor, self._num_bytes, 0) + frame)
            else:
                self._add(frame)

    def compact(self, snapshot: JournalRecord, *, limit_s: float = APPEND_LIMIT_S) -> None:
        with self._away_if_unwritable():
            self._check_that_we_lead()
            self._replace(frame_bytes(self._generation, [snapshot]))

    def renew(self) -> None:
        with self._away_if_unwritable():
            self._check_that_we_lead()

    def leads(self, now_s: float) -> bool:
        return self._lock is not None

    def close(self) -> None:
        if self._lock is not None:
            self._let_go(in_good_order=True)

    # --- who leads ---

    def _check_that_we_lead(self) -> None:
        if self._lock is None:
            raise Deposed(f"{self._path}: this process does not lead the run")
        found, ours = last_generation(self._run_dir), self._generation
        if found == ours and self._is_ours():
            return
        self._let_go(in_good_order=False)
        if found > ours:
            raise Deposed(f"{self._path}: launch {found} leads the run, and this is {ours}")
        raise JournalDamaged(f"{self._path}: was removed or replaced while the run used it")

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _let_go(self, *, in_good_order: bool) -> None:
        if self._lock is not None:
            self._lock.close(in_good_order=in_good_order)
        os.close(self._descriptor)
        self._lock, self._descriptor, self._generation = None, -1, 0

    # --- the file ---

    def _data(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _add(self, frame: bytes) -> None:
        self._must_rewrite = True  # whatever interrupts us
        try:
            _write(self._descriptor, frame)
        except OSError:  # no room: away with the half of it
            os.ftruncate(self._descriptor, self._num_bytes)
            self._must_rewrite = False
            raise
        os.fdatasync(self._descriptor)
        self._num_bytes += len(frame)
        self._must_rewrite = False

    def _replace(self, data: bytes) -> None:
        """The old file or the new one, whatever happens."""
        part = self._path.with_name(f".{self._path.name}.part")
        part.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o600)
        try:
            _write(descriptor, data)
            os.fsync(descriptor)
            part.replace(self._path)
        except OSError:
            os.close(descriptor)
            part.unlink(missing_ok=True)
            raise
        before, self._descriptor = self._descriptor, descriptor
        self._num_bytes, self._must_rewrite = len(data), True
        if before >= 0:
            os.close(before)
        _flush_directory(self._run_dir)
        self._must_rewrite = False

    @contextmanager
    def _away_if_unwritable(self) -> Iterator[None]:
        try:
            yield
        except OSError as why:
            raise JournalAway(f"{self._path}: {why.strerror or why}") from why


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
