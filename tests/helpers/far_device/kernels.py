"""Every operator of the device: the processor's own kernel, on the same memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.far_device.module import FAR
from helpers.far_device.sides import KIND, far, is_far, near

CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# Indices may be on the host, as with CUDA.
_INDEXING = ("aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put")


class _Call:
    """One call of an operator: its words translated there, its results back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pairs: list[tuple[Tensor, Tensor]] = []  # ours, and the one that stands for it
        self.strangers: set[str] = set()

    def enter(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._enter(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self.enter, value))
        if isinstance(value, torch.device) and value.type == KIND:
            return torch.device("cpu")
        if isinstance(value, torch.Generator):
            raise RuntimeError(f"Expected a '{KIND}' device type for generator but found 'cpu'")
        return value

    def _enter(self, value: Tensor) -> Tensor:
        if not is_far(value):
            if value.dim() and self.name not in _INDEXING:
                self.strangers.add(str(value.device))
            return value
        if value.numel():
            its = near(value)
        else:  # it may be meant to be resized, which shared memory cannot be
            its = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        self.pairs.append((value, its))
        return its

    def leave(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(self.leave, value))
        if not isinstance(value, Tensor):
            return value
        for mine, its in self.pairs:
            if value is its:
                return mine  # in place, or out=
        FAR.check_fits(value)
        return far(value)


def run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    FAR.counts["kernels"] += 1
    call = _Call(operator.name().partition(".")[0])
    words = [call.enter(value) for value in args]
    named = {name: call.enter(value) for name, value in kwargs.items()}
    if call.strangers:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{KIND}:0 and {', '.join(call.strangers)}! (in {call.name})"
        )
    if call.name == "aten::_local_scalar_dense":
        FAR.counts["waits"] += 1
    result = _drawn(operator, words, named)
    for mine, its in call.pairs:
        if its.shape != mine.shape:
            _point_at(mine, its)
    return call.leave(result)


def _drawn(operator: Any, words: Any, named: Any) -> Any:
    """Random operators draw from the device's own state."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return operator(*words, **named)
    usual = torch.default_generator
    with FAR.drawing:
        before = usual.get_state()
        usual.set_state(FAR.generator.get_state())
        try:
            return operator(*words, **named)
        finally:
            FAR.generator.set_state(usual.get_state())
            usual.set_state(before)


def on_cpu(operator: Any) -> Callable[..., Any]:
    return partial(run, operator)


# --- operators that are no kernels of the processor ---


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    ways = {(True, False): "to host", (False, True): "to device"}
    way = ways.get((is_far(source), is_far(target)))
    here, there = near(source), near(target)
    if way is None:
        there.copy_(here)
        return target
    FAR.counts[way] += 1
    host = target if way == "to host" else source
    if non_blocking and host.is_pinned():
        FAR.current_stream().add(partial(there.copy_, here))
    else:
        FAR.current_stream().synchronize()
        there.copy_(here)
    return target


def _point_at(mine: Tensor, data: Tensor) -> Tensor:
    """Shape and memory of another tensor."""
    return torch.ops.aten.set_.source_Tensor.redispatch(CPU_KERNELS, mine, far(data))


def resize_(mine: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    if list(mine.shape) != list(size):
        data = torch.empty(size, dtype=mine.dtype)
        kept = min(mine.numel(), data.numel())
        data.view(-1)[:kept] = near(mine).reshape(-1)[:kept]
        _point_at(mine, data)
    return mine


def set_tensor(mine: Tensor, source: Tensor) -> Tensor:
    return torch.ops.aten.set_.source_Tensor.redispatch(CPU_KERNELS, mine, source)


def set_storage(mine: Tensor, source: Any, *words: Any) -> Tensor:
    operator = torch.ops.aten.set_
    which = operator.source_Storage_storage_offset if words else operator.source_Storage
    return which.redispatch(CPU_KERNELS, mine, source, *words)


# --- attention, through the operator that torch leaves open for such devices ---


def attention(  # type: ignore[no-untyped-def]
    q, k, v, mask=None, p=0.0, causal=False, *, scale=None, enable_gqa=False
):
    named = {"scale": scale, "enable_gqa": enable_gqa}
    seen = [None if t is None else near(t) for t in (q, k, v, mask)]
    if torch.ops.aten._fused_sdp_choice(*seen, p, causal, **named) == 0:
        plain = torch.ops.aten._scaled_dot_product_attention_math
        return plain(q, k, v, mask, p, causal, **named)[0]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    return fused(q, k, v, mask, p, causal, False, scale=scale)[0]


def attend(  # type: ignore[no-untyped-def]
    q, k, v, mask=None, p=0.0, causal=False, debug=False, *, scale=None
):
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, sums = run(flash, q, k, v, p, causal, attn_mask=mask, scale=scale)
    none = torch.empty(0, device=q.device)
    return out, sums, none, none, q.shape[2], k.shape[2], none, none, none


def attend_backward(  # type: ignore[no-untyped-def]
    g, q, k, v, mask, wanted, out, sums, _1, _2, _3, _4, p, causal, _5, _6, *, scale=None
):
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    given = (g, q, k, v, out, sums, p, causal)
    return *run(flash, *given, attn_mask=mask, scale=scale), None
