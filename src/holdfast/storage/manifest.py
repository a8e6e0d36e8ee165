"""What makes a directory a checkpoint: its manifest. No torch, no tensors.

A checkpoint is ``RUN_DIR/checkpoints/step-00000020/``: one folder of safetensors a stage and a
``manifest.json`` with layers, files and their SHA-256. It appears by one rename, or not at all.
"""

import errno
import functools
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast import names
from holdfast.errors import CheckpointError, ProtocolError
from holdfast.host.scarce import patiently
from holdfast.storage.contents import FORMAT, from_values, to_values
from holdfast.storage.contents import Checkpoint as Checkpoint
from holdfast.storage.contents import Origin as Origin
from holdfast.storage.contents import Part as Part

_FOLDER = "checkpoints"
MANIFEST = "manifest.json"
_READ_AT_ONCE_BYTES = 1_000_000  # whoever seals has other things to do


def checkpoints(run_dir: str | Path) -> Path:
    return Path(run_dir) / _FOLDER


def partial_directory(run_dir: str | Path, step: int) -> Path:
    return checkpoints(run_dir) / f"{names.checkpoint_name(step)}.partial"


def part_directory(stage: int, writer: str) -> str:
    """Of one writer's parts, until they are sealed: one that was given up may still be busy."""
    return f"stage-{stage}.{hashlib.sha256(writer.encode()).hexdigest()[:8]}"


def seal(
    run_dir: str | Path,
    step: int,
    parts: Sequence[Part],
    *,
    seed: int,
    microbatches: int,
    origin: Origin | None = None,
    launch: int | None = None,
) -> Path:
    """Turn the parts on disk, in the order of the stages, into a checkpoint, by one rename.

    Can be called again after an OSError, wherever it came from.
    """
    partial = partial_directory(run_dir, step)
    final = partial.with_suffix("")
    if not partial.exists() and (final / MANIFEST).exists():  # it came as far as that before
        sync_directory(final.parent)
        return final
    named = _named_by_stage(partial, parts)
    for part in named:
        _check_on_disk(partial, part)
    whole = Checkpoint(str(partial), step, seed, microbatches, tuple(named), origin or Origin())
    write_manifest(whole, launch)
    return put_in_place(partial)


def put_in_place(partial: Path) -> Path:
    """Its files are on disk, each by itself; it has the name of a checkpoint then."""
    final = partial.with_suffix("")
    sync_directory(partial)  # all of it is on disk before it has that name
    replaced = final.with_suffix(".replaced")
    if final.exists():  # a run resumed from an earlier step comes by here again
        final.rename(replaced)
    partial.rename(final)
    sync_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def write_manifest(checkpoint: Checkpoint, launch: int | None = None) -> None:
    """Into its directory, where all its parts are already. ``launch``: of the run, if known."""
    by = {} if launch is None else {"launch": launch}
    text = manifest_text({**to_values(checkpoint), **by})
    with open(Path(checkpoint.directory) / MANIFEST, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def manifest_text(values: Mapping[str, Any]) -> str:
    return json.dumps({**values, "sha256": _digest(values)}, indent=1)


def sync_file(path: Path) -> None:
    """Its content outlives a loss of power."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """The names in it, too, outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as why:
        if why.errno != errno.EINVAL:  # a file system that has nothing to sync there
            raise
    finally:
        os.close(descriptor)


def _named_by_stage(partial: Path, parts: Sequence[Part]) -> list[Part]:
    """Each part in its folder, and no folder of a writer that was given up."""
    named = [replace(part, directory=f"stage-{stage}") for stage, part in enumerate(parts)]
    for part, new in zip(parts, named, strict=True):
        written = partial / names.PART.check(part.directory, "the directory of a part")
        if part.directory != new.directory and written.exists():  # else it was renamed before
            shutil.rmtree(partial / new.directory, ignore_errors=True)
            written.rename(partial / new.directory)
    wanted = {part.directory for part in named}
    for folder in [path for path in partial.iterdir() if path.is_dir()]:
        if folder.name not in wanted:
            shutil.rmtree(folder, ignore_errors=True)
    return named


def _check_on_disk(partial: Path, part: Part) -> None:
    """What its writer has said of it. Large files are read when somebody loads them."""
    folder = partial / part.directory
    _check_plain(partial, part)
    for name, expected in part.files.items():
        names.PART_FILE.check(name, f"a file of {part.directory}")
        num_bytes = (folder / name).stat().st_size
        if num_bytes != part.sizes.get(name, num_bytes):
            said = part.sizes[name]
            reason = f"{part.directory}/{name} has {num_bytes} bytes, its writer said {said}"
            raise CheckpointError(f"checkpoint {partial}: {reason}")
        if num_bytes <= _READ_AT_ONCE_BYTES and file_digest(folder / name) != expected:
            raise CheckpointError(
                f"checkpoint {partial}: {part.directory}/{name} is not what its writer has said "
                "(SHA-256 differs)"
            )


def _check_plain(checkpoint: Path, part: Part) -> None:
    """Its folder holds the files that it names and nothing else: none is a link elsewhere."""
    folder = checkpoint / part.directory
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise CheckpointError(_refusal(checkpoint, f"{part.directory} is no directory"))
    for path in sorted(folder.iterdir()):
        shown = f"{part.directory}/{path.name}"
        if path.name not in part.files:
            raise CheckpointError(_refusal(checkpoint, f"{shown} is not in its manifest"))
        if not stat.S_ISREG(path.lstat().st_mode):
            raise CheckpointError(_refusal(checkpoint, f"{shown} is no plain file"))


def clear_abandoned(run_dir: str | Path, step: int) -> None:
    """Remove parts of checkpoints before ``step`` that will never be whole: a writer died."""
    for partial in (Path(run_dir) / _FOLDER).glob("step-*.partial"):
        if partial < partial_directory(run_dir, step):
            shutil.rmtree(partial, ignore_errors=True)


def clear_leftovers(run_dir: str | Path) -> None:
    """Remove what a run that was killed while writing left behind."""
    for replaced in (Path(run_dir) / _FOLDER).glob("step-*.replaced"):
        if not replaced.with_suffix("").exists():  # killed between the two renames of seal()
            replaced.rename(replaced.with_suffix(""))
    for pattern in ("step-*.partial", "step-*.replaced"):
        for leftover in (Path(run_dir) / _FOLDER).glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def set_aside_after(run_dir: str | Path, step: int) -> None:
    """Later checkpoints of a history that is being rewritten: kept, but no longer found."""
    for path in sealed(Path(run_dir)):
        if int(path.name.removeprefix("step-")) > step:
            aside = path.with_suffix(".abandoned")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def trim(run_dir: str | Path, keep: int, best: int | None = None) -> None:
    """Leave the newest ``keep`` checkpoints, and that of step ``best``."""
    spared = None if best is None else names.checkpoint_name(best)
    for old in sealed(Path(run_dir))[:-keep]:
        if old.name != spared:
            shutil.rmtree(old, ignore_errors=True)


def find(place: str | Path) -> Checkpoint:
    """The checkpoint at ``place``: a checkpoint's directory, or a run's (then its newest)."""
    path = Path(place)
    if not path.is_dir():
        raise CheckpointError(f"{place}: no such directory; give a run directory")
    if (path / MANIFEST).exists():
        return load_manifest(path)
    found = sealed(path)
    if not found:
        raise CheckpointError(
            f"{place}: no checkpoint below it; expected {_FOLDER}/step-*/{MANIFEST} there"
        )
    return load_manifest(found[-1])


def all_checkpoints(run_dir: str | Path) -> list[Checkpoint]:
    """Those of a run, the oldest first; a run that goes on may have removed one meanwhile."""
    return [load_manifest(path) for path in sealed(Path(run_dir)) if path.exists()]


def has_checkpoint(run_dir: Path) -> bool:
    return bool(sealed(run_dir))


def load_manifest(path: Path) -> Checkpoint:
    try:
        return read_manifest(lambda: (path / MANIFEST).read_text(), str(path))
    except CheckpointError as why:
        raise CheckpointError(_refusal(path, str(why))) from why


def read_manifest(read: Callable[[], str | bytes], directory: str) -> Checkpoint:
    """CheckpointError says only what is wrong with it."""
    try:
        values = json.loads(read())
        stated = values.pop("sha256")
        if stated != _digest(values):
            raise CheckpointError("its manifest was changed or cut off")
        if values["format"] != FORMAT:
            raise CheckpointError(f"format {values['format']}, expected {FORMAT}")
        return from_values(directory, values)
    except ProtocolError as why:
        raise CheckpointError(f"in its manifest {why}") from why
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise CheckpointError(f"its manifest cannot be read ({why})") from why


def verify(checkpoint: Checkpoint, part: Part) -> Path:
    """Check every file of a part against its SHA-256; returns the part's directory."""
    path = Path(checkpoint.directory)
    folder = path / part.directory
    if os.path.lexists(folder):
        _check_plain(path, part)
    for name, expected in part.files.items():
        try:
            found = patiently(functools.partial(file_digest, folder / name))
        except OSError as why:
            reason = f"{part.directory}/{name} cannot be read ({why.strerror})"
            raise CheckpointError(_refusal(path, reason)) from why
        if found != expected:
            reason = f"{part.directory}/{name} was changed since it was written (SHA-256 differs)"
            raise CheckpointError(_refusal(path, reason))
    return folder


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refusal(path: Path, reason: str) -> str:
    older = [p for p in sealed(path.parent.parent) if p < path]
    cure = f"resume an older one: {older[-1]}" if older else "start the run anew"
    return f"checkpoint {path}: {reason}; {cure}"


def sealed(run_dir: Path) -> list[Path]:
    """Directories of its checkpoints, the oldest first."""
    return sorted(
        path.parent
        for path in (run_dir / _FOLDER).glob(f"step-*/{MANIFEST}")
        if not path.parent.suffix  # not .partial, .replaced or .abandoned
    )


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
