"""Where a model without marks is cut: before each block of its lists."""

from collections.abc import Iterator

from torch import nn

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def blocks_of(model: nn.Module) -> tuple[str, ...]:
    """Paths of the elements of its outermost lists; of a model without lists, of its children.

    A Sequential of plain modules, such as a small MLP, is one block as long as there are others.
    """
    found = tuple(_in_lists(model, "", whole=True))
    if len(found) < 2:
        found = tuple(_in_lists(model, "", whole=False))
    return found if len(found) > 1 else tuple(name for name, _ in model.named_children())


def _in_lists(module: nn.Module, path: str, *, whole: bool) -> Iterator[str]:
    listed = type(module) in _CONTAINERS
    for name, child in module.named_children():
        inside = f"{path}.{name}" if path else name
        if type(child) in _CONTAINERS and not (whole and _is_plain(child)):
            yield from _in_lists(child, inside, whole=whole)
        elif listed or type(child) in _CONTAINERS:
            yield inside
        else:
            yield from _in_lists(child, inside, whole=whole)


def _is_plain(container: nn.Module) -> bool:
    return type(container) is nn.Sequential and all(
        not any(True for _ in child.children()) for child in container
    )
