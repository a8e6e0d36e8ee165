"""Where a run keeps its logs and rebuilt states, and whether it may. No torch, no tensors.

A directory of logs belongs to one run directory, which a small file in it names: what another run
has left there is never touched.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.checkpoint_address import checkpoint_at
from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.storage.log.segment import trim_folder
from holdfast.storage.manifest import checkpoints, partial_directory

LOG_COPIES = "holdfast-copies"  # in a directory of logs: one folder for each machine's
_OWNER = "holdfast-log.json"
_WORKER = re.compile(r"[0-9]+\.[0-9]+")


def checkpoint_place(run_dir: str | Path, address: str, step: int) -> str:
    """Directory or address of a checkpoint of the run's own."""
    if address:
        return checkpoint_at(address, step)
    return str(partial_directory(run_dir, step).with_suffix(""))


def state_name(run_dir: str | Path, directory: str, address: str = "") -> str:
    """What ``Places.state`` finds it by."""
    if address and directory.startswith(f"{address}/checkpoints/"):
        return directory.rpartition("/")[2]
    place = Path(directory)
    own = [rebuilt_states(run_dir)] if address else [checkpoints(run_dir), rebuilt_states(run_dir)]
    return place.name if not directory or place.parent in own else "resumed"


def log_directory(run_dir: str | Path, config: RunConfig) -> Path:
    """One folder a worker below it."""
    return Path(config.recovery.log_dir or Path(run_dir) / "log")


def rebuilt_directory(run_dir: str | Path, version: int, first_stage: int, epoch: int) -> Path:
    """Of the state of stages that nobody held, until somebody has loaded it.

    Of its own in each epoch: a writer that was given up may still be busy.
    """
    return rebuilt_states(run_dir) / f"step-{version:08d}-from-stage-{first_stage}-{epoch}"


def check_logs(run_dir: Path, config: RunConfig) -> None:
    """Find out now whether the logs can be written. Leaves nothing behind."""
    directories = _directories(run_dir, config)
    for key, directory in directories.items():
        _check_apart(key, directory, run_dir, directories)
        try:
            _check_free(key, directory, run_dir)
            _check_writable(directory)
        except OSError as why:
            raise ConfigError(
                f"{key}={directory}: cannot be written ({why.strerror}); choose a directory you own"
            ) from why


def claim_logs(run_dir: Path, config: RunConfig) -> None:
    """Make the directories; what an earlier attempt at this run has logged is of no use now."""
    check_logs(run_dir, config)  # somebody else may have come since
    drop_logs(run_dir, config)
    for directory in _directories(run_dir, config).values():
        made = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        owner = {"run_dir": str(run_dir.resolve()), "made": made}
        (directory / _OWNER).write_text(json.dumps(owner))


def clear_logs(run_dir: Path, config: RunConfig) -> None:
    """Of all workers; none of them writes now. Nothing else that is there is touched."""
    for directory in _directories(run_dir, config).values():
        with suppress(OSError):  # it is gone, or cannot be read: then nobody reads it later either
            for folder in directory.glob("*"):
                ours = _WORKER.fullmatch(folder.name) or folder.name == LOG_COPIES
                if ours and folder.is_dir():
                    shutil.rmtree(folder, ignore_errors=True)


def trim_logs(
    run_dir: Path, config: RunConfig, workers: Iterable[WorkerId], run: str, step: int
) -> None:
    """Of workers that are gone: nobody else does it for them."""
    for directory in _directories(run_dir, config).values():
        for worker in workers:
            with suppress(OSError):  # it only takes room
                trim_folder(directory / str(worker), run, step)


def drop_logs(run_dir: Path, config: RunConfig) -> None:
    """The run is finished, or begins. Only what a run has put there goes."""
    _drop_rebuilt(rebuilt_states(run_dir))
    clear_logs(run_dir, config)
    for directory in _directories(run_dir, config).values():
        made = _owned(directory).get("made", False)
        with suppress(OSError):  # it is not empty, or not there
            (directory / _OWNER).unlink()
            if made:
                directory.rmdir()


def _drop_rebuilt(folder: Path) -> None:
    with suppress(OSError):  # it is not empty, or not there
        for state in folder.glob("step-*-from-stage-*"):
            shutil.rmtree(state, ignore_errors=True)
        folder.rmdir()


def rebuilt_states(run_dir: str | Path) -> Path:
    return Path(run_dir) / "rebuilt"


def _directories(run_dir: Path, config: RunConfig) -> dict[str, Path]:
    if config.recovery.log == "none":
        return {}
    found = {"recovery.log_dir": log_directory(run_dir, config)}
    if config.recovery.log_mirror:
        found["recovery.log_mirror"] = Path(config.recovery.log_mirror)
    return found


def _check_apart(key: str, directory: Path, run_dir: Path, directories: Mapping[str, Path]) -> None:
    """No log where something else is kept, or the other log."""
    place, run = directory.resolve(), run_dir.resolve()
    log = directories["recovery.log_dir"]
    others = {} if directory is log else {"the log itself": log.resolve()}
    kept = {"the run directory": run, "the checkpoints": run / "checkpoints"}
    kept |= {"the rebuilt states": rebuilt_states(run)}
    for what, other in {**others, **kept}.items():
        inside = other in place.parents and what != "the run directory"
        if place == other or place in other.parents or inside:
            where = "is" if place == other else ("is inside" if inside else "is above")
            raise ConfigError(f"{key}={directory}: {where} {what}; choose a directory of its own")


def _check_free(key: str, directory: Path, run_dir: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{key}={directory}: is a file; choose a directory")
    owner = _owner(directory)
    if owner != str(run_dir.resolve()) and _is_used(directory, owner):
        whose = f"the log of another run, {owner}" if owner else "files that are no log"
        raise ConfigError(f"{key}={directory}: holds {whose}; choose another directory")


def _owner(directory: Path) -> str:
    """The run directory whose logs are here; empty: nobody's."""
    return str(_owned(directory).get("run_dir", ""))


def _owned(directory: Path) -> dict[str, object]:
    try:
        return dict(json.loads((directory / _OWNER).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _is_used(directory: Path, owner: str) -> bool:
    return bool(owner) or (directory.is_dir() and any(directory.iterdir()))


def _check_writable(directory: Path) -> None:
    existing = directory
    while not existing.exists():
        existing = existing.parent
    os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=existing))
