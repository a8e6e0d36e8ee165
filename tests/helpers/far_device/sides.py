"""One memory, two sides: a tensor of the device, and the one of the processor that stands for it.

A tensor changes sides by DLPack, in whose capsule the field for the device is written anew.
"""

import ctypes

import torch
from torch import Tensor

KIND = "far"
_ON_CPU, _ON_EXTENSION = 1, 12  # DLPack's names for devices: kDLCPU, kDLExtDev
_HIDDEN = 1 << 62  # added to addresses: no processor can read there


class _Head(ctypes.Structure):
    """The first fields of a DLTensor."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("kind", ctypes.c_int32),
        ("index", ctypes.c_int32),
    )


_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def is_far(tensor: Tensor) -> bool:
    return tensor.device.type == KIND


def near(tensor: Tensor) -> Tensor:
    """What a kernel sees of a tensor of the device."""
    if not is_far(tensor):
        return tensor
    if tensor.is_conj():  # a bit, of which DLPack knows nothing; conj() turns it over
        return near(tensor.conj()).conj()
    if tensor.is_neg():
        return torch._neg_view(near(torch._neg_view(tensor)))
    return _moved(tensor.detach(), _ON_CPU, -_HIDDEN)


def far(tensor: Tensor) -> Tensor:
    """A tensor of the device over the memory of one of the processor."""
    return _moved(tensor.resolve_conj().resolve_neg(), _ON_EXTENSION, _HIDDEN)


def _moved(tensor: Tensor, kind: int, by: int) -> Tensor:
    capsule = torch._C._to_dlpack(tensor)
    head = _Head.from_address(_pointer_in(capsule, b"dltensor"))
    if head.data:
        head.data += by
    head.kind, head.index = kind, 0
    return torch._C._from_dlpack(capsule)
