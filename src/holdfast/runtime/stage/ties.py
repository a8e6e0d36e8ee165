"""Parameters that several layers share: each layer gets its own twin.

Twins start equal and receive the same summed gradient, so they stay equal. The result is
the same whether the layers end up in one stage or in several. Knows nothing of stages.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass

from torch import Tensor, nn

from holdfast.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tie:
    """One shared parameter: where its twins live, in layer order."""

    members: tuple[tuple[int, str], ...]
    """(layer, name of the parameter inside that layer)."""


def untie(
    layers: Sequence[nn.Module], wanted: Collection[int] | None = None
) -> tuple[list[nn.Module], tuple[Tie, ...]]:
    """Layers that share no trainable parameter and no buffer, and which parameters were shared.

    ``wanted``: numbers of those that will be used, the others stay as they are; None: all.

    A layer that has to change is replaced by a copy, which still uses the
    original's unshared tensors; the given layers stay as they are.
    """
    _refuse_shared_memory(layers)
    homes = _homes(layers)
    untied: list[nn.Module] = []
    seen: set[int] = set()
    for number, layer in enumerate(layers):
        own = _changing_tensors(layer)
        is_wanted = wanted is None or number in wanted
        shared = [tensor for tensor in own.values() if is_wanted and id(tensor) in seen]
        untied.append(_with_twins(layer, shared) if shared else layer)
        seen.update(map(id, own.values()))
    ties = tuple(Tie(tuple(members)) for members in homes.values() if len(members) > 1)
    return untied, ties


def _refuse_shared_memory(layers: Sequence[nn.Module]) -> None:
    """Two parameters on one memory are trained as one here and as two on two workers."""
    owners: dict[int, tuple[int, str]] = {}
    for index, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            place = parameter.untyped_storage()._cdata  # not its address: it may not be held
            other, known = owners.setdefault(place, (id(parameter), f"{index}.{name}"))
            if parameter.numel() and parameter.requires_grad and other != id(parameter):
                raise ConfigError(
                    f"parameters {known} and {index}.{name} share memory but are two; "
                    "to tie them, assign the same Parameter to both"
                )


def _homes(layers: Sequence[nn.Module]) -> dict[int, list[tuple[int, str]]]:
    homes: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for index, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            if parameter.requires_grad:
                homes[id(parameter)].append((index, name))
    return homes


def _changing_tensors(layer: nn.Module) -> dict[str, Tensor]:
    """What training may write to. A frozen parameter can be shared for ever."""
    trainable = {n: p for n, p in layer.named_parameters() if p.requires_grad}
    return {**trainable, **dict(layer.named_buffers())}


def _with_twins(layer: nn.Module, shared: Sequence[Tensor]) -> nn.Module:
    # deepcopy leaves alone what its memo already holds: only shared tensors cost memory.
    memo: dict[int, object] = {id(t): t for t in (*layer.parameters(), *layer.buffers())}
    memo.update((id(tensor), _twin(tensor)) for tensor in shared)
    return deepcopy(layer, memo)


def _twin(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return nn.Parameter(copy) if isinstance(tensor, nn.Parameter) else copy
