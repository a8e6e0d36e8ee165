"""What a job is besides its file and its layers: compared between workers, and at a resume."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.job import Job, is_stream
from holdfast.job_file import imports
from holdfast.job_reference import Reference
from holdfast.protocol.messages import (
    METRICS,
    MICROBATCH_SIZE,
    MODEL,
    SAMPLES,
    VALIDATION_SAMPLES,
    WEIGHT,
)
from holdfast.runtime.job.naming import make_optimizer, takes_names

_PARAMETERS = ("params", "param_names")
_PLAIN = (bool, int, float, str, type(None))


def job_traits(job: Job, reference: str, sha256: str) -> dict[str, str]:
    """Name, as an error shows it -> value. ``reference``: what the job was loaded from."""
    imported = imports(Reference.parse(reference), sha256)
    return {
        **{f"imports of the job ({file})": digest for file, digest in imported.items()},
        SAMPLES: "a stream" if is_stream(job.data) else str(len(job.data)),
        MICROBATCH_SIZE: str(job.microbatch_size),
        "Job.clip_norm": str(job.clip_norm),
        **({} if job.weight is None else {WEIGHT: "given"}),
        **({"Job.unfreeze": _unfreeze(job)} if job.unfreeze else {}),
        **_of_validation(job),
        **({} if job.model is None else {MODEL: type(job.model).__name__}),
        **_of_optimizer(job),
    }


def check_validation(job: Job, config: RunConfig) -> None:
    """ConfigError: the settings ask for what the job has not."""
    validation = config.validation
    for name in ("every", "microbatches", "keep_best", "patience"):
        value = getattr(validation, name)
        if value and job.validation is None:
            raise ConfigError(
                f"validation.{name}={value}: the job has nothing to validate with; give its Job a "
                "validation=..., or leave the setting out"
            )
    judged_by = validation.judged_by
    if judged_by != "loss" and judged_by not in job.metrics:
        known = ", ".join(["loss", *job.metrics])
        raise ConfigError(
            f"validation.keep_best={validation.keep_best}: Job.metrics has no {judged_by!r}; "
            f"known are {known}"
        )


def check_unchanged(worker: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """A worker loads the job again when it is given another stage."""
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"{name} is {now.get(name)}, and was {before.get(name)} when worker {worker} first "
                "loaded the job: put it back as it was, or start a new run"
            )


def _of_validation(job: Job) -> dict[str, str]:
    if job.validation is None:
        return {}
    return {VALIDATION_SAMPLES: str(len(job.validation)), METRICS: " ".join(job.metrics)}


def _of_optimizer(job: Job) -> dict[str, str]:
    """Made for all parameters, as for a single stage, and thrown away."""
    keys: dict[nn.Parameter, str] = {}
    for number, layer in enumerate(job.layers):
        for name, parameter in layer.named_parameters():
            if parameter.requires_grad:
                keys.setdefault(parameter, f"{number}.{name}")
    if not keys:
        return {}
    made = make_optimizer(job, list(keys.values()), keys)
    if not isinstance(made, Optimizer):
        return {}  # refused when a stage is built
    usual = {name: _plain(value) for name, value in made.defaults.items()}
    traits = {f"Job.optimizer, {name}": value for name, value in usual.items()}
    for number, group in enumerate(made.param_groups):
        own = {name: _plain(value) for name, value in group.items() if name not in _PARAMETERS}
        if takes_names(job.optimizer):
            traits[f"Job.optimizer, parameters of group {number}"] = _digest(
                [keys[parameter] for parameter in group["params"] if parameter in keys]
            )
        for name, value in own.items():
            if value != usual.get(name):
                traits[f"Job.optimizer, {name} of group {number}"] = value
    return {"Job.optimizer": type(made).__name__, **traits}


def _unfreeze(job: Job) -> str:
    steps = ", ".join(str(after) for after in sorted(job.unfreeze))
    told = [f"{key} {after}" for key, after in job.frozen_steps.items()]
    return f"after {steps} steps: {_digest(told)}"


def _digest(keys: Sequence[str]) -> str:
    return f"{len(keys)}, sha256 {sha256(' '.join(keys).encode()).hexdigest()[:12]}"


def _plain(value: object) -> str:
    """A text that is the same in every process: nothing with an address in it."""
    if isinstance(value, Tensor):
        return str(value.tolist())
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_plain, value))})"
    return str(value) if isinstance(value, _PLAIN) else type(value).__name__
