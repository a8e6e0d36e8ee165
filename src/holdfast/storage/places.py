"""Where a worker finds what it is told of by name: in the run directory, or wherever that is."""

import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from holdfast import names
from holdfast.checkpoint_address import is_address
from holdfast.config import RunConfig
from holdfast.errors import CheckpointError, TransferFailed
from holdfast.files.courier import Courier
from holdfast.storage.contents import Checkpoint
from holdfast.storage.far import FarStates, FarStore, HomeOrFarStore
from holdfast.storage.home import Home, scratch_name
from holdfast.storage.log.copier import OWN_LOGS
from holdfast.storage.log.segment import tidy_root
from holdfast.storage.manifest import MANIFEST
from holdfast.storage.remote.remote_store import RemoteStore
from holdfast.storage.run_paths import (
    LOG_COPIES,
    checkpoint_place,
    log_directory,
    rebuilt_states,
)
from holdfast.storage.scratch import scratch_at, scratch_base
from holdfast.storage.store import PartStore
from holdfast.storage.stores import OpenPart, load, part_folder, store_of


@dataclass(frozen=True)
class Places:
    """What a worker was told at its start. Later it is told names, which are looked for here."""

    run_dir: str
    resumed: str  # checkpoint that the run went on from; empty: none
    log_dir: str  # one folder a worker is in it
    log_mirror: str  # the same again; empty: none
    address: str = ""  # of checkpoints; empty: they are in the run directory
    home: Home = field(default_factory=lambda: Home(""))
    courier: Courier | None = None  # to the run directory; None: it is seen from here

    @classmethod
    def of(cls, run_dir: str, resumed: str, config: RunConfig) -> "Places":
        """Of a worker that sees the run directory."""
        mirror = config.recovery.log_mirror
        log_dir = str(log_directory(run_dir, config))
        return cls(run_dir, resumed, log_dir, mirror, config.checkpoint.dir)

    # --- this machine ---

    def own_dir(self) -> Path:
        """A directory that is seen from here: the run's own, or one of this machine."""
        return Path(self.run_dir) if self.home.is_here else self._scratch()

    def _scratch(self) -> Path:
        """Private, and the same for all workers of this launch here. OSError: it cannot be had."""
        assert self.courier is not None, "who has no courier is at home"
        base = scratch_base(os.environ)
        of_run = scratch_at(base / scratch_name(self.courier.secret)).hold()
        own = of_run / str(self.courier.generation)
        if not own.exists():
            own.mkdir(mode=0o700, exist_ok=True)
            for old in of_run.iterdir():  # of a launch that is past
                if old.name.isdecimal() and int(old.name) < self.courier.generation:
                    shutil.rmtree(old, ignore_errors=True)
        return own

    def leave(self) -> None:
        """The run is over: nothing of it stays on a machine that does not see its directory."""
        if self.courier is not None and not self.home.is_here:
            with suppress(OSError):  # it cannot be had: nothing is there
                shutil.rmtree(self._scratch().parent, ignore_errors=True)

    # --- logs ---

    def log_root(self) -> Path:
        """Of this machine; one folder a worker is in it. OSError: it cannot be had."""
        return Path(self.log_dir) if self.home.is_here else self._scratch() / "log"

    def log_roots(self) -> dict[str, Path]:
        """All that may be read on this machine."""
        return self._written_here() | self.log_copies()

    def _written_here(self) -> dict[str, Path]:
        mirror = {"mirror": Path(self.log_mirror)} if self.log_mirror else {}
        return {OWN_LOGS: self.log_root(), **mirror}

    def log_copy(self, machine: str) -> Path:
        """Where the copy of another machine's logs is on this one."""
        return self.log_root() / LOG_COPIES / machine

    def log_copies(self) -> dict[str, Path]:
        """Of the logs of other machines."""
        folder = self.log_root() / LOG_COPIES
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return {f"copy of {path.name}": path for path in found}

    def tidy_logs(self, run: str, step: int, gone: Collection[str]) -> None:
        """Of this machine: what is of another history, and what ``gone`` need no more."""
        with suppress(OSError):  # it only takes room
            for root in self._written_here().values():
                tidy_root(root, run, step, gone)
            for root in self.log_copies().values():  # nobody else trims them
                tidy_root(root, run, step, os.listdir(root))

    # --- parts and states ---

    def store(self) -> PartStore:
        far = self._far
        if self.address:
            return RemoteStore(self.address, Path(self.run_dir), self.own_dir)
        if far is None:
            return store_of(Path(self.run_dir), "")
        return HomeOrFarStore(self.home, FarStore(far, self._scratch))

    @property
    def _far(self) -> FarStates | None:
        return None if self.courier is None else FarStates(self.courier, self._scratch)

    def state(self, name: str) -> str:
        """Directory or address of a checkpoint, or of a state that was rebuilt.

        ProtocolError if it is no such name.
        """
        if names.RESUMED.fits(name):
            return self.resumed
        if names.REBUILT.fits(name):
            return str(rebuilt_states(self.run_dir) / name)
        step = int(names.CHECKPOINT.check(name, "checkpoint").removeprefix("step-"))
        return checkpoint_place(self.run_dir, self.address, step)

    def open_state(self, name: str) -> tuple[Checkpoint, OpenPart]:
        """Its manifest, and how to get at its parts. CheckpointError: it cannot be had."""
        place, far = self.state(name), self._far
        if far is None or is_address(place) or self.home.is_here:
            return load(place), part_folder
        manifest = far.manifest(name)
        if _read(Path(place) / MANIFEST) == manifest:  # its files are held against it, too
            return load(place), part_folder
        return far.checkpoint(name, manifest), partial(far.fetched, name)

    def new_state(self, name: str) -> Path:
        """An empty folder, in which a rebuilt state is written before it is put."""
        folder = rebuilt_states(self.own_dir()) / names.REBUILT.check(name, "state")
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def put_state(self, name: str, parts: Mapping[str, Mapping[str, str]]) -> None:
        """``parts``: of the new state, each with the SHA-256 of its files. The manifest is last."""
        far = self._far
        if far is None or self.home.is_here:
            return
        folder = rebuilt_states(self.own_dir()) / name
        try:
            for part, digests in parts.items():
                far.put_part(name, part, folder / part, digests)
            far.put_manifest(name, folder / MANIFEST)
        except TransferFailed as why:
            raise CheckpointError(str(why)) from why
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
