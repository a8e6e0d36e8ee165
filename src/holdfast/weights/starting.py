"""The weights that a run starts from, in the place of parameters drawn at random.

A worker takes the tensors of the layers that it holds and reads nothing else.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.errors import ConfigError
from holdfast.observability.text import listed
from holdfast.weights.files import Stored, open_weights
from holdfast.weights.naming import Naming, by_layer

NameMap = Naming | Mapping[str, str] | None
Twins = Mapping[str, Sequence[str]]  # name -> all names of the same tensor, its own included

_WHOLE_BYTES = 64 << 20
_PIECES, _PIECE_BYTES = 1024, 64 << 10
_SHOWN = 3


class Mismatch(NamedTuple):
    """What does not fit: names of the model but ``unexpected``, which are the file's."""

    missing: list[str]
    unexpected: list[str]
    misshaped: list[str]

    def __bool__(self) -> bool:
        return any(self)

    def __str__(self) -> str:
        said = {
            "missing": self.missing,
            "without a place in the job": self.unexpected,
            "of another shape": self.misshaped,
        }
        shown = [f"{len(n)} {what} ({listed(n, _SHOWN)})" for what, n in said.items() if n]
        return f"tensors {', '.join(shown)}"


class StartingWeights:
    """``names``: from a name of the model to that of the file. ``own``: from a name by layer to
    that of the model. Not ``strict``: what does not fit stays as the job has made it."""

    def __init__(self, path: Path, names: NameMap, *, strict: bool, own: Naming = by_layer) -> None:
        self._path, self._names, self._strict, self._own = path, names, strict, own
        self._files = open_weights(path)

    def check(self, wanted: Mapping[str, Tensor], twins: Twins) -> str:
        """``wanted``: all of the model. A line to warn with, or none; ConfigError if strict."""
        mismatch = self._mismatch(wanted, twins)
        if not mismatch:
            return ""
        fitting = len(wanted) - len(mismatch.missing) - len(mismatch.misshaped)
        if self._strict or not fitting:
            strict = " or accept it with job.weights_strict=false" if fitting else ""
            raise ConfigError(
                f"job.weights={self._path}: does not fit the job: {mismatch}; map the names with "
                f"Job.weight_names{',' if strict else ''}{strict}"
            )
        return f"job.weights={self._path}: {mismatch}; {fitting} of {len(wanted)} tensors are taken"

    def fill(self, tensors: Mapping[str, Tensor], twins: Twins) -> None:
        """Some of the model's, in place."""
        with torch.no_grad():
            for key, own in tensors.items():
                stored = self._stored(key, twins)
                if stored is not None and not _misshape(stored, own):
                    own.copy_(stored.get())

    def digest(self) -> str:
        """To compare machines: of all bytes, or of pieces all over files that are large."""
        digest = hashlib.sha256()
        for path in self._files.parts:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            for piece in _pieces(path):
                digest.update(piece)
        return digest.hexdigest()[:16]

    def _stored(self, key: str, twins: Twins) -> Stored | None:
        """Of parameters that are tied a file may have only one: the first that is there counts."""
        found = (self._files.tensors.get(name) for name in self._names_of(key, twins))
        return next((stored for stored in found if stored is not None), None)

    def _names_of(self, key: str, twins: Twins) -> list[str]:
        return [_in_file(self._names, self._own(name)) for name in twins.get(key, (key,))]

    def _mismatch(self, wanted: Mapping[str, Tensor], twins: Twins) -> Mismatch:
        missing, misshaped, used = [], [], set[str]()
        for key, own in wanted.items():
            used.update(self._names_of(key, twins))
            stored = self._stored(key, twins)
            if stored is None:
                missing.append(self._own(key))
            elif why := _misshape(stored, own):
                misshaped.append(f"{self._own(key)}: {why}")
        return Mismatch(missing, sorted(self._files.tensors.keys() - used), misshaped)


def _misshape(stored: Stored, own: Tensor) -> str:
    """Empty: it fits. Floating types are turned into each other."""
    if stored.shape != tuple(own.shape):
        return f"{list(stored.shape)} there, {list(own.shape)} in the job"
    if stored.is_floating != own.is_floating_point():
        return f"not of the job's type, {own.dtype}"
    return ""


def _in_file(names: NameMap, key: str) -> str:
    if names is None:
        return key
    try:
        found = names.get(key, key) if isinstance(names, Mapping) else names(key)
    except Exception as why:
        raise ConfigError(f"Job.weight_names({key!r}): {type(why).__name__}: {why}") from why
    if not isinstance(found, str):
        raise ConfigError(f"Job.weight_names gives {found!r} for {key!r}: expected a name")
    return found


def _pieces(path: Path) -> Iterable[bytes]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= _WHOLE_BYTES:
            yield file.read()
            return
        for number in range(_PIECES):  # the first and the last bytes are among them
            file.seek((size - _PIECE_BYTES) * number // (_PIECES - 1))
            yield file.read(_PIECE_BYTES)
