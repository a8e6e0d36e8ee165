"""A model, whatever it is, as layers."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from holdfast.adaptors.decoders import adapted
from holdfast.adaptors.layered import LayeredModel
from holdfast.adaptors.tracing import traced
from holdfast.errors import ConfigError


def as_layers(
    model: nn.Module, split_points: Sequence[str], examples: Callable[[], tuple[Tensor, ...]]
) -> LayeredModel:
    """``examples``: inputs of the first layer, if the model has to be traced."""
    known = LayeredModel(model, {}) if isinstance(model, nn.Sequential) else adapted(model)
    if known is None:
        return traced(model, examples(), split_points)
    if split_points:
        raise ConfigError(
            f"Job.split_points={tuple(split_points)!r}: a {type(model).__name__} is cut into its "
            "layers without them; leave them out"
        )
    return known
