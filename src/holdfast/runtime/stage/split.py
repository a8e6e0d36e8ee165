"""Weight gradients that can wait: backward in two parts with the bits of one.

While :class:`DeferWeights` is on, calls of linear, layer_norm, embedding and convolution
whose weight is one of the stage's parameters go through autograd functions that can put
the weight's share aside. Everything else stays native: right, merely not deferred.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from holdfast.runtime.stage.deferred_ops import (
    Deferred,
    DeferredConvolution,
    DeferredEmbedding,
    DeferredLayerNorm,
    DeferredLinear,
    Piece,
    RoutedCall,
    Slots,
)

aten = torch.ops.aten

_INNER_BACKWARD = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
_CAST_BY_AUTOCAST = {
    *(F.linear, torch.mm, torch.matmul, torch.bmm, torch.addmm, torch.baddbmm, torch.addbmm),
    *(Tensor.mm, Tensor.matmul, Tensor.bmm, Tensor.addmm, Tensor.baddbmm, Tensor.addbmm),
    *(Tensor.__matmul__, Tensor.__rmatmul__, F.scaled_dot_product_attention),
    *(F.conv1d, F.conv2d, F.conv3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, torch.conv_tbc),
}


class DeferWeights(TorchFunctionMode):
    """For the forward and the backward of one micro-batch.

    On in backward too, because a checkpointed layer runs its forward again there.
    ``slot_of`` maps the id of each trainable parameter to its slot.
    """

    def __init__(self, slot_of: Mapping[int, int]) -> None:
        super().__init__()
        self.deferred = Deferred()
        self._slot_of = slot_of
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}
        self._routes: dict[Any, Callable[..., Tensor | None]] = {
            F.linear: self._linear,
            aten.linear.default: self._linear,
            F.layer_norm: self._layer_norm,
            torch.layer_norm: self._layer_norm,
            aten.layer_norm.default: self._layer_norm,
            F.embedding: self._embedding,
            F.conv1d: partial(self._convolution, 1),
            F.conv2d: partial(self._convolution, 2),
            F.conv3d: partial(self._convolution, 3),
            aten.conv1d.default: partial(self._convolution, 1),
            aten.conv2d.default: partial(self._convolution, 2),
            aten.conv3d.default: partial(self._convolution, 3),
        }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        route = self._routes.get(func)
        if route is not None and torch.is_grad_enabled():
            routed = route(*args, **kwargs)
            if routed is not None:
                return routed
        if func in _INNER_BACKWARD:
            return self._run_inner_backward(func, args, kwargs)
        if func in _CAST_BY_AUTOCAST and torch.is_grad_enabled():
            result = func(*map(self._shared, args), **_each(self._shared, kwargs))
        else:
            result = func(*args, **kwargs)
        self._note_native_uses(chain(args, kwargs.values()), result)
        return result

    def _run_inner_backward(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A layer that differentiates by itself wants its gradients now: nothing is put aside."""
        deferring, self.deferred.deferring = self.deferred.deferring, False
        try:
            return func(*args, **kwargs)
        finally:
            self.deferred.deferring = deferring

    def enter_layer(self) -> None:
        """Forget weights cast for autocast: parameters are not shared between layers."""
        self._casts.clear()

    def _note_native_uses(self, arguments: Iterable[Any], result: Any) -> None:
        for argument in arguments:
            members = argument if isinstance(argument, list | tuple) else (argument,)
            for member in members:
                slot = self._slot_of.get(id(member))
                # Reading a shape or a detached value is not a use.
                if slot is not None and _requires_grad(result):
                    self.deferred.used_natively.add(slot)

    def _slots(self, data: Tensor, weight: Tensor | None, bias: Tensor | None) -> Slots | None:
        """Slots of a call's weights, or None if the call has to stay native."""
        if weight is None or id(weight) not in self._slot_of or type(data) not in _PLAIN_TENSORS:
            return None
        if torch._C._functorch.peek_interpreter_stack() is not None:  # vmap, grad, jvp ...
            return None
        if _has_hooks(weight) or (bias is not None and _has_hooks(bias)):
            return None
        if id(data) in self._slot_of:
            self.deferred.used_natively.add(self._slot_of[id(data)])
        return self._slot_of[id(weight)], self._slot_of.get(id(bias))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        slots = self._slots(input, weight, bias)
        if slots is None or input.dim() < 2 or not input.is_contiguous():
            return None
        cast = self._autocast(input, weight, bias)
        return None if cast is None else self._apply(DeferredLinear, slots, *cast)

    def _layer_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        cudnn_enable: bool = True,
    ) -> Tensor | None:
        slots = self._slots(input, weight, bias)
        # Under autocast the precision of a norm differs between devices: left native.
        if slots is None or torch.is_autocast_enabled(input.device.type):
            return None
        return self._apply(
            DeferredLayerNorm, slots, input, weight, bias, list(normalized_shape), eps
        )

    def _embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor | None:
        slots = self._slots(input, weight, None)
        if slots is None or max_norm is not None or scale_grad_by_freq or sparse:
            return None
        if padding_idx is None:
            padding = -1
        else:
            padding = padding_idx if padding_idx >= 0 else padding_idx + weight.shape[0]
        return self._apply(DeferredEmbedding, slots, input, weight, padding)

    def _convolution(
        self,
        num_dimensions: int,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor | None:
        slots = self._slots(input, weight, bias)
        if slots is None or isinstance(padding, str) or input.dim() != num_dimensions + 2:
            return None
        sizes = [_repeated(size, num_dimensions) for size in (stride, padding, dilation)]
        cast = self._autocast(input, weight, bias)
        geometry = (*sizes, groups)
        return None if cast is None else self._apply(DeferredConvolution, slots, *cast, geometry)

    def _apply(self, function: type[Function], slots: Slots, *arguments: Any) -> Tensor:
        result: Tensor = function.apply(RoutedCall(self.deferred, slots), *arguments)  # type: ignore[no-untyped-call]
        return result

    def _autocast(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...] | None:
        """The tensors as autocast would hand them to a matrix product; None if that is unclear."""
        device = next(tensor.device.type for tensor in tensors if tensor is not None)
        if not torch.is_autocast_enabled(device):
            return tensors
        if any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors):
            return None
        dtype = torch.get_autocast_dtype(device)
        return tuple(None if tensor is None else self._cast(tensor, dtype) for tensor in tensors)

    def _shared(self, argument: Any) -> Any:
        """A weight as routed calls have cast it: its uses must add up in one place."""
        if id(argument) not in self._slot_of or argument.dtype is torch.float64:
            return argument
        device = argument.device.type
        if not torch.is_autocast_enabled(device):
            return argument
        return self._cast(argument, torch.get_autocast_dtype(device))

    def _cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        # Autocast casts a leaf once and so sums the gradients of its uses in low precision.
        once = tensor.is_leaf and tensor.requires_grad and torch.is_autocast_cache_enabled()
        if not once or tensor.dtype == dtype:
            return tensor.to(dtype)
        if id(tensor) not in self._casts:
            self._casts[id(tensor)] = (tensor, tensor.to(dtype))
        return self._casts[id(tensor)][1]


def run_backward(
    mode: DeferWeights | None, roots: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    """Backward with the mode on, for checkpointed parts of a layer that run forward again."""
    if mode is None:
        torch.autograd.backward(roots, gradients)
        return
    with mode:
        # torch.autograd.backward is itself a call that modes see, and would turn this one off.
        torch.autograd.Variable._execution_engine.run_backward(
            tuple(roots), tuple(gradients), False, False, (), True, True
        )


def weight_gradients(
    pieces: deque[Piece], computed: Mapping[int, Tensor]
) -> Iterator[tuple[int, Tensor]]:
    """Empty ``pieces``; yield each slot once, as soon as its gradient is whole.

    ``computed`` are gradients that autograd has left already.
    """
    waiting = Counter(slot for piece in pieces for slot in piece.slots)
    yield from ((slot, gradient) for slot, gradient in computed.items() if slot not in waiting)
    sums: dict[int, Tensor] = {}
    while pieces:
        piece = pieces.popleft()
        gradients = (gradient for gradient in piece.compute() if gradient is not None)
        for slot, gradient in zip(piece.slots, gradients, strict=True):
            sums[slot] = sums[slot] + gradient if slot in sums else gradient
            waiting[slot] -= 1
            if waiting[slot] == 0:
                total = sums.pop(slot)
                yield slot, total + computed[slot] if slot in computed else total


def _each(change: Callable[[Any], Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: change(value) for name, value in values.items()}


def _requires_grad(result: Any) -> bool:
    members = result if isinstance(result, list | tuple) else (result,)
    return any(isinstance(member, Tensor) and member.requires_grad for member in members)


def _has_hooks(tensor: Tensor) -> bool:
    """Hooks want to see the gradient when autograd makes it."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def _repeated(size: int | Sequence[int], num_dimensions: int) -> list[int]:
    """One size for each dimension; the routed functions also accept one for all."""
    sizes = [size] if isinstance(size, int) else list(size)
    return sizes * num_dimensions if len(sizes) == 1 else sizes
