"""What a bundle consists of, in one canonical form whose SHA-256 is the bundle's name. Pure."""

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from holdfast.errors import ProtocolError
from holdfast.names import SHA256

VERSION = 1
MOST_FILES = 10_000
MOST_BYTES = 256 << 20  # of all files together
MOST_MANIFEST_BYTES = 4 << 20
_MOST_NAME_BYTES = 255  # as file systems have it
_MOST_PATH = 1000


class BundledFile(NamedTuple):
    path: str  # from the bundle's top, with '/'
    sha256: str
    size: int
    is_executable: bool


@dataclass(frozen=True)
class BundleManifest:
    """Made by :func:`manifest_of` or :func:`read_manifest`, which check it."""

    files: tuple[BundledFile, ...]  # by path
    folders: tuple[str, ...]  # that imports begin at, besides the top

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @cached_property
    def text(self) -> bytes:
        values = {"files": self.files, "folders": self.folders, "version": VERSION}
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


def manifest_of(files: Iterable[BundledFile], folders: Iterable[str] = ()) -> BundleManifest:
    """ProtocolError: these cannot be a bundle."""
    made = BundleManifest(tuple(sorted(files)), tuple(sorted(set(folders))))
    _check(made)
    return made


def read_manifest(text: bytes, sha256: str) -> BundleManifest:
    """As it came over a wire or from a disk; ProtocolError if it is anything else."""
    if len(text) > MOST_MANIFEST_BYTES:
        raise ProtocolError(f"manifest of {len(text)} bytes; at most {MOST_MANIFEST_BYTES}")
    if hashlib.sha256(text).hexdigest() != sha256:
        raise ProtocolError(f"the manifest of job bundle {sha256[:12]} has another SHA-256")
    try:
        values = json.loads(text)
        version = values["version"]
        if version != VERSION:
            raise ProtocolError(f"job bundle of version {version!r}; this is version {VERSION}")
        files = tuple(BundledFile(*row) for row in values["files"])
        made = BundleManifest(files, tuple(values["folders"]))
    except (ValueError, KeyError, TypeError, RecursionError) as why:
        raise ProtocolError(f"cannot read the manifest of job bundle {sha256[:12]}") from why
    _check(made)
    if made.text != text:  # one spelling for each, so that one name stands for one bundle
        raise ProtocolError(f"the manifest of job bundle {sha256[:12]} is not in canonical form")
    return made


def path_fault(path: Any) -> str:
    """Why it may not be the name of a bundled file; empty: it may."""
    if not isinstance(path, str) or not 0 < len(path) <= _MOST_PATH:
        return f"expected a path of 1 to {_MOST_PATH} characters"
    if not path.isprintable():  # also what is no Unicode
        return "expected only characters that can be printed"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "expected a relative path without '.', '..' and '//'"
    if any(len(part.encode()) > _MOST_NAME_BYTES for part in parts):
        return f"expected names of at most {_MOST_NAME_BYTES} bytes"
    return ""


def _check(manifest: BundleManifest) -> None:
    files = manifest.files
    if not 0 < len(files) <= MOST_FILES:
        raise ProtocolError(f"job bundle of {len(files)} files; expected 1 to {MOST_FILES}")
    for number, file in enumerate(files):
        _check_file(number, file)
    total = manifest.num_bytes
    if total > MOST_BYTES:
        raise ProtocolError(f"job bundle of {total} bytes; expected at most {MOST_BYTES}")
    paths = [file.path for file in files]
    if any(before >= after for before, after in itertools.pairwise(paths)):
        raise ProtocolError("job bundle: paths are not sorted, or one is there twice")
    _check_folders(manifest, _parents(paths))
    if len(manifest.text) > MOST_MANIFEST_BYTES:
        raise ProtocolError(
            f"job bundle: {len(files)} paths take {len(manifest.text)} bytes; expected at most "
            f"{MOST_MANIFEST_BYTES}"
        )


def _check_file(number: int, file: BundledFile) -> None:
    where = f"job bundle, file {number}"
    if why := path_fault(file.path):
        raise ProtocolError(f"{where}, path={file.path!r:.80}: {why}")
    SHA256.check(file.sha256, f"{where}, sha256")
    if type(file.size) is not int or not 0 <= file.size <= MOST_BYTES:
        raise ProtocolError(f"{where}, size={file.size!r:.80}: expected 0 to {MOST_BYTES}")
    if type(file.is_executable) is not bool:
        raise ProtocolError(f"{where}: expected true or false for 'executable'")


def _parents(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        while "/" in path:
            path = path.rpartition("/")[0]
            if path in found:
                break
            found.add(path)
    return found


def _check_folders(manifest: BundleManifest, parents: set[str]) -> None:
    for file in manifest.files:
        if file.path in parents:
            raise ProtocolError(f"job bundle: {file.path!r:.80} is a file and a folder")
    for folder in manifest.folders:
        if not isinstance(folder, str) or folder not in parents:
            raise ProtocolError(f"job bundle: no file is in import folder {folder!r:.80}")
    if list(manifest.folders) != sorted(set(manifest.folders)):
        raise ProtocolError("job bundle: import folders are not sorted, or one is there twice")
