"""Files of named tensors, of which one is read at a time."""

import json
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from holdfast.errors import ConfigError
from holdfast.storage.contents import Checkpoint, Part
from holdfast.storage.manifest import MANIFEST, find, sealed, verify
from holdfast.weights.place import KINDS

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_OF_TORCH = (".pt", ".pth", ".bin")
_FLOATING = ("F", "BF")
AVERAGE = "holdfast.ema"  # beside a weight, in checkpoints and copies: its running average


class Stored(NamedTuple):
    """A tensor in a file, not read yet."""

    shape: tuple[int, ...]
    is_floating: bool
    num_bytes: int
    get: Callable[[], Tensor]


class WeightFiles(NamedTuple):
    """``parts`` are what tells two of them apart: files, or one manifest that names them all."""

    tensors: Mapping[str, Stored]
    parts: tuple[Path, ...]


def open_weights(path: Path) -> WeightFiles:
    """Whatever a user has: ConfigError, in one line, if it is nothing of the kind."""
    if path.is_dir() and ((path / MANIFEST).is_file() or sealed(path)):
        return _of_checkpoint(find(path))
    files = _in_folder(path) if path.is_dir() else [path]
    tensors: dict[str, Stored] = {}
    for file in files:
        tensors |= _of_file(file)
    return WeightFiles(tensors, tuple(files))


def _in_folder(folder: Path) -> list[Path]:
    for name in _INDEXES:
        if (folder / name).is_file():
            return _indexed(folder / name)
    for pattern in ("*.safetensors", "pytorch_model.bin"):
        if found := sorted(folder.glob(pattern)):
            return found
    raise ConfigError(f"{folder}: holds no weights; expected {KINDS}")


def _indexed(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("names files elsewhere, or none")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise ConfigError(f"{index}: cannot be read ({why}); expected an index of files") from why
    for name in names:
        if not (index.parent / name).is_file():
            raise ConfigError(f"{index}: names {name}, which is not beside it; get all files")
    return [index.parent / name for name in names]


def _of_file(path: Path) -> dict[str, Stored]:
    if path.suffix == ".safetensors":
        return safetensors_in(path)
    if path.suffix in _OF_TORCH:
        return _state_dict_in(path)
    raise ConfigError(f"{path}: expected {KINDS}")


# --- safetensors ---


def safetensors_in(path: Path) -> dict[str, Stored]:
    try:
        file: Any = safe_open(path, framework="pt")
        return {name: _stored(file, name) for name in file.keys()}  # noqa: SIM118  no mapping
    except (SafetensorError, OSError) as why:
        raise ConfigError(f"{path}: cannot be read as safetensors ({why})") from why


def _stored(file: Any, name: str) -> Stored:
    """The tensor is mapped, not read: its bytes come from the disk when they are looked at."""
    found = file.get_slice(name)
    shape, dtype = tuple(found.get_shape()), str(found.get_dtype())
    get = partial(file.get_tensor, name)
    num_bytes = get().nbytes
    return Stored(shape, dtype.startswith(_FLOATING), num_bytes, get)


# --- what torch.save has written ---


def _state_dict_in(path: Path) -> dict[str, Stored]:
    found = _loaded(path)
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"{path}: holds a {type(found).__name__}: expected a state dict")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ConfigError(
                f"{path}: {name!r} is a {type(tensor).__name__}: expected a state dict, names and "
                "tensors; write it with torch.save(model.state_dict(), ...)"
            )
    return {
        name: Stored(
            tuple(tensor.shape), tensor.is_floating_point(), tensor.nbytes, partial(_itself, tensor)
        )
        for name, tensor in found.items()
    }


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _loaded(path: Path) -> Any:
    """Mapped if its form allows that. Only tensors: a file of others may not run code here."""
    try:
        with open(path, "rb") as file:
            is_zip = file.read(4) == b"PK\3\4"
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except (OSError, RuntimeError, pickle.UnpicklingError, ValueError, EOFError) as why:
        [reason, *_] = str(why).strip().splitlines() or [type(why).__name__]
        raise ConfigError(f"{path}: cannot be read as a state dict ({reason})") from why


# --- checkpoints ---


def weights_in(folder: Path, part: Part, *, average: bool = False) -> dict[str, Stored]:
    """Of a part of a checkpoint, without what belongs to the optimizer. ``average``: where one of
    the weights was kept it is in their place."""
    tensors: dict[str, Stored] = {}
    for name in sorted(part.files):
        if name.endswith(".safetensors"):
            tensors |= safetensors_in(folder / name)
    own = {key: stored for key, stored in tensors.items() if "/" not in key}
    if not average:
        return own
    averages = {key: tensors.get(f"{key}/{AVERAGE}") for key in own}
    return {key: _averaged(stored, averages[key]) for key, stored in own.items()}


def _averaged(own: Stored, average: Stored | None) -> Stored:
    """Of the type of the weight: averages are kept in fp32."""
    if average is None:
        return own
    get = average.get
    return own._replace(get=lambda: get().to(own.get().dtype))


def _of_checkpoint(checkpoint: Checkpoint) -> WeightFiles:
    directory = Path(checkpoint.directory)
    tensors: dict[str, Stored] = {}
    for part in checkpoint.parts:
        check = _Once(partial(verify, checkpoint, part))
        for key, stored in weights_in(directory / part.directory, part).items():
            tensors[key] = stored._replace(get=partial(_verified, check, stored.get))
    return WeightFiles(tensors, (directory / MANIFEST,))


def _verified(check: "_Once", get: Callable[[], Tensor]) -> Tensor:
    check()
    return get()


class _Once:
    def __init__(self, act: Callable[[], object]) -> None:
        self._act, self._done = act, False

    def __call__(self) -> None:
        if not self._done:
            self._act()
            self._done = True
