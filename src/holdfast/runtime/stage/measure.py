"""How long each layer takes, forward and backward, on one real micro-batch."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from holdfast.data.batches import Batch, Batches
from holdfast.device.processor import PROCESSOR, Device
from holdfast.job import Job
from holdfast.runtime.stage.layers import flat, named
from holdfast.runtime.stage.precision import FP32, Precision

# A busy machine makes any time too long, none too short: the shortest of some counts.
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 10
_ENOUGH_S = 0.5  # no round beyond the least is begun after this

_Times: TypeAlias = tuple[list[float], list[float]]


def measure_layers(
    job: Job, batches: Batches, precision: Precision = FP32, *, device: Device = PROCESSOR
) -> _Times:
    """Seconds of each layer. Leaves parameters, gradients and buffers as they were.

    On the device there is never more than one layer: all of them may be too much for it.
    """
    unpack = not isinstance(job.layers, nn.Sequential)
    layers = list(job.layers)
    buffers = [buffer.clone() for layer in layers for buffer in layer.buffers()]
    loaded = batches.load(0, 0)
    one_round = partial(_one_round, layers, job.loss, loaded, unpack, precision, device)
    one_round()  # warms up
    rounds = _timed(one_round)
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


def _timed(one_round: Callable[[], _Times]) -> list[_Times]:
    start_s = time.perf_counter()
    rounds: list[_Times] = []
    while len(rounds) < _LEAST_ROUNDS or (
        len(rounds) < _MOST_ROUNDS and time.perf_counter() - start_s < _ENOUGH_S
    ):
        rounds.append(one_round())
    return rounds


def _one_round(
    layers: Sequence[nn.Module],
    loss: Callable[[Any, Any], Tensor],
    loaded: Batch,
    unpack: bool,
    precision: Precision,
    device: Device,
) -> _Times:
    values, target = device.place_all(loaded)
    forward_s: list[float] = []
    backward_s: list[float] = []
    for number, layer in enumerate(layers):
        is_last = number == len(layers) - 1
        leaves = (v.detach().requires_grad_(v.requires_grad) for v in values)
        inputs = tuple(leaf.clone() for leaf in leaves)  # a layer may write to its input
        run, judge = device.lent(layer), device.lent(loss)
        start_s = _now_s(device)
        with named(number, layer, inputs), precision.autocast():
            out = run(*inputs) if unpack or len(inputs) == 1 else run(inputs)
        if is_last:
            with precision.autocast():
                out = judge(out, target)
        forward_s.append(_now_s(device) - start_s)
        values = flat(number, out, unpack)
        backward_s.append(_backward_s(values, device))
    return forward_s, backward_s


def _backward_s(outputs: Sequence[Tensor], device: Device) -> float:
    roots = [output for output in outputs if output.requires_grad]
    start_s = _now_s(device)
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return _now_s(device) - start_s


def _now_s(device: Device) -> float:
    device.synchronize()
    return time.perf_counter()
