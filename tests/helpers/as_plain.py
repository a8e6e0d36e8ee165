"""A model's own forward and backward, beside those of the layers that are made of it."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.job import Job, own_name
from holdfast.runtime.stage.ties import untie


def run(layers: Sequence[nn.Module], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    values: Any = inputs
    for layer in layers:
        result = layer(*values)
        values = result if isinstance(result, tuple) else (result,)
    return values


def results(output: Tensor, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """(output, every gradient and buffer by the model's own name)."""
    _backward(output)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return output.detach(), gradients | dict(model.named_buffers())


def layered_results(job: Job, inputs: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    """The same of the layers, as workers see them: without shared parameters."""
    layers, _ = untie(deepcopy(list(job.layers)))
    torch.manual_seed(1)
    (output,) = run(layers, inputs)
    _backward(output)
    first = {id(tensor): name for name, tensor in job.model.named_parameters()}
    shared = dict(job.model.named_parameters(remove_duplicate=False))
    found: dict[str, Tensor] = {}
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            own = first[id(shared[own_name(job, f"{number}.{name}")])]
            if parameter.grad is not None:
                found[own] = found.get(own, 0) + parameter.grad
        for name, buffer in layer.named_buffers():
            found[own_name(job, f"{number}.{name}")] = buffer
    known = {*shared, *dict(job.model.named_buffers())}
    return output.detach(), {name: value for name, value in found.items() if name in known}


def _backward(output: Tensor) -> None:
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    (output * weights).sum().backward()


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """To rounding: of a parameter with several uses only the order of the sum differs."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-5, msg=lambda m: name + m)  # noqa: B023
