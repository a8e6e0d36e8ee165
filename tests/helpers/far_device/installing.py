"""Making "far" known to torch: once a process, before its first backward."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from helpers.far_device import kernels
from helpers.far_device.module import FAR
from helpers.far_device.sides import KIND, is_far

_TESTED = "2.13."  # the interface to such devices is experimental
_KEY, _AUTOCAST = "PrivateUse1", "AutocastPrivateUse1"
_COMPOSITES = (
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
_keep: list[Any] = []  # a Library that is collected takes its kernels along


def why_not() -> str:
    """Why there can be no such device; empty: there can."""
    if torch.__version__.startswith(_TESTED):
        return ""
    return f"the test device is made for torch {_TESTED}*, this is {torch.__version__}"


def install() -> None:
    """Again: nothing is done."""
    if _keep:
        return
    assert not why_not(), why_not()
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(
        KIND,
        FAR,
        torch.utils.backend_registration._DummyPrivateUse1Hook(),
        torch.utils.backend_registration._DummyDeviceGuard(),
    )
    every = torch.library.Library("_", "IMPL")
    every.fallback(kernels.run, _KEY)
    every.fallback(torch.library.fallthrough_kernel, _AUTOCAST)
    some = torch.library.Library("aten", "IMPL")
    for name, kernel in _SPECIAL.items():
        some.impl(name, kernel, _KEY)
    for bit in ("Conjugate", "Negative"):  # or a copy that is to resolve it would be asked for one
        some.impl("_copy_from", torch.library.fallthrough_kernel, bit)
    some.impl("scaled_dot_product_attention", kernels.attention, "AutogradPrivateUse1")
    for operator in _composites():
        some.impl(operator, kernels.on_cpu(operator), _KEY)
    for operator, dtype in _CASTS.items():
        some.impl(operator, _casting(operator, dtype), _AUTOCAST)
    _keep.extend((every, some))
    _mend_storages()
    # So that Module.to keeps the parameters themselves, as it does with CUDA.
    torch.__future__.set_swap_module_params_on_conversion(True)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    operator = torch.ops.aten.convolution_backward.default
    return kernels.run(operator, gradient, x, weight, [weight.shape[0]], *rest)


_SPECIAL = {
    "_copy_from": kernels.copy_from,
    "resize_": kernels.resize_,
    "set_.source_Tensor": kernels.set_tensor,
    "set_.source_Storage": kernels.set_storage,
    "set_.source_Storage_storage_offset": kernels.set_storage,
    "scaled_dot_product_attention": kernels.attention,
    "_scaled_dot_product_fused_attention_overrideable": kernels.attend,
    "_scaled_dot_product_fused_attention_overrideable_backward": kernels.attend_backward,
    "convolution_overrideable": kernels.on_cpu(torch.ops.aten.convolution.default),
    "convolution_backward_overrideable": _convolution_backward,
}


def _composites() -> Iterator[Any]:
    """Operators that torch would put together from others here, with other bits, though the
    processor has a kernel."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        composed = any(has(name, key) for key in _COMPOSITES)
        if name.startswith("aten::") and has(name, "CPU") and composed:
            packet, _, overload = name.removeprefix("aten::").partition(".")
            if name.removeprefix("aten::") not in _SPECIAL:
                yield getattr(getattr(torch.ops.aten, packet), overload or "default")


# --- autocast, for the operators that matter ---

_ATEN = torch.ops.aten
_LOWER = (_ATEN.linear, _ATEN.matmul, _ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.baddbmm)
_FLOAT = (_ATEN.cross_entropy_loss, _ATEN.nll_loss, _ATEN.mse_loss)
_CASTS: dict[Any, torch.dtype | None] = {
    **{packet.default: None for packet in _LOWER},
    **{packet.default: torch.float32 for packet in _FLOAT},
}


def _casting(operator: Any, dtype: torch.dtype | None) -> Any:
    """``dtype`` None: what autocast is set to."""
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(value: Any) -> Any:
        is_cast = isinstance(value, Tensor) and value.is_floating_point() and is_far(value)
        if not is_cast or value.dtype == torch.float64:
            return value
        return value.to(dtype or torch.get_autocast_dtype(KIND))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(without):
            return operator(*tree_map(cast, args), **tree_map(cast, kwargs))

    return kernel


# --- what a device made in Python lacks ---


def _mend_storages() -> None:
    clone, move = torch.UntypedStorage.clone, torch.UntypedStorage.to

    def to_far(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
        return torch.empty(0, dtype=torch.uint8).set_(storage).to(KIND).untyped_storage()

    def clone_any(storage: Any) -> Any:
        if storage.device.type != KIND:
            return clone(storage)
        raw = torch.empty(0, dtype=torch.uint8, device=KIND).set_(storage)
        return raw.clone().untyped_storage()

    def move_any(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        there = torch.device(device)
        return to_far(storage) if there.type == KIND else move(storage, device=there)

    torch.UntypedStorage.clone = clone_any  # type: ignore[method-assign]
    torch.UntypedStorage.to = move_any  # type: ignore[method-assign]
    setattr(torch.UntypedStorage, KIND, to_far)
    torch._C._accelerator_synchronizeDevice = lambda index: FAR.synchronize()
    torch.Tensor.pin_memory = _pin  # type: ignore[method-assign]
    torch.Tensor.is_pinned = _is_pinned  # type: ignore[method-assign]


_pinned: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by address


def _pin(tensor: Tensor, device: Any = None) -> Tensor:
    if not tensor.is_cpu:
        raise RuntimeError("only dense CPU tensors can be pinned")
    copy = tensor.clone()
    _pinned[copy.untyped_storage().data_ptr()] = copy
    return copy


def _is_pinned(tensor: Tensor, device: Any = None) -> bool:
    return tensor.is_cpu and tensor.untyped_storage().data_ptr() in _pinned
