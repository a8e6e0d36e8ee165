"""Where a run keeps its logs and rebuilt states, and whether it may. No torch, no tensors.

A directory of logs belongs to one run directory, which a small file in it names: what another run
has left there is never touched.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.recovery.log_segment import trim_folder

_OWNER = "holdfast-log.json"


def log_directory(run_dir: str | Path, config: RunConfig) -> Path:
    """One folder a worker below it."""
    return Path(config.recovery.log_dir or Path(run_dir) / "log")


def rebuilt_directory(run_dir: str | Path, version: int, first_stage: int) -> Path:
    """Of the state of stages that nobody held, until somebody has loaded it."""
    return _rebuilt(run_dir) / f"step-{version:08d}-from-stage-{first_stage}"


def check_logs(run_dir: Path, config: RunConfig) -> None:
    """Find out now whether the logs can be written. Leaves nothing behind."""
    for key, directory in _directories(run_dir, config).items():
        owner = _owner(directory)
        if directory.exists() and not directory.is_dir():
            raise ConfigError(f"{key}={directory}: is a file; choose a directory")
        if owner != str(run_dir.resolve()) and _is_used(directory, owner):
            whose = f"the log of another run, {owner}" if owner else "files that are no log"
            raise ConfigError(f"{key}={directory}: holds {whose}; choose another directory")
        _check_writable(key, directory)


def claim_logs(run_dir: Path, config: RunConfig) -> None:
    """Make the directories; what an earlier attempt at this run has logged is of no use now."""
    shutil.rmtree(_rebuilt(run_dir), ignore_errors=True)
    for directory in _directories(run_dir, config).values():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _OWNER).write_text(json.dumps({"run_dir": str(run_dir.resolve())}))


def clear_logs(run_dir: Path, config: RunConfig) -> None:
    """Of all workers; none of them writes now."""
    for directory in _directories(run_dir, config).values():
        for folder in [path for path in directory.iterdir() if path.is_dir()]:
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
    """The run is finished."""
    shutil.rmtree(_rebuilt(run_dir), ignore_errors=True)
    for directory in _directories(run_dir, config).values():
        shutil.rmtree(directory, ignore_errors=True)


def _rebuilt(run_dir: str | Path) -> Path:
    return Path(run_dir) / "rebuilt"


def _directories(run_dir: Path, config: RunConfig) -> dict[str, Path]:
    if config.recovery.log == "none":
        return {}
    found = {"recovery.log_dir": log_directory(run_dir, config)}
    if config.recovery.log_mirror:
        found["recovery.log_mirror"] = Path(config.recovery.log_mirror)
    if len({path.resolve() for path in found.values()}) < len(found):
        raise ConfigError(
            f"recovery.log_mirror={config.recovery.log_mirror}: is the log itself; "
            "choose another directory"
        )
    return found


def _owner(directory: Path) -> str:
    """The run directory whose logs are here; empty: nobody's."""
    try:
        return str(json.loads((directory / _OWNER).read_text())["run_dir"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _is_used(directory: Path, owner: str) -> bool:
    return bool(owner) or (directory.is_dir() and any(directory.iterdir()))


def _check_writable(key: str, directory: Path) -> None:
    existing = directory
    while not existing.exists():
        existing = existing.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=existing))
    except OSError as why:
        raise ConfigError(
            f"{key}={directory}: cannot be written ({why.strerror}); choose a directory you own"
        ) from why
