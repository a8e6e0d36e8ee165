"""Files of a run are for its user only: parameters, logs, samples in errors."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_lock = threading.Lock()
_usual_masks: list[int] = []  # one for each run of this process; the first is the user's own


@contextmanager
def private_files() -> Iterator[int]:
    """Whatever this process writes meanwhile is private; yields the mask it had before.

    Runs in several threads may overlap: the last one to end gives the mask back.
    """
    with _lock:
        before = os.umask(0o077)
        _usual_masks.append(_usual_masks[0] if _usual_masks else before)
    try:
        yield _usual_masks[0]
    finally:
        with _lock:
            usual = _usual_masks.pop()
            if not _usual_masks:
                os.umask(usual)


def make_private(run_dir: Path, usual_mask: int) -> None:
    """The directories above it are the user's, and as they would be without us."""
    if not run_dir.parent.exists():
        mask = os.umask(usual_mask)
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
        finally:
            os.umask(mask)
    run_dir.mkdir(mode=0o700, exist_ok=True)
    run_dir.chmod(0o700)  # it may have been there before
