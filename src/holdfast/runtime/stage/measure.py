"""How long each layer takes, forward and backward, on one real micro-batch; and how much memory."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from holdfast.data.batches import Batches
from holdfast.device.processor import PROCESSOR, Device
from holdfast.job import Job
from holdfast.protocol.records import LayerSize
from holdfast.runtime.stage.layers import Tensors, flat, named
from holdfast.runtime.stage.precision import FP32, Precision
from holdfast.runtime.stage.sparing import held

# A busy machine makes any time too long, none too short: the shortest of some counts.
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 10
_FP32_BYTES = 4
_ENOUGH_S = 0.5  # for all layers: no round beyond the least is begun after a layer's share


class Measured(NamedTuple):
    """Of each layer."""

    forward_s: list[float]
    backward_s: list[float]
    sizes: list[LayerSize]


class _Round(NamedTuple):
    outputs: Tensors
    forward_s: float
    backward_s: float
    inner_bytes: int  # 0: nobody has looked


def measure_layers(
    job: Job,
    batches: Batches,
    precision: Precision = FP32,
    *,
    device: Device = PROCESSOR,
    sized: bool = False,
) -> Measured:
    """Leaves parameters, gradients and buffers as they were.

    One layer after the other, so that only one has to be held. ``sized``: else nobody looks at
    what autograd keeps, which not every layer bears.
    """
    unpack = not isinstance(job.layers, nn.Sequential)
    values, target = device.place_all(batches.load(0, 0))
    enough_s = _ENOUGH_S / len(job.layers)
    found = Measured([], [], [])
    for number, layer in enumerate(job.layers):
        loss = job.loss if number == len(job.layers) - 1 else None
        given = (values, loss, target)
        one_round = partial(_one_round, number, layer, *given, unpack, precision, device)
        with held(layer), _left_as_it_was(layer):
            first = _looked_at(one_round) if sized else one_round()  # warms up
            rounds = _timed(one_round, enough_s)
            found.sizes.append(_size(layer, values, first.inner_bytes))
        values = first.outputs
        found.forward_s.append(min(one.forward_s for one in rounds))
        found.backward_s.append(min(one.backward_s for one in rounds))
    return found


def _looked_at(one_round: Callable[..., _Round]) -> _Round:
    """Some transforms of torch.func refuse to be looked at: of those nothing is known."""
    try:
        return one_round(sized=True)
    except RuntimeError:
        return one_round()  # which raises what is wrong with the layer itself


def _size(layer: nn.Module, inputs: Tensors, inner_bytes: int) -> LayerSize:
    own = [*layer.parameters(), *layer.buffers()]
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return LayerSize(
        held_bytes=sum(tensor.nbytes for tensor in own),
        trained=sum(one.numel() for one in trained),
        trained_low=sum(one.numel() for one in trained if one.element_size() < _FP32_BYTES),
        input_bytes=sum(tensor.nbytes for tensor in inputs),
        inner_bytes=inner_bytes,
    )


@contextmanager
def _left_as_it_was(layer: nn.Module) -> Iterator[None]:
    buffers = [buffer.clone() for buffer in layer.buffers()]
    yield
    layer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(layer.buffers(), buffers, strict=True):
            buffer.copy_(before)


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
    *,
    sized: bool = False,
) -> _Round:
    """``sized``: looks at what autograd keeps, which takes time."""
    leaves = (v.detach().requires_grad_(v.requires_grad) for v in values)
    inputs = tuple(leaf.clone() for leaf in leaves)  # a layer may write to its input
    run, judge = device.lent(layer), device.lent(loss)
    start_s = _now_s(device)
    with kept_by_autograd() if sized else nullcontext() as kept:
        with named(number, layer, inputs), precision.autocast():
            out = run(*inputs) if unpack or len(inputs) == 1 else run(inputs)
        if judge is not None:
            with precision.autocast():
                out = judge(out, target)
    forward_s = _now_s(device) - start_s
    outputs = flat(number, out, unpack)
    aside = (*run.parameters(), *run.buffers(), *inputs, *outputs)
    inner_bytes = kept.num_bytes(without=aside) if kept else 0
    backward_s = _backward_s(outputs, device)
    detached = tuple(v.detach().requires_grad_(v.requires_grad) for v in outputs)
    return _Round(detached, forward_s, backward_s, inner_bytes)


def _backward_s(outputs: Sequence[Tensor], device: Device) -> float:
    roots = [output for output in outputs if output.requires_grad]
    start_s = _now_s(device)
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return _now_s(device) - start_s


def _now_s(device: Device) -> float:
    device.synchronize()
    return time.perf_counter()


# --- memory ---


class Kept:
    """Each storage once, however many tensors are views of it."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def note(self, tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided:  # a sparse one has no storage
            storage = tensor.untyped_storage()
            self._bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def num_bytes(self, *, without: Iterable[Tensor]) -> int:
        """``without``: parameters, say, which are there anyway."""
        dense = (tensor for tensor in without if tensor.layout is torch.strided)
        aside = {tensor.untyped_storage().data_ptr() for tensor in dense}
        return sum(size for address, size in self._bytes.items() if address not in aside)


@contextmanager
def kept_by_autograd() -> Iterator[Kept]:
    """Of what runs inside. Ask before the backward: addresses are used again after it."""
    kept = Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor):
        yield kept
