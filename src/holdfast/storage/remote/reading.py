"""Checkpoints at an address, for those who read: which there are, and a part, verified."""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint_address import parse_address
from holdfast.errors import CheckpointError
from holdfast.storage.contents import Checkpoint, Part
from holdfast.storage.manifest import read_manifest
from holdfast.storage.remote import keys
from holdfast.storage.remote.bucket import ObjectStore
from holdfast.storage.remote.object_bucket import open_bucket

PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # between tries: a server may be away for a moment

_Result = TypeVar("_Result")


def find_at(place: str, home: str = "") -> Checkpoint:
    """The checkpoint at an address, or the newest of a run's. ``home``: its run directory."""
    address, name = parse_address(place)
    bucket = open_bucket(address)
    if name:
        return load_at(bucket, name, home)
    sealed = sealed_at(bucket)
    if not sealed:
        expected = f"expected {address}/{keys.CHECKPOINTS}step-*/manifest.json"
        raise CheckpointError(f"{place}: no checkpoint below it; {expected}")
    return load_at(bucket, sealed[-1], home)


def all_at(address: str, home: str = "") -> list[Checkpoint]:
    """The oldest first."""
    bucket = open_bucket(address)
    return [load_at(bucket, name, home) for name in sealed_at(bucket)]


def sealed_at(bucket: ObjectStore) -> list[str]:
    return keys.sealed(bucket.sizes(keys.CHECKPOINTS))


def load_at(bucket: ObjectStore, name: str, home: str = "") -> Checkpoint:
    key = keys.manifest(name)
    data = _again_and_again(lambda: bucket.read(key))
    directory = f"{bucket.address}/{keys.CHECKPOINTS}{name}"
    try:
        if data is None:
            raise CheckpointError("it has no manifest")
        found = read_manifest(lambda: data, directory)
        if found.step != keys.step_of(name):
            raise CheckpointError(f"its manifest is of step {found.step}")
    except CheckpointError as why:
        raise CheckpointError(_refusal(bucket, name, str(why))) from why
    return found.from_run(home)


@contextmanager
def fetched(checkpoint: Checkpoint, part: Part) -> Iterator[Path]:
    """A folder with the files of a part, each as it was written; it is gone afterwards."""
    address, name = parse_address(checkpoint.directory)
    bucket = open_bucket(address)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        for file, key in keys.part_files(name, part).items():
            get = functools.partial(_fetch, bucket, key, Path(folder) / file)
            if _again_and_again(get) != part.files[file]:
                shown = f"{part.directory}/{file}"
                reason = f"{shown} was changed since it was written (SHA-256 differs)"
                raise CheckpointError(_refusal(bucket, name, reason))
        yield Path(folder)


def _fetch(bucket: ObjectStore, key: str, path: Path) -> str:
    path.unlink(missing_ok=True)
    return bucket.fetch(key, path)


def _again_and_again(act: Callable[[], _Result]) -> _Result:
    for pause_s in PAUSES_S:
        try:
            return act()
        except CheckpointError:
            time.sleep(pause_s)
    return act()


def _refusal(bucket: ObjectStore, name: str, reason: str) -> str:
    older = [one for one in sealed_at(bucket) if keys.step_of(one) < keys.step_of(name)]
    folder = f"{bucket.address}/{keys.CHECKPOINTS}"
    cure = f"resume an older one: {folder}{older[-1]}" if older else "start the run anew"
    return f"checkpoint {folder}{name}: {reason}; {cure}"
