"""Checkpoints of a run directory on another machine, copied for one that stands by: whole or not.

Until it takes over they are apart from checkpoints of its own, below ``RUN_DIR/copied``, and by the
run that they are of: what an earlier standby has left there is never taken for another run's.
"""

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path

from holdfast import names
from holdfast.files.courier import Courier
from holdfast.storage.far import FarStates
from holdfast.storage.manifest import (
    MANIFEST,
    checkpoints,
    clear_abandoned,
    partial_directory,
    put_in_place,
    sealed,
    set_aside_after,
    sync_directory,
    sync_file,
    trim,
)

_KEEP = 2  # the one before the newest is there while the newest is copied
_FOLDER = "copied"


def copies_of(run_dir: Path, run_id: str) -> Path:
    """With a folder for checkpoints, as a run directory has it."""
    return run_dir / _FOLDER / f"run-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"


def drop_copies(run_dir: Path, *, but: Path | None = None) -> None:
    """Of whatever runs; ``but``: these stay. Nothing else that is there is touched."""
    for copies in (run_dir / _FOLDER).glob("run-*"):
        if copies != but:
            shutil.rmtree(copies, ignore_errors=True)
    with suppress(OSError):  # it is not empty, or not there
        (run_dir / _FOLDER).rmdir()


def take_copies(run_dir: Path, run_id: str) -> None:
    """They are its own from now on. OSError: some are not."""
    own = checkpoints(run_dir)
    for copy in sealed(copies_of(run_dir, run_id)):
        own.mkdir(mode=0o700, exist_ok=True)
        if not (own / copy.name).exists():
            copy.rename(own / copy.name)
            sync_directory(own)
    drop_copies(run_dir)


def copy_checkpoint(courier: Courier, copies: Path, step: int) -> None:
    """CheckpointError or OSError: it cannot be had, and nothing of it is seen."""
    name, partial = names.checkpoint_name(step), partial_directory(copies, step)
    far = FarStates(courier, lambda: partial)  # whoever clears up after a death finds all of it
    manifest = far.manifest(name)
    if not _is_there(checkpoints(copies) / name, manifest):
        _fetch(far, name, manifest, partial)
        put_in_place(partial)
    set_aside_after(copies, step)  # all have gone back since
    trim(copies, _KEEP)
    clear_abandoned(copies, step)


def _is_there(checkpoint: Path, manifest: bytes) -> bool:
    """The very same: its manifest has the SHA-256 of each file."""
    with suppress(OSError):
        return (checkpoint / MANIFEST).read_bytes() == manifest
    return False


def _fetch(far: FarStates, name: str, manifest: bytes, partial: Path) -> None:
    checkpoint = far.checkpoint(name, manifest)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    for part in checkpoint.parts:
        (partial / part.directory).mkdir(mode=0o700)
        with far.fetched(name, checkpoint, part) as folder:
            for file in part.files:
                sync_file(folder / file)
                (folder / file).replace(partial / part.directory / file)
        sync_directory(partial / part.directory)
    (partial / MANIFEST).write_bytes(manifest)
    sync_file(partial / MANIFEST)
