"""Names of tensors: by layer in a checkpoint, and as the model itself has them."""

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy
import torch

from holdfast.errors import ConfigError
from holdfast.job import Job
from holdfast.job_call import load_job
from holdfast.protocol.messages import MODEL
from holdfast.storage.contents import Checkpoint


class ModelConfig(Protocol):
    """Of a model of ``transformers``."""

    def save_pretrained(self, save_directory: Path, /) -> object: ...


Naming = Callable[[str], str]


def by_layer(key: str) -> str:
    """In a list of layers a tensor has the name that a checkpoint has for it."""
    return key


class OwnNames(NamedTuple):
    of: Naming = by_layer  # "3.self_attn.q_proj.weight" -> what the model itself calls it
    config: ModelConfig | None = None  # None: the model is a list of layers


def named_by(names: Mapping[str, str]) -> Naming:
    """Without the job, whose layers would stay with it."""
    return lambda key: names.get(key, key)


def own_names(checkpoint: Checkpoint, job: str = "") -> OwnNames:
    """All that is exported is named through here. The code of a job that has a model is run to know
    the model's names. ``job``: a reference to it; empty: the one that the checkpoint names."""
    origin = checkpoint.origin
    if MODEL not in origin.traits:
        return OwnNames()
    if not job and not origin.job:
        raise ConfigError(
            f"{checkpoint.directory}: does not say which job it is of, and the names of its model "
            "are not known without it; export the result where it was trained"
        )
    args = origin.settings.get("job", {}).get("args", ())
    made = load_here(job or origin.job, checkpoint.seed, origin.job_sha256, args)
    return OwnNames(named_by(made.own_names), _config(made.model))


def load_here(reference: str | Path, seed: int, sha256: str = "", args: Sequence[str] = ()) -> Job:
    """In a process of the user's own: its random generators go on as before."""
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    try:
        return load_job(reference, seed, sha256, args)
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        numpy.random.set_state(before[2])


def _config(model: Any) -> ModelConfig | None:
    """Of a model of ``transformers``: as its own ``save_pretrained`` writes it."""
    config: Any = copy.deepcopy(getattr(model, "config", None))
    if not hasattr(config, "save_pretrained"):
        return None
    config.architectures = [type(model).__name__]
    config.dtype = model.dtype
    made: ModelConfig = config
    return made
