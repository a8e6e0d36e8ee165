"""What is asked of a place that keeps objects by key, and the one that needs no server: a folder.

Keys are made of checked names by whoever asks; nothing that a listing says becomes a path.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from holdfast.errors import CheckpointError

MOST_READ_BYTES = 64_000_000  # of what is read at once: a manifest
_CHUNK_BYTES = 1 << 20


class ObjectStore(Protocol):
    """Whatever fails is a CheckpointError of one line, after the limit of a request."""

    address: str

    def put_file(self, key: str, path: Path) -> None:
        """All of it is there then, or nothing."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """False: there is one of that key, and it stays as it is."""

    def read(self, key: str) -> bytes | None:
        """None: there is none."""

    def fetch(self, key: str, path: Path) -> str:
        """Into a file; returns its SHA-256."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes by key, of all keys that begin so; ``prefix`` ends with a slash."""

    def delete(self, keys: Iterable[str]) -> None:
        """One that is gone already is no error."""


class FolderBucket:
    """A folder on a file system that all machines of a run see: ``file:///shared/run``."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._root = Path(address.removeprefix("file://"))

    def put_file(self, key: str, path: Path) -> None:
        try:
            new = self._beside(key)
            with open(path, "rb") as source, open(new, "xb") as file:
                shutil.copyfileobj(source, file, _CHUNK_BYTES)
                _sync(file.fileno())
            new.replace(self._root / key)
        except OSError as why:
            raise self._refused(why) from why

    def put_if_absent(self, key: str, data: bytes) -> bool:
        try:
            new = self._beside(key)
            with open(new, "xb") as file:
                file.write(data)
                file.flush()
                _sync(file.fileno())
            try:
                os.link(new, self._root / key)  # unlike a rename it replaces nothing
            except FileExistsError:
                return False
            finally:
                new.unlink()
        except OSError as why:
            raise self._refused(why) from why
        return True

    def read(self, key: str) -> bytes | None:
        try:
            with open(self._root / key, "rb", opener=_no_link) as file:
                return _at_most(file.read(MOST_READ_BYTES + 1), f"{self.address}/{key}")
        except FileNotFoundError:
            return None
        except OSError as why:
            raise self._refused(why) from why

    def fetch(self, key: str, path: Path) -> str:
        digest = hashlib.sha256()
        try:
            with open(self._root / key, "rb", opener=_no_link) as source, open(path, "xb") as file:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
        except OSError as why:
            raise self._refused(why, key) from why
        return digest.hexdigest()

    def sizes(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            for path in (self._root / prefix).rglob("*"):
                with suppress(FileNotFoundError):  # gone since it was listed
                    if not path.name.startswith(".") and path.is_file() and not path.is_symlink():
                        found[path.relative_to(self._root).as_posix()] = path.stat().st_size
        except OSError as why:
            raise self._refused(why) from why
        return found

    def delete(self, keys: Iterable[str]) -> None:
        try:
            for key in keys:
                path = self._root / key
                path.unlink(missing_ok=True)
                with suppress(OSError):  # something else is in it
                    path.parent.rmdir()
                    path.parent.parent.rmdir()
        except OSError as why:
            raise self._refused(why) from why

    def _beside(self, key: str) -> Path:
        folder = (self._root / key).parent
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f".{secrets.token_hex(8)}"

    def _refused(self, why: OSError, key: str = "") -> CheckpointError:
        where = f"{self.address}/{key}" if key else self.address
        return CheckpointError(f"{where}: {why.strerror or why}")


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _at_most(data: bytes, where: str) -> bytes:
    if len(data) > MOST_READ_BYTES:
        raise CheckpointError(f"{where}: has more than {MOST_READ_BYTES} bytes: it is no manifest")
    return data
