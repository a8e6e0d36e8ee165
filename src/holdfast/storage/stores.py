"""Which place keeps the checkpoints of a run, and how one is found: by directory or address."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from holdfast.checkpoint_address import ADDRESS, is_address
from holdfast.storage import manifest
from holdfast.storage.contents import Checkpoint, Part
from holdfast.storage.local_store import LocalStore
from holdfast.storage.remote.reading import all_at, fetched, find_at
from holdfast.storage.remote.remote_store import RemoteStore
from holdfast.storage.store import Store

OpenPart = Callable[[Checkpoint, Part], AbstractContextManager[Path]]  # its files, verified

_KEPT_AT = "checkpoints.json"  # in the run directory: the address, if they are elsewhere


def store_of(run_dir: Path, address: str) -> Store:
    """``address`` empty: the run directory."""
    return RemoteStore(address, run_dir) if address else LocalStore(run_dir)


def note_address(run_dir: Path, address: str) -> None:
    """For those who are told only of the run directory."""
    path = run_dir / _KEPT_AT
    if address:
        path.write_text(json.dumps({"address": address}))
    else:
        path.unlink(missing_ok=True)


def noted_address(run_dir: Path) -> str:
    """Empty: there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        address = json.loads((run_dir / _KEPT_AT).read_text())["address"]
        if ADDRESS.fits(address):
            return str(address)
    return ""


def find(place: str | Path) -> Checkpoint:
    """The checkpoint at ``place``: itself, or the newest of a run's directory or address."""
    if isinstance(place, str) and is_address(place):
        return find_at(place)
    address = noted_address(Path(place))
    if address and (found := all_at(address, str(place))[-1:]):
        return found[0]
    return manifest.find(place)


def all_checkpoints(run_dir: str | Path) -> list[Checkpoint]:
    """Those of a run, the oldest first."""
    address = noted_address(Path(run_dir))
    return all_at(address, str(run_dir)) if address else manifest.all_checkpoints(run_dir)


def has_checkpoint(run_dir: Path) -> bool:
    """Or may have one, elsewhere."""
    return bool(noted_address(run_dir)) or manifest.has_checkpoint(run_dir)


def load(place: str) -> Checkpoint:
    """The one that is there."""
    return find_at(place) if is_address(place) else manifest.load_manifest(Path(place))


@contextmanager
def part_folder(checkpoint: Checkpoint, part: Part) -> Iterator[Path]:
    """Its files, verified."""
    if checkpoint.address:
        with fetched(checkpoint, part) as folder:
            yield folder
    else:
        yield manifest.verify(checkpoint, part)
