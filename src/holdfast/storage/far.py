"""The run directory of another machine: parts are sent there, states are fetched from there."""

import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from holdfast import names
from holdfast.errors import CheckpointError, TransferFailed
from holdfast.files.courier import Courier
from holdfast.storage.contents import Checkpoint, Part
from holdfast.storage.home import Home
from holdfast.storage.local_store import LocalStore
from holdfast.storage.manifest import MANIFEST, file_digest, read_manifest
from holdfast.storage.store import PartStore

PAUSES_S = (0.5, 1.0, 2.0)  # between tries of what is fetched: a connection may break
_MOST_MANIFEST_BYTES = 64_000_000

_Result = TypeVar("_Result")


class FarStates:
    """Checkpoints and rebuilt states of the run, by name. CheckpointError, in one line."""

    def __init__(self, courier: Courier, scratch: Callable[[], Path]) -> None:
        self._courier, self._scratch = courier, scratch

    def __str__(self) -> str:
        return f"the run directory at {self._courier}"

    def put_part(self, state: str, part: str, folder: Path, digests: Mapping[str, str]) -> None:
        with self._courier.link() as link:
            for file, digest in digests.items():
                ask = {"do": "put", "state": state, "part": part, "file": file}
                self._courier.put(link, ask, folder / file, digest)

    def put_manifest(self, state: str, path: Path) -> None:
        with self._courier.link() as link:
            ask = {"do": "put", "state": state, "file": MANIFEST}
            self._courier.put(link, ask, path, file_digest(path))

    def manifest(self, state: str) -> bytes:
        def read() -> bytes:
            with self._courier.link() as link:
                ask = {"do": "get", "state": state, "file": MANIFEST}
                return self._courier.read(link, ask, _MOST_MANIFEST_BYTES)

        return _again_and_again(read)

    def checkpoint(self, state: str, manifest: bytes) -> Checkpoint:
        where = f"{state} in {self}"
        try:
            return read_manifest(lambda: manifest, where)
        except CheckpointError as why:
            raise CheckpointError(f"checkpoint {where}: {why}") from why

    @contextmanager
    def fetched(self, state: str, checkpoint: Checkpoint, part: Part) -> Iterator[Path]:
        """A folder with the files of a part, each as it was written; it is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="fetched-", dir=self._scratch()) as folder:
            for file, expected in part.files.items():
                get = functools.partial(self._fetch, state, part.directory, file, Path(folder))
                if _again_and_again(get) != expected:
                    shown = f"{part.directory}/{file}"
                    raise CheckpointError(
                        f"checkpoint {checkpoint.directory}: {shown} was changed since it was "
                        "written (SHA-256 differs)"
                    )
            yield Path(folder)

    def _fetch(self, state: str, part: str, file: str, folder: Path) -> str:
        (folder / file).unlink(missing_ok=True)
        ask = {"do": "get", "state": state, "part": part, "file": file}
        try:
            with self._courier.link() as link:
                return self._courier.fetch(link, ask, folder / file)
        except OSError as why:
            raise CheckpointError(f"{folder}: {why.strerror or why}") from why


class FarStore:
    """Parts are written on this machine's disk, then sent."""

    def __init__(self, states: FarStates, scratch: Callable[[], Path]) -> None:
        self._states, self._scratch = states, scratch

    def staging(self, step: int, name: str) -> Path:
        checkpoint = names.checkpoint_name(step)
        return self._scratch() / f"{checkpoint}.{names.PART.check(name, 'part')}.partial"

    def put_part(self, step: int, name: str, digests: Mapping[str, str]) -> None:
        staged = self.staging(step, name)
        try:
            self._states.put_part(names.checkpoint_name(step), name, staged, digests)
        except TransferFailed as why:
            raise CheckpointError(str(why)) from why
        shutil.rmtree(staged, ignore_errors=True)


class HomeOrFarStore:
    """In the run directory if it is seen from here; that shows when the first part is written."""

    def __init__(self, home: Home, far: FarStore) -> None:
        self._home, self._far = home, far
        self._near: PartStore = LocalStore(Path(home.run_dir))
        self._current: PartStore = self._near

    def staging(self, step: int, name: str) -> Path:
        self._current = self._near if self._home.is_here else self._far
        return self._current.staging(step, name)

    def put_part(self, step: int, name: str, digests: Mapping[str, str]) -> None:
        self._current.put_part(step, name, digests)


def _again_and_again(act: Callable[[], _Result]) -> _Result:
    for pause_s in PAUSES_S:
        try:
            return act()
        except TransferFailed as why:
            if why.refused:
                raise CheckpointError(str(why)) from why
            time.sleep(pause_s)
    try:
        return act()
    except TransferFailed as why:
        raise CheckpointError(str(why)) from why
