"""Names of tensors: by layer in a checkpoint, and as the model itself has them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

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


def own_names(checkpoint: Checkpoint) -> OwnNames:
    """All that is exported is named through here."""
    return OwnNames()
