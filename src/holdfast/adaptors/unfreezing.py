"""Which parameters of a job are frozen at first, and for how many steps.

Knows names and patterns of them; nothing of stages, or of how a parameter is kept from training.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from holdfast.errors import ConfigError

Unfreeze = Mapping[int, Sequence[str]]
"""After so many steps -> patterns of names of the parameters that are trained from there on."""

_EXAMPLE = 'e.g. {100: ["0.*", "1.*"]}'


def frozen_steps(
    layers: Sequence[nn.Module] | nn.Sequential, names: Mapping[str, str], unfreeze: Unfreeze
) -> dict[str, int]:
    """Name, as checkpoints have it -> the number of steps it is frozen for.

    ``names``: those that a model has of its own. A parameter that several layers share is found by
    its first name, and is there under all.
    """
    _check(unfreeze)
    keys: dict[nn.Parameter, list[str]] = {}
    for number, layer in enumerate(layers):
        for path, parameter in layer.named_parameters():
            keys.setdefault(parameter, []).append(f"{number}.{path}")
    found: dict[str, int] = {}
    unused = {pattern for patterns in unfreeze.values() for pattern in patterns}
    for own in keys.values():
        name = names.get(own[0], own[0])
        matched = [
            (after, pattern)
            for after, patterns in unfreeze.items()
            for pattern in patterns
            if fnmatchcase(name, pattern)
        ]
        unused -= {pattern for _, pattern in matched}
        if matched:
            found |= dict.fromkeys(own, min(after for after, _ in matched))
    if unused:
        shown = ", ".join(names.get(own[0], own[0]) for own in list(keys.values())[:3])
        raise ConfigError(
            f"Job.unfreeze has {sorted(unused)[0]!r}, which no parameter is called: expected "
            f"patterns of names such as {shown}"
        )
    return found


def _check(unfreeze: object) -> None:
    if not isinstance(unfreeze, Mapping):
        kind = type(unfreeze).__name__
        raise ConfigError(f"Job.unfreeze is a {kind}: expected steps and names, {_EXAMPLE}")
    for after, patterns in unfreeze.items():
        if type(after) is not int or after < 1:
            raise ConfigError(
                f"Job.unfreeze has {after!r}: expected a number of steps, at least 1, {_EXAMPLE}"
            )
        good = isinstance(patterns, Sequence) and not isinstance(patterns, str)
        if not good or not all(isinstance(pattern, str) for pattern in patterns):
            raise ConfigError(
                f"Job.unfreeze[{after}] is {patterns!r}: expected a list of names, {_EXAMPLE}"
            )
