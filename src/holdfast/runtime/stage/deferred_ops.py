"""Autograd functions with native bits whose weight gradients can be put aside.

Each stands in for one torch function: the same kernels, called with the same arguments, in two
parts if the :class:`Deferred` they were given asks for it. Which calls come here: split.py.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

aten = torch.ops.aten

GradientTuple = tuple[Tensor | None, ...]
Mask = list[bool]
Slots = tuple[int | None, int | None]
"""Of a call's weight and bias; None for what is not to be deferred."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One call's share of some weight gradients, still to be computed."""

    slots: tuple[int, ...]
    compute: Callable[[], GradientTuple]
    """The gradients of ``slots``, in that order, with any number of None between them."""


@dataclass(slots=True)
class Deferred:
    """What one micro-batch has put aside."""

    deferring: bool = False
    """Off: weight gradients flow as in plain autograd."""

    pieces: deque[Piece] = field(default_factory=deque)

    used_natively: set[int] = field(default_factory=set)
    """Slots also used by calls that are not routed. A sum of three or more depends on its
    order, which then only autograd knows: none of their uses is put aside."""


@dataclass(slots=True)
class RoutedCall:
    """Of a function with weights: which of their gradients are put aside, and where."""

    deferred: Deferred
    slots: Slots

    def shares(self, needed: Sequence[bool]) -> tuple[Mask, Mask]:
        """Which of the weight gradients to compute now, and which later."""
        deferring, used_natively = self.deferred.deferring, self.deferred.used_natively
        later = [
            deferring and need and slot is not None and slot not in used_natively
            for slot, need in zip(self.slots, needed, strict=True)
        ]
        return [n and not wait for n, wait in zip(needed, later, strict=True)], later

    def put_aside(self, later: Mask, compute: Callable[[], GradientTuple]) -> None:
        waiting = tuple(
            slot for slot, wait in zip(self.slots, later, strict=True) if wait and slot is not None
        )
        if waiting:
            self.deferred.pieces.append(Piece(waiting, compute))


class DeferredLinear(Function):
    @staticmethod
    def forward(
        ctx: Any, call: RoutedCall, data: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(data, weight)
        return _not_a_view(F.linear(data, weight, bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> GradientTuple:
        (gradient,) = gradients
        data, weight = ctx.saved_tensors
        now, later = ctx.call.shares(ctx.needs_input_grad[2:])
        rows = gradient.reshape(-1, gradient.shape[-1])
        data_rows = data.reshape(-1, data.shape[-1])
        ctx.call.put_aside(later, partial(_linear_weights, rows, data_rows.detach(), later))
        needs_data = ctx.needs_input_grad[1]
        data_gradient = torch.mm(rows, weight).view(data.shape) if needs_data else None
        return None, data_gradient, *_linear_weights(rows, data_rows, now)


def _linear_weights(gradient: Tensor, data: Tensor, mask: Mask) -> GradientTuple:
    # The transposed product is the one autograd runs; the other way round has other bits.
    weight = torch.mm(gradient.t(), data) if mask[0] else None
    return weight, gradient.sum(0) if mask[1] else None


class DeferredLayerNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: RoutedCall,
        data: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shape: list[int],
        eps: float,
    ) -> Tensor:
        result, mean, scale = torch.native_layer_norm(data, shape, weight, bias, eps)
        ctx.call, ctx.shape = call, shape
        ctx.save_for_backward(data, weight, bias, mean, scale)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> GradientTuple:
        data, weight, bias, mean, scale = ctx.saved_tensors
        now, later = ctx.call.shares(ctx.needs_input_grad[2:4])
        run = partial(
            aten.native_layer_norm_backward.default,
            *(gradients[0], _plain(data), ctx.shape, mean, scale),
            *(_plain(weight), None if bias is None else _plain(bias)),
        )
        ctx.call.put_aside(later, partial(run, [False, *later]))
        found = _masked(run, [ctx.needs_input_grad[1], *now])
        return None, *found, None, None


class DeferredEmbedding(Function):
    @staticmethod
    def forward(
        ctx: Any, call: RoutedCall, indices: Tensor, weight: Tensor, padding: int
    ) -> Tensor:
        ctx.call, ctx.num_rows, ctx.padding = call, weight.shape[0], padding
        ctx.save_for_backward(indices)
        return _not_a_view(torch.embedding(weight, indices, padding))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> GradientTuple:
        (indices,) = ctx.saved_tensors
        now, later = ctx.call.shares((ctx.needs_input_grad[2], False))
        kernel = aten.embedding_dense_backward.default
        run = partial(kernel, gradients[0], indices, ctx.num_rows, ctx.padding, False)
        ctx.call.put_aside(later, lambda: (run(),))
        return None, None, run() if now[0] else None, None


class DeferredConvolution(Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: RoutedCall,
        data: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: tuple[list[int], list[int], list[int], int],
    ) -> Tensor:
        stride, padding, dilation, groups = geometry
        ctx.call, ctx.geometry = call, geometry
        ctx.bias_shape = None if bias is None else list(bias.shape)
        ctx.save_for_backward(data, weight)
        return torch.convolution(
            data, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> GradientTuple:
        data, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.geometry
        now, later = ctx.call.shares(ctx.needs_input_grad[2:4])
        run = partial(
            aten.convolution_backward.default,
            *(gradients[0], _plain(data), _plain(weight), ctx.bias_shape),
            *(stride, padding, dilation, False, [0] * len(stride), groups),
        )
        ctx.call.put_aside(later, partial(run, [False, *later]))
        found = _masked(run, [ctx.needs_input_grad[1], *now])
        return None, *found, None


def _not_a_view(tensor: Tensor) -> Tensor:
    """In-place operations on the result of a custom function are legal only if it is no view."""
    return aten._unsafe_view.default(tensor, tensor.shape) if tensor._is_view() else tensor


def _plain(tensor: Tensor) -> Tensor:
    """Without history, unless this backward is itself to be differentiated."""
    return tensor if torch.is_grad_enabled() else tensor.detach()


def _masked(kernel: Callable[[list[bool]], GradientTuple], mask: list[bool]) -> GradientTuple:
    return kernel(mask) if any(mask) else (None,) * len(mask)
