"""Tracebacks of a watch, kept in files that outlive it: its own, and those of the hooks."""

import os
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path

from holdfast.watch.startup import FAULT_FILES

_MOST_FILES = 16  # all ranks fail alike
_MOST_CHARACTERS = 1 << 16  # of each


def keep_traceback(why: Exception) -> str:
    """In a file of its own; where it is."""
    return _keep(traceback.format_exception(why))


def keep_hook_faults(folder: Path) -> tuple[int, str]:
    """How many processes of the job wrote down a fault of the hooks, and where all are kept."""
    written = sorted(folder.glob(FAULT_FILES.format(pid="*")))
    if not written:
        return 0, ""
    return len(written), _keep(f"{path.stem}:\n{_read(path)}\n" for path in written[:_MOST_FILES])


def _read(path: Path) -> str:
    try:
        with path.open(errors="replace") as file:
            return file.read(_MOST_CHARACTERS)
    except OSError as why:
        return f"cannot be read: {why.strerror}"


def _keep(lines: Iterable[str]) -> str:
    try:
        handle, name = tempfile.mkstemp(prefix="holdfast-watch-", suffix=".txt")  # mode 0600
        with os.fdopen(handle, "w") as file:
            file.writelines(lines)
    except OSError as cannot:
        return f"no file (its traceback cannot be written: {cannot.strerror})"
    return name
