"""Bundles on the disk of the machine that runs the job: written whole or not at all, verified.

``CACHE/SHA256/manifest.json`` says what there is, ``CACHE/SHA256/files`` is the job's root. Nothing
that came over a wire is believed: names, sizes and content are held against the manifest.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from holdfast.bundle.manifest import (
    MOST_MANIFEST_BYTES,
    BundledFile,
    BundleManifest,
    read_manifest,
)
from holdfast.errors import ConfigError, ProtocolError
from holdfast.names import CACHE_VARIABLE
from holdfast.protocol.fields import PIECE_BYTES

_MANIFEST, _FILES, _LOCK, _PARTIAL = "manifest.json", "files", ".lock", ".partial-"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OLD_S = 86_400.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FilePiece(NamedTuple):
    file: int  # its place in the manifest
    offset: int
    content: bytes


def default_cache(environment: Mapping[str, str]) -> Path:
    """For whoever has no directory of its own for as long as the job runs."""
    if given := environment.get(CACHE_VARIABLE):
        return Path(given).absolute()
    home = Path(environment.get("HOME") or tempfile.gettempdir())
    return (
        Path(environment.get("XDG_CACHE_HOME") or home / ".cache").absolute() / "holdfast" / "jobs"
    )


def cached(cache: Path, sha256: str) -> Path | None:
    """The root of the job, each byte of which was verified; None: it is not there, or damaged.

    What others may change is as good as damaged: they could do so before it is loaded.
    """
    place = cache / sha256
    try:
        with (place / _MANIFEST).open("rb") as stream:
            manifest = read_manifest(stream.read(MOST_MANIFEST_BYTES + 1), sha256)
        root = place / _FILES
        own = all(map(_is_own, [place, place / _MANIFEST, *_within(root)]))
    except (OSError, ProtocolError):  # also one that another process takes away meanwhile
        return None
    return root if own and _is_private(cache) and is_whole(manifest, root) else None


def _within(root: Path) -> list[Path]:
    """With all that lies there, whether the manifest names it or not: it could be imported."""
    return [root, *root.rglob("*")]


def _is_own(path: Path) -> bool:
    """As whoever unpacks it makes it."""
    return not path.is_symlink() and _is_private(path)


def _is_private(path: Path) -> bool:
    """This user's, and nobody else may write to it."""
    try:
        about = path.stat()
    except OSError:
        return False
    return about.st_uid == os.geteuid() and not about.st_mode & _OTHERS_WRITE


def import_folders(root: Path) -> list[str]:
    """Of a job that was unpacked: where imports begin, besides its root. Else none."""
    manifest = manifest_of_unpacked(root)
    return [] if manifest is None else [str(root / folder) for folder in manifest.folders]


def manifest_of_unpacked(root: Path) -> BundleManifest | None:
    """None: no bundle was unpacked there."""
    place = root.parent
    if root.name != _FILES or not (place / _MANIFEST).is_file():
        return None
    return read_manifest((place / _MANIFEST).read_bytes(), place.name)


def is_whole(manifest: BundleManifest, root: Path) -> bool:
    """Whether each file is there, with this content."""
    try:
        return all(_is_intact(root, file) for file in manifest.files)
    except OSError:
        return False


def unpack(cache: Path, manifest: BundleManifest, pieces: Iterable[FilePiece]) -> Path:
    """The root of the job in the cache. ProtocolError: the pieces are not those of the manifest."""
    if (found := cached(cache, manifest.sha256)) is not None:
        return found
    unpacking = Unpacking(cache, manifest)
    try:
        for piece in pieces:
            unpacking.take(piece)
        return unpacking.finish()
    finally:
        unpacking.abandon()


def expected_pieces(manifest: BundleManifest) -> Iterator[tuple[int, int, int]]:
    """File, offset and length of each, in the order in which they are written."""
    for number, file in enumerate(manifest.files):
        for offset in range(0, file.size, PIECE_BYTES):
            yield number, offset, min(PIECE_BYTES, file.size - offset)


class Unpacking:
    """Pieces in order; nothing is seen under the bundle's name before all of them are right."""

    def __init__(self, cache: Path, manifest: BundleManifest) -> None:
        """ConfigError: nothing can be written there."""
        self._cache, self._manifest = cache, manifest
        self._expected = expected_pieces(manifest)
        self._digest = hashlib.sha256()
        self._partial: Path | None = None
        with _one_line(cache):
            _make_cache(cache)
            _clear_old(cache)
            self._partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=cache))
        try:
            with _one_line(cache):
                self._lay_out()
        except ConfigError:
            self.abandon()
            raise

    def _lay_out(self) -> None:
        """All files, empty: what cannot be made is known before anything is sent."""
        for file in self._manifest.files:
            place = self._place(file)
            for folder in reversed(place.relative_to(self._root).parents):
                with suppress(FileExistsError):
                    (self._root / folder).mkdir(mode=0o700)
            mode = 0o700 if file.is_executable else 0o600
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode))

    def take(self, piece: FilePiece) -> None:
        number, offset, length = next(self._expected, (-1, 0, 0))
        if (piece.file, piece.offset, len(piece.content)) != (number, offset, length):
            raise ProtocolError(
                f"job bundle: piece of file {piece.file} at {piece.offset} with "
                f"{len(piece.content)} bytes; expected file {number} at {offset} with {length}"
            )
        file = self._manifest.files[number]
        with _one_line(self._cache), self._place(file).open("ab") as stream:
            stream.write(piece.content)
        self._digest.update(piece.content)
        if offset + length == file.size:
            if self._digest.hexdigest() != file.sha256:
                raise ProtocolError(
                    f"job bundle: {file.path} is not as the run began with it (SHA-256)"
                )
            self._digest = hashlib.sha256()

    def finish(self) -> Path:
        """Under its name, unless another process was first."""
        if (left := next(self._expected, None)) is not None:
            raise ProtocolError(f"job bundle: ends before file {left[0]} at {left[1]}")
        for file in self._manifest.files:
            if not file.size and file.sha256 != hashlib.sha256().hexdigest():
                raise ProtocolError(f"job bundle: {file.path} has 0 bytes and another SHA-256")
        assert self._partial is not None
        final = self._cache / self._manifest.sha256
        with _one_line(self._cache):
            _write_private(self._partial / _MANIFEST, self._manifest.text)
            with _locked(self._cache):
                found = cached(self._cache, self._manifest.sha256)
                if found is None:
                    _remove(final)  # it is damaged
                    self._partial.rename(final)
                    self._partial, found = None, final / _FILES
        self.abandon()
        return found

    def abandon(self) -> None:
        """Leaves nothing half-written; harmless after the end."""
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial = None

    @property
    def _root(self) -> Path:
        assert self._partial is not None
        return self._partial / _FILES

    def _place(self, file: BundledFile) -> Path:
        return self._root / file.path


def _make_cache(cache: Path) -> None:
    """What is loaded from there is run: nobody else may write to it."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(cache):
        raise ConfigError(
            f"{cache}: other users may write there, and a job is run from it; set {CACHE_VARIABLE} "
            "to a directory of your own"
        )


def _clear_old(cache: Path) -> None:
    """What processes that were killed have left there."""
    for place in cache.glob(f"{_PARTIAL}*"):
        with suppress(OSError):  # another process was first
            if time.time() - place.stat().st_mtime > _OLD_S:
                shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _one_line(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as why:
        if why.errno in _FULL:
            raise ConfigError(
                f"{cache}: no room for the job ({why.strerror}); make room, or set "
                f"{CACHE_VARIABLE} to a directory on another disk"
            ) from why
        raise ConfigError(
            f"{cache}: the job cannot be written there ({why.strerror}); set {CACHE_VARIABLE} to a "
            "directory of your own"
        ) from why


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Against other processes that put the same bundle there."""
    descriptor = os.open(cache / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def _remove(place: Path) -> None:
    """Out of the way at once: a job that is loaded meanwhile finds all or nothing."""
    if not place.exists():
        return
    aside = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=place.parent))
    place.rename(aside / place.name)
    shutil.rmtree(aside, ignore_errors=True)


def _is_intact(root: Path, file: BundledFile) -> bool:
    place = root / file.path
    if place.is_symlink() or not place.is_file() or place.stat().st_size != file.size:
        return False
    with place.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
