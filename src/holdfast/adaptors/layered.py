"""A model as layers that are applied one after the other, and what it calls its tensors itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class LayeredModel:
    layers: Sequence[nn.Module] | nn.Sequential
    """They hold the model's own parameters and buffers, not copies."""

    names: Mapping[str, str]
    """Of parameters and buffers: "3.block.mlp.weight" -> "model.layers.2.mlp.weight"."""


def with_own_modules(model: nn.Module, layers: Sequence[nn.Module]) -> LayeredModel:
    """Of layers that are made of modules of the model, wrapped as they may be."""
    paths: dict[int, str] = {}
    for path, module in model.named_modules():
        paths.setdefault(id(module), path)
    names = {
        ".".join(filter(None, (str(number), inside, name))): f"{paths[id(module)]}.{name}"
        for number, layer in enumerate(layers)
        for inside, module in layer.named_modules()
        if id(module) in paths
        for name in (*module._parameters, *module._buffers)
    }
    return LayeredModel(layers, names)
