"""A lock on a file that names who holds it. It ends with its process, whatever ends that."""

import contextlib
import fcntl
import os
from pathlib import Path

from holdfast.errors import JournalHeld

_MOST_BYTES = 200


class FileLock:
    """Taken as long as the object is not closed. The file stays: its lock is what counts."""

    def __init__(self, path: Path, *, generation: int) -> None:
        """JournalHeld, with the name of the holder: another process has it."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as why:
            holder = self._text()
            os.close(self._descriptor)
            raise JournalHeld(
                f"{path.parent}: {holder or 'another process'} leads this run",
                holder,
                generation,
            ) from why
        except OSError:
            os.close(self._descriptor)
            raise
        self.left_by = self._text()  # who had it and could not say that it has ended; or empty

    def sign(self, name: str) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, name.encode()[:_MOST_BYTES], 0)

    def close(self, *, in_good_order: bool) -> None:
        if in_good_order:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _text(self) -> str:
        text = os.pread(self._descriptor, _MOST_BYTES, 0).decode(errors="replace")
        return "".join(letter for letter in text if letter.isprintable())
