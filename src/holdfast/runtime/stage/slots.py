"""The trainable parameters of a stage, each with its place in the model."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from holdfast.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """A trainable parameter of a stage."""

    layer: int
    name: str
    """Path inside the layer."""

    parameter: nn.Parameter

    @property
    def key(self) -> str:
        return f"{self.layer}.{self.name}"


def slots_of(layers: Sequence[nn.Module], first_layer: int) -> tuple[ParameterSlot, ...]:
    """ConfigError if two layers share one."""
    slots: dict[int, ParameterSlot] = {}
    for number, layer in enumerate(layers, first_layer):
        for name, parameter in layer.named_parameters():
            slot = ParameterSlot(number, name, parameter)
            other = slots.setdefault(id(parameter), slot) if parameter.requires_grad else slot
            if other is not slot:
                raise ConfigError(f"{slot.key} is the same parameter as {other.key}; untie them")
    return tuple(slots.values())
