"""Names of tensors: by layer in a checkpoint, and as the model itself has them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.storage.contents import Checkpoint


class ModelConfig(Protocol):
    """Of a model of ``transformers``."""

    def save_pretrained(self, save_directory: Path, /) -> object: ...


class OwnNames(NamedTuple):
    of: Callable[[str], str] = lambda key: key  # "3.self_attn.q_proj.weight" -> the model's name
    config: ModelConfig | None = None  # None: the model is a list of layers


def own_names(checkpoint: Checkpoint) -> OwnNames:
    """All that is exported is named through here. A list of layers has the names of its
    checkpoints."""
    return OwnNames()
