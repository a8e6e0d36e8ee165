"""Private directories on a machine's own disk, and who uses them: by locks, which no death leaves.

Whoever uses one holds its lock together with others. Who finds it free may remove it: the last one
of them, or the next that comes after they were killed.
"""

import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from holdfast.names import CACHE_VARIABLE

_LOCK = ".lock"
_OLD_S = 3600.0  # whoever has made one, and lives, has locked it since
_NAME = re.compile(r"holdfast-[0-9a-f]{16}")  # as scratch_name() makes them


class Scratch:
    """One of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None
        self._one_at_a_time = threading.Lock()

    def hold(self) -> Path:
        """Made if it is not there. OSError: it cannot be had, or is somebody else's."""
        with self._one_at_a_time:
            self._hold()
        return self._path

    def _hold(self) -> None:
        while self._lock is None or not self._is_current(self._lock):
            self._let_go()
            _make_private(self._path)
            with suppress(FileNotFoundError):  # somebody has just removed it
                self._lock = _opened(self._path, os.O_CREAT)
                fcntl.flock(self._lock, fcntl.LOCK_SH)

    def remove(self) -> None:
        """Unless somebody else holds it."""
        if self._lock is not None and self._is_current(self._lock):
            _remove_if_free(self._path, self._lock)
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_current(self, lock: int) -> bool:
        """What is locked is what lies there now, and still for this user only."""
        try:
            return _is_private(self._path) and os.path.samestat(
                os.fstat(lock), (self._path / _LOCK).lstat()
            )
        except OSError:
            return False


@cache
def scratch_at(path: Path) -> Scratch:
    """One for all who use it in this process."""
    return Scratch(path)


def scratch_base(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(CACHE_VARIABLE) or tempfile.gettempdir()).absolute()


def clear_left(base: Path) -> None:
    """Of this user, and of nobody who lives. What cannot be looked at stays."""
    with suppress(OSError):
        for path in base.iterdir():
            if _NAME.fullmatch(path.name) and _is_private(path):
                with suppress(OSError):  # it has no lock yet
                    _clear(path)


def _clear(path: Path) -> None:
    is_old = time.time() - path.lstat().st_mtime > _OLD_S
    lock = _opened(path, os.O_CREAT if is_old else 0)
    try:
        _remove_if_free(path, lock)
    finally:
        os.close(lock)


def _remove_if_free(path: Path, lock: int) -> None:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)


def _opened(path: Path, more: int = 0) -> int:
    return os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | more, 0o600)


def _make_private(path: Path) -> None:
    """Its name is known to holders of the secret only; whoever has guessed it is found out."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    if path.is_symlink() or (path.exists() and not _is_private(path)):
        raise PermissionError(13, f"{path} is not a private directory of this user")


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and own
