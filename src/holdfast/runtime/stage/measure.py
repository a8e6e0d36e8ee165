"""How long each layer takes, forward and backward, on one real micro-batch."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.batches import Batches
from holdfast.job import Job
from holdfast.runtime.stage.layers import flat, named

_ROUNDS = 2  # the first also warms up; the faster of the two counts


def measure_layers(job: Job, batches: Batches) -> tuple[list[float], list[float]]:
    """Seconds of each layer. Leaves parameters, gradients and buffers as they were."""
    unpack = not isinstance(job.layers, nn.Sequential)
    layers = list(job.layers)
    buffers = [buffer.clone() for layer in layers for buffer in layer.buffers()]
    rounds = [_one_round(layers, job.loss, batches, unpack) for _ in range(_ROUNDS)]
    for layer in layers:
        layer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(
            (b for layer in layers for b in layer.buffers()), buffers, strict=True
        ):
            buffer.copy_(before)
    return tuple(
        [min(times) for times in zip(*kind, strict=True)] for kind in zip(*rounds, strict=True)
    )  # type: ignore[return-value]


def _one_round(
    layers: Sequence[nn.Module], loss: Callable[[Any, Any], Tensor], batches: Batches, unpack: bool
) -> tuple[list[float], list[float]]:
    values, target = batches.load(0, 0)
    forward_s: list[float] = []
    steps: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    for number, layer in enumerate(layers):
        leaves = (v.detach().requires_grad_(v.requires_grad) for v in values)
        inputs = tuple(leaf.clone() for leaf in leaves)  # a layer may write to its input
        start_s = time.perf_counter()
        with named(number, layer, inputs):
            out = layer(*inputs) if unpack or len(inputs) == 1 else layer(inputs)
        if number == len(layers) - 1:
            out = loss(out, target)
        forward_s.append(time.perf_counter() - start_s)
        values = flat(number, out, unpack)
        steps.append((inputs, values))
    return forward_s, [_backward_s(outputs) for _, outputs in steps]


def _backward_s(outputs: Sequence[Tensor]) -> float:
    roots = [output for output in outputs if output.requires_grad]
    start_s = time.perf_counter()
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return time.perf_counter() - start_s
