"""What a resumed run takes from its checkpoint, what may be changed, and what may not."""

import shlex
from collections.abc import Mapping
from typing import Any

from holdfast.api.job_source import JobLike, job_source
from holdfast.config import RunConfig, known_settings
from holdfast.errors import Argument, CheckpointError, ConfigError
from holdfast.job_reference import JobSource, Reference
from holdfast.storage.manifest import Checkpoint
from holdfast.validation import why_stopped

_BITS = (  # settings that the bits of the result depend on
    "train.seed",
    "parallel.microbatches",
    "gradients.mode",
    "train.precision",
    "train.clip_value",
    "train.noise",
    "train.noise_decay",
    "optimizer.masters",
    "stage.compile",
    "workers.compute_threads",
)
_OF_A_LAYOUT = {  # given for one layout, of no use in another
    "parallel.cut": ("parallel.stages",),
    "schedule.file": ("parallel.stages", "parallel.pipelines"),
}


def remembered(checkpoint: Checkpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the run that wrote it, with those that are ``given`` now on top."""
    values: dict[str, Any] = known_settings(checkpoint.origin.settings)
    if checkpoint.address:  # they may have been copied since
        values.setdefault("checkpoint", {})["dir"] = checkpoint.address
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


def check_continues(checkpoint: Checkpoint, config: RunConfig, *, may_differ: bool) -> None:
    """CheckpointError for whatever would make it another run. ``may_differ``: the job."""
    settings, wanted = checkpoint.origin.settings, config.to_dict()
    args = tuple(_get(settings, "job.args") or ())
    if args != config.job.args and not may_differ:
        raise CheckpointError(
            f"arguments of the job ({shlex.join(config.job.args) or 'none'}): the checkpoint "
            f"{checkpoint.directory} was written with {shlex.join(args) or 'none'}. Give the same, "
            "or add ",
            Argument("changed_job", True),
            ": the result is then another run's",
        )
    weights = _get(settings, "job.weights") or ""
    if config.job.weights != weights:
        raise CheckpointError(
            Argument("weights", config.job.weights),
            f": the run has begun, from {weights or 'parameters that its job has made'}, and "
            f"goes on from the checkpoint {checkpoint.directory}. Start a new run, or leave it out",
        )
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
    why = why_stopped(checkpoint.origin.validations, config.validation)
    if why:
        raise CheckpointError(
            f"validation.patience={config.validation.patience}: the checkpoint "
            f"{checkpoint.directory} is of a run that has stopped early ({why}); to train on give "
            "more patience, or validation.patience=0"
        )
    if checkpoint.step >= config.train.steps:
        raise CheckpointError(
            f"train.steps={config.train.steps}: the checkpoint {checkpoint.directory} is at step "
            f"{checkpoint.step} already; nothing is left to do. Give more ",
            Argument("steps"),
        )


def job_to_resume(
    given: JobLike | None, checkpoint: Checkpoint, *, may_differ: bool, in_threads: bool
) -> JobSource:
    """The one that is given, or that of the run which is resumed."""
    origin = checkpoint.origin
    if given is None and not origin.job:
        raise ConfigError(
            f"no job file: {checkpoint.directory} does not say which one it is of; give it as ",
            Argument("job"),
        )
    if given is None and not Reference.parse(origin.job).path.is_file():
        raise ConfigError(
            f"{origin.job}: no such job file; the run began with it. Give it as ", Argument("job")
        )
    job = job_source(origin.job if given is None else given, in_threads=in_threads)
    if origin.job_sha256 and job.sha256 != origin.job_sha256 and not may_differ:
        raise CheckpointError(
            f"{job.origin or job.name}: has SHA-256 {job.sha256[:12]}, the checkpoint "
            f"{checkpoint.directory} is of a job with {origin.job_sha256[:12]}. Put it back as it "
            "was, or add ",
            Argument("changed_job", True),
            ": the result is then another run's",
        )
    return job
