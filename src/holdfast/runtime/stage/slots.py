"""The trainable parameters of a stage, each with its place, and which are frozen in a step.

Operations of two steps may alternate on a worker, and a forward that runs again in its backward
must find what it first found: whoever begins one asks for the parameters as they are in its step.
"""

from collections.abc import Mapping, Sequence
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


class Freezing:
    def __init__(self, parameters: Mapping[str, nn.Parameter], steps: Mapping[str, int]) -> None:
        """``steps``: for how many of them each is frozen, by key; 0 if it is not there."""
        self._all = {id(parameter): index for index, parameter in enumerate(parameters.values())}
        given = [(parameter, steps.get(key, 0)) for key, parameter in parameters.items()]
        self._frozen = [(parameter, until) for parameter, until in given if until]

    def slots_in(self, step: int) -> Mapping[int, int]:
        """Freezes what is frozen in ``step``, and nothing else; by ``id``, places of the rest."""
        if not self._frozen:
            return self._all
        trained = dict(self._all)
        for parameter, until in self._frozen:
            parameter.requires_grad_(step >= until)
            if step < until:
                del trained[id(parameter)]
        return trained
