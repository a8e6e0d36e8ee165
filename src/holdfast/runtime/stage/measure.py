"""How long each layer takes, forward and backward, on one real micro-batch."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from holdfast.data.batches import Batches
from holdfast.device.processor import PROCESSOR, Device
from holdfast.job import Job
from holdfast.runtime.stage.layers import Tensors, flat, named
from holdfast.runtime.stage.precision import FP32, Precision
from holdfast.runtime.stage.sparing import held

# A busy machine makes any time too long, none too short: the shortest of some counts.
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 10
_ENOUGH_S = 0.5  # for all layers: no round beyond the least is begun after a layer's share

_Times: TypeAlias = tuple[list[float], list[float]]


def measure_layers(
    job: Job, batches: Batches, precision: Precision = FP32, *, device: Device = PROCESSOR
) -> _Times:
    """Seconds of each layer. Leaves parameters, gradients and buffers as they were.

    One layer after the other, so that only one has to be held.
    """
    unpack = not isinstance(job.layers, nn.Sequential)
    values, target = device.place_all(batches.load(0, 0))
    enough_s = _ENOUGH_S / len(job.layers)
    forward_s: list[float] = []
    backward_s: list[float] = []
    for number, layer in enumerate(job.layers):
        loss = job.loss if number == len(job.layers) - 1 else None
        given = (values, loss, target)
        one_round = partial(_one_round, number, layer, *given, unpack, precision, device)
        with held(layer), _left_as_it_was(layer):
            values, _, _ = one_round()  # warms up
            rounds = _timed(one_round, enough_s)
        forward_s.append(min(one.forward_s for one in rounds))
        backward_s.append(min(one.backward_s for one in rounds))
    return forward_s, backward_s


@contextmanager
def _left_as_it_was(layer: nn.Module) -> Iterator[None]:
    buffers = [buffer.clone() for buffer in layer.buffers()]
    yield
    layer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(layer.buffers(), buffers, strict=True):
            buffer.copy_(before)


class _Round(NamedTuple):
    outputs: Tensors
    forward_s: float
    backward_s: float


def _timed(one_round: Callable[[], _Round], enough_s: float) -> list[_Round]:
    start_s = time.perf_counter()
    rounds: list[_Round] = []
    while len(rounds) < _LEAST_ROUNDS or (
        len(rounds) < _MOST_ROUNDS and time.perf_counter() - start_s < enough_s
    ):
        rounds.append(one_round())
    return rounds


def _one_round(
    number: int,
    layer: nn.Module,
    values: Tensors,
    loss: Callable[[Any, Any], Tensor] | None,
    target: Any,
    unpack: bool,
    precision: Precision,
    device: Device,
) -> _Round:
    leaves = (v.detach().requires_grad_(v.requires_grad) for v in values)
    inputs = tuple(leaf.clone() for leaf in leaves)  # a layer may write to its input
    run, judge = device.lent(layer), device.lent(loss)
    start_s = _now_s(device)
    with named(number, layer, inputs), precision.autocast():
        out = run(*inputs) if unpack or len(inputs) == 1 else run(inputs)
    if judge is not None:
        with precision.autocast():
            out = judge(out, target)
    forward_s = _now_s(device) - start_s
    outputs = flat(number, out, unpack)
    backward_s = _backward_s(outputs, device)
    kept = tuple(v.detach().requires_grad_(v.requires_grad) for v in outputs)
    return _Round(kept, forward_s, backward_s)


def _backward_s(outputs: Sequence[Tensor], device: Device) -> float:
    roots = [output for output in outputs if output.requires_grad]
    start_s = _now_s(device)
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return _now_s(device) - start_s


def _now_s(device: Device) -> float:
    device.synchronize()
    return time.perf_counter()
