"""Checkpoints of a run directory on another machine, copied into one's own: whole or not at all."""

import shutil
from pathlib import Path

from holdfast import names
from holdfast.storage.far import FarStates
from holdfast.storage.manifest import (
    MANIFEST,
    checkpoints,
    partial_directory,
    sync_directory,
    trim,
)

_KEEP = 2  # the one before the newest is there while the newest is copied


def copy_checkpoint(far: FarStates, run_dir: Path, step: int) -> None:
    """CheckpointError or OSError: it cannot be had, and nothing of it is seen."""
    name = names.checkpoint_name(step)
    final, partial = checkpoints(run_dir) / name, partial_directory(run_dir, step)
    if (final / MANIFEST).exists():
        return
    manifest = far.manifest(name)
    checkpoint = far.checkpoint(name, manifest)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    for part in checkpoint.parts:
        (partial / part.directory).mkdir(mode=0o700)
        with far.fetched(name, checkpoint, part) as folder:
            for file in part.files:
                (folder / file).replace(partial / part.directory / file)
        sync_directory(partial / part.directory)
    (partial / MANIFEST).write_bytes(manifest)
    partial.rename(final)
    sync_directory(final.parent)
    trim(run_dir, _KEEP)
