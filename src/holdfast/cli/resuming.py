"""What a resumed run takes from its checkpoint, what may be changed, and what may not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config import RunConfig, known_keys
from holdfast.errors import CheckpointError, ConfigError
from holdfast.recovery.manifest import Checkpoint, Origin, file_digest

_BITS = (  # settings that the bits of the result depend on
    "train.seed",
    "parallel.microbatches",
    "gradients.mode",
    "workers.compute_threads",
)
_OF_A_LAYOUT = {  # given for one layout, of no use in another
    "parallel.cut": ("parallel.stages",),
    "schedule.file": ("parallel.stages", "parallel.pipelines"),
}


def remembered(checkpoint: Checkpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the run that wrote it, with those that are ``given`` now on top.

    Those that are not known here, of a newer version or of one long ago, are left out.
    """
    known = set(known_keys())
    values: dict[str, Any] = {}
    for section, settings in checkpoint.origin.settings.items():
        kept = {name: value for name, value in settings.items() if f"{section}.{name}" in known}
        values |= {section: kept} if kept else {}
    for key, causes in _OF_A_LAYOUT.items():
        if any(_get(given, cause) not in (None, _get(values, cause)) for cause in causes):
            section, _, name = key.partition(".")
            values.get(section, {}).pop(name, None)
    for section, settings in given.items():
        if not isinstance(settings, Mapping):
            return {**values, section: settings}  # refused by name when it is read
        values[section] = {**values.get(section, {}), **settings}
    return values


def _get(values: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    settings = values.get(section, {})
    return settings.get(name) if isinstance(settings, Mapping) else None


def check_continues(checkpoint: Checkpoint, config: RunConfig) -> None:
    """CheckpointError for whatever would make it another run."""
    settings, wanted = checkpoint.origin.settings, config.to_dict()
    written: dict[str, Any] = {key: _get(settings, key) for key in _BITS}
    written |= {"train.seed": checkpoint.seed, "parallel.microbatches": checkpoint.microbatches}
    if config.workers.allow_mixed:  # that the result is not exact has been accepted
        written["workers.compute_threads"] = None
    for key, found in written.items():
        if found is not None and found != _get(wanted, key):
            raise CheckpointError(
                f"{key}={_get(wanted, key)}: the checkpoint {checkpoint.directory} was written "
                f"with {found}; the result would differ. Resume with {key}={found}"
            )
    emulated = _get(settings, "device.emulate")
    if emulated is not None and bool(emulated) != bool(config.device.emulate):
        raise CheckpointError(
            f"device.emulate={config.device.emulate}: the checkpoint {checkpoint.directory} was "
            f"written with {emulated or 'none'}, and another model; resume with device.emulate="
            f"{emulated}"
        )
    if checkpoint.step >= config.train.steps:
        raise CheckpointError(
            f"train.steps={config.train.steps}: the checkpoint {checkpoint.directory} is at step "
            f"{checkpoint.step} already; nothing is left to do. Give more --steps"
        )


def job_file(given: str | None, checkpoint: Checkpoint | None, *, may_differ: bool) -> Path:
    """The one that is given, or that of the run which is resumed."""
    origin = Origin() if checkpoint is None else checkpoint.origin
    if not given and not origin.job:
        old = f" {checkpoint.directory} does not say which one it is of" if checkpoint else ""
        raise ConfigError(f"no job file:{old} give one: holdfast train JOB.py ...")
    job = Path(given or origin.job)
    if not job.is_file():
        where = "" if given else "; the run began with it. Give it: holdfast train JOB.py --resume"
        raise ConfigError(f"{job}: no such job file{where}")
    if checkpoint is not None and origin.job_sha256 and not may_differ:
        found = file_digest(job)
        if found != origin.job_sha256:
            raise CheckpointError(
                f"{job}: has SHA-256 {found[:12]}, the checkpoint {checkpoint.directory} is of a "
                f"job with {origin.job_sha256[:12]}. Put it back as it was, or add --changed-job: "
                "the result is then another run's"
            )
    return job
