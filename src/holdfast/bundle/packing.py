"""From a job, as a run names it, to a bundle: which files, and what is in them."""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.bundle.local_imports import LocalImports
from holdfast.bundle.manifest import (
    MOST_BYTES,
    MOST_FILES,
    BundledFile,
    BundleManifest,
    manifest_of,
    path_fault,
)
from holdfast.bundle.named_files import NAME, declared_files, files_in_texts, parsed
from holdfast.errors import ConfigError, ProtocolError
from holdfast.job_file import is_installed, read_source
from holdfast.job_reference import JobSource, Reference, found_here

_BLOCK_BYTES = _MIB = 1 << 20
_CURE = (
    "keep large data where every machine can read it (a mounted disk, an object store) and leave "
    f"it out of {NAME} and of packages that the job imports"
)


@dataclass(frozen=True)
class JobBundle:
    manifest: BundleManifest
    root: Path  # that its paths are below
    unsent: tuple[str, ...] = ()  # files that the job file names in a text, and that are not in it

    @property
    def sha256(self) -> str:
        return self.manifest.sha256


def pack(job: JobSource, limit_bytes: int = MOST_BYTES) -> JobBundle | None:
    """None: other machines need no bundle, since the job's module is installed there, or it is a
    function of this process, which no other one can run.

    ConfigError, in one line, for what cannot be sent. Files are read when they are sent:
    :func:`holdfast.bundle.serving.keep` makes a copy that stays as it is.
    """
    if found_here(job.reference) is not None:
        return None
    reference = Reference.parse(job.reference)
    if reference.module and is_installed(reference.path):
        return None
    try:
        return _packed(job, reference, limit_bytes)
    except OSError as why:
        raise ConfigError(
            f"{why.filename}: cannot be read ({why.strerror}), and is to be sent to other machines"
        ) from why


def _packed(job: JobSource, reference: Reference, limit_bytes: int) -> JobBundle:
    root = reference.root.resolve()
    path = root / reference.path.relative_to(reference.root)
    source = read_source(path, job.sha256)
    tree = parsed(path, source)
    imports = LocalImports(root)
    imports.add(source, reference.package)
    if reference.module:
        imports.add(f"import {reference.module}".encode(), "")
    chosen = {path, *imports.files}
    chosen |= _all_below(imports.packages, root)
    chosen |= _all_below(declared_files(path, tree), root)
    files = _described(sorted(chosen), root, limit_bytes)
    folders = [folder.relative_to(root).as_posix() for folder in imports.folders]
    unsent = [file for file in files_in_texts(path.parent, tree) if file not in chosen]
    try:
        manifest = manifest_of(files, folders)
    except ProtocolError as why:
        raise ConfigError(f"{path}: cannot be sent to other machines: {why}; {_CURE}") from why
    bundle = JobBundle(manifest, root, tuple(file.relative_to(root).as_posix() for file in unsent))
    _check_job(bundle, path.relative_to(root).as_posix(), job)
    return bundle


def _all_below(places: Iterable[Path], root: Path) -> set[Path]:
    """Files, and those in folders: without what is hidden, and what Python has compiled."""
    found: set[Path] = set()
    for place in places:
        if not place.is_dir() or place.is_symlink():
            found.add(place)
            continue
        for folder, folders, files in os.walk(place):
            folders[:] = [name for name in folders if _is_wanted(name)]
            links = [name for name in folders if Path(folder, name).is_symlink()]
            found |= {Path(folder, name) for name in (*files, *links) if _is_wanted(name)}
            if len(found) > MOST_FILES:
                raise ConfigError(
                    f"{place.relative_to(root)}: has more than {MOST_FILES} files, which are too "
                    f"many to be sent to other machines; {_CURE}"
                )
    return found


def _is_wanted(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__" and not name.endswith(".pyc")


def _described(files: Sequence[Path], root: Path, limit_bytes: int) -> list[BundledFile]:
    for file in files:
        _check_plain(file, root)
    _check_sizes({file: file.stat().st_size for file in files}, limit_bytes)
    made = [_file(file, root, limit_bytes) for file in files]
    _check_sizes({root / file.path: file.size for file in made}, limit_bytes)
    return made


def _check_sizes(sizes: Mapping[Path, int], limit_bytes: int) -> None:
    total, limit = sum(sizes.values()) / _MIB, limit_bytes / _MIB
    if total > limit:
        largest = max(sizes, key=lambda file: sizes[file])
        raise ConfigError(
            f"{largest}: {sizes[largest] / _MIB:,.1f} MiB of the job's {total:,.1f} MiB, of which "
            f"at most {limit:,.0f} MiB are sent to other machines; {_CURE}"
        )


def _file(file: Path, root: Path, limit_bytes: int) -> BundledFile:
    """Size and SHA-256 of one and the same content."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as stream:
        about = os.fstat(stream.fileno())
        while size <= limit_bytes and (block := stream.read(_BLOCK_BYTES)):
            digest.update(block)
            size += len(block)
    name = file.relative_to(root).as_posix()
    return BundledFile(name, digest.hexdigest(), size, bool(about.st_mode & stat.S_IXUSR))


def _check_plain(file: Path, root: Path) -> None:
    name = file.relative_to(root).as_posix()
    if why := path_fault(name):
        raise ConfigError(f"{str(file)!r}: cannot be sent to other machines: {why}; rename it")
    for place in (file, *file.parents):
        if place == root:
            break
        if place.is_symlink():
            raise ConfigError(
                f"{place}: is a symbolic link, which is not sent to other machines; put what it "
                "leads to there, or install it on each machine"
            )
    if not file.is_file():
        what = "is no plain file" if file.exists() else "no such file"
        raise ConfigError(f"{file}: {what}; it is to be sent to other machines")


def _check_job(bundle: JobBundle, path: str, job: JobSource) -> None:
    [found] = [file for file in bundle.manifest.files if file.path == path]
    if found.sha256 != job.sha256:
        read_source(bundle.root / path, job.sha256)  # says so, unless it was put back meanwhile
        raise ConfigError(f"job file {path}: changes while it is read; try again")
