"""Parameters and buffers of layers as named tensors: "3.attention.weight" is of layer 3."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
import xxhash
from torch import Tensor, nn

from holdfast.errors import CheckpointError
from holdfast.runtime.stage.sparing import held, without_address

Layers = Mapping[int, nn.Module]  # by number in the whole model


POSITION = "stream/position"  # of a stream of data, where a worker has last seen it
ASIDE = "/not persistent"  # marks buffers that are no part of a model's state_dict()


def state_tensors(
    layers: Layers, copy: Callable[[Tensor], Tensor] = Tensor.clone
) -> dict[str, Tensor]:
    """Copies, so that training can go on while they are written."""
    return {key: copy(tensor) for key, tensor in live_tensors(layers).items()}


def live_tensors(layers: Layers) -> dict[str, Tensor]:
    """What a ``state_dict()`` has; the tensors themselves: they change with the next step."""
    aside = _not_persistent(layers)
    return {key: tensor.detach() for key, tensor in _tensors(layers) if key not in aside}


class BuiltBuffers:
    """Buffers that are not persistent come from building the layers, and from nowhere else.

    Only those that training has changed since are state: everyone who holds the layers tells the
    same ones.
    """

    def __init__(self, layers: Layers) -> None:
        """``layers``: just built."""
        self._layers = layers
        self._built = buffer_values(layers, sorted(_not_persistent(layers)))

    def changed(self) -> dict[str, Tensor]:
        """Live tensors."""
        now = {key: _buffer(self._layers, key).detach() for key in self._built}
        return {
            f"{key}{ASIDE}": tensor
            for key, tensor in now.items()
            if _raw(tensor) != _raw(self._built[key])
        }

    def restore(self) -> None:
        set_buffer_values(self._layers, self._built)


def _not_persistent(layers: Layers) -> set[str]:
    return {
        f"{number}.{path}.{name}" if path else f"{number}.{name}"
        for number, layer in layers.items()
        for path, module in layer.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
        if module._buffers.get(name) is not None
    }


def _tensors(layers: Layers) -> Iterator[tuple[str, Tensor]]:
    """Not ``state_dict()``: it leaves out some buffers, and users may have changed it."""
    for number, layer in layers.items():
        for name, parameter in layer.named_parameters(remove_duplicate=False):
            yield f"{number}.{name}", parameter
        for name, buffer in layer.named_buffers(remove_duplicate=False):
            yield f"{number}.{name}", buffer


def names_of_each(layers: Layers) -> dict[str, tuple[str, ...]]:
    """Name -> all names of the same tensor, its own included, in the order of the layers."""
    names: dict[int, list[str]] = {}
    for key, tensor in _tensors(layers):
        names.setdefault(id(tensor), []).append(key)
    return {key: tuple(keys) for keys in names.values() for key in keys}


def load_state_tensors(layers: Layers, tensors: Mapping[str, Tensor]) -> None:
    """Every tensor of the layers must be there, with its shape, and nothing else. Buffers that are
    not persistent may be: those that are not stay as they are."""
    remaining = {key.removesuffix(ASIDE): tensor for key, tensor in tensors.items()}
    may_lack = _not_persistent(layers)
    with torch.no_grad():
        for key, own in _tensors(layers):
            if key in remaining or key not in may_lack:
                own.copy_(_fitting(key, own, remaining))
    if remaining:
        raise CheckpointError(
            f"checkpoint has {', '.join(sorted(remaining)[:3])}, which the job does not; "
            "resume with the job that wrote it"
        )


def _fitting(key: str, own: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    found = tensors.pop(key, None)
    if found is None:
        raise CheckpointError(f"checkpoint lacks {key}; resume with the job that wrote it")
    if found.shape != own.shape or found.dtype != own.dtype:
        raise CheckpointError(
            f"checkpoint has {key} as {found.dtype} {tuple(found.shape)}, the job as {own.dtype} "
            f"{tuple(own.shape)}; resume with the job that wrote it"
        )
    return found


def buffer_values(layers: Layers, keys: Iterable[str]) -> dict[str, Tensor]:
    """Copies of some buffers."""
    return {key: _buffer(layers, key).detach().clone() for key in keys}


def set_buffer_values(layers: Layers, values: Mapping[str, Tensor]) -> None:
    for key, value in values.items():
        _buffer(layers, key).copy_(value)


@contextmanager
def swapped_buffers(layers: Layers, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Other tensors in the place of some buffers, for a while; the present ones stay untouched."""
    places = {key: _owner(layers, key) for key in values}
    present = {key: owner._buffers[name] for key, (owner, name) in places.items()}
    for key, (owner, name) in places.items():
        owner._buffers[name] = values[key]
    try:
        yield
    finally:
        for key, (owner, name) in places.items():
            owner._buffers[name] = present[key]


def buffer_shapes(layers: Layers) -> dict[str, torch.Size]:
    return {
        f"{number}.{name}": buffer.shape
        for number, layer in layers.items()
        for name, buffer in layer.named_buffers(remove_duplicate=False)
    }


def _buffer(layers: Layers, key: str) -> Tensor:
    number, _, path = key.partition(".")
    return layers[int(number)].get_buffer(path)


def _owner(layers: Layers, key: str) -> tuple[nn.Module, str]:
    number, _, path = key.partition(".")
    module, _, name = path.rpartition(".")
    return layers[int(number)].get_submodule(module), name


def hash_of_each(layers: Layers) -> dict[int, str]:
    """A fast hash of all that a layer holds, to compare workers: 4 GB/s, but no proof."""
    hashes: dict[int, str] = {}
    for number, layer in layers.items():
        with held(layer):
            tensors = dict(_tensors({number: layer}))
            hashes[number] = hash_of({k: without_address(t) for k, t in tensors.items()})
    return hashes


def hash_of_built(layers: Layers) -> dict[int, str]:
    """The same of what no checkpoint has, but only the building of a layer."""
    hashes: dict[int, str] = {}
    for number, layer in layers.items():
        own = {number: layer}
        hashes[number] = hash_of(buffer_values(own, _not_persistent(own)))
    return hashes


def hashes_by_layer(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The same of tensors that are named by layer; keys as a message has them."""
    layers: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.endswith(POSITION):
            continue  # each has read as far as it needed
        layers.setdefault(key.partition(".")[0], {})[key] = tensor
    return {number: hash_of(of_layer) for number, of_layer in layers.items()}


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and all bits."""
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_raw(tensor))
    return digest.hexdigest()


def _raw(tensor: Tensor) -> memoryview:
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return raw.numpy().data


def layer_digest(layer: nn.Module) -> str:
    """SHA-256 of a layer's parameters: names, types, shapes, all bits."""
    digest = hashlib.sha256()
    for name, parameter in layer.named_parameters():
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        digest.update(_raw(parameter))
    return digest.hexdigest()
