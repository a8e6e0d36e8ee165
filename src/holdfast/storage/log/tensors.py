"""Tensors in frames of the boundary log: their shapes in a few bytes, their memory as it is.

Any dtype that can be seen as bytes. Knows nothing of files.
"""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.storage.log.frame import (
    HEADER_BYTES,
    SEAL_BYTES,
    Flag,
    FrameName,
    LogFrameHeader,
    encode_header,
    seal,
)

_HEAD = struct.Struct("<3B")  # requires_grad, length of the dtype's name, dimensions


class TensorShape(NamedTuple):
    dtype: torch.dtype
    sizes: tuple[int, ...]
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize


def encode_frame(
    name: FrameName, flags: Flag, tensors: Sequence[Tensor], requires_grad: Sequence[bool]
) -> list[bytes | memoryview]:
    """The parts of a frame, to be written one after the other; contiguous tensors are not copied.

    ``requires_grad``: of each tensor, as it was when it was made.
    """
    shapes = b"".join(map(_encode_shape, tensors, requires_grad))
    payload_bytes = len(shapes) + sum(tensor.nbytes for tensor in tensors)
    header = encode_header(LogFrameHeader(name, flags, len(tensors), len(shapes), payload_bytes))
    parts: list[bytes | memoryview] = [header, shapes, *map(_memory, tensors)]
    return [*parts, seal(parts)]


def frame_bytes(tensors: Sequence[Tensor]) -> int:
    """What a frame of these takes in a file."""
    shapes = sum(len(_encode_shape(tensor, False)) for tensor in tensors)
    return HEADER_BYTES + shapes + sum(tensor.nbytes for tensor in tensors) + SEAL_BYTES


def _encode_shape(tensor: Tensor, requires_grad: bool) -> bytes:
    name = str(tensor.dtype).removeprefix("torch.").encode()
    head = _HEAD.pack(requires_grad, len(name), tensor.ndim)
    return head + name + struct.pack(f"<{tensor.ndim}Q", *tensor.shape)


def decode_shapes(data: bytes, num_tensors: int) -> list[TensorShape]:
    """ValueError if these are no shapes."""
    shapes, at = [], 0
    try:
        for _ in range(num_tensors):
            requires_grad, length, num_dims = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            dtype = getattr(torch, data[at : at + length].decode("ascii"), None)
            at += length
            sizes = struct.unpack_from(f"<{num_dims}Q", data, at)
            at += 8 * num_dims
            if not isinstance(dtype, torch.dtype):
                raise ValueError("unknown dtype")
            shapes.append(TensorShape(dtype, sizes, bool(requires_grad)))
    except (struct.error, UnicodeDecodeError) as why:
        raise ValueError(str(why)) from why
    return shapes


def empty(shape: TensorShape) -> tuple[Tensor, memoryview]:
    """A tensor of memory of its own, and that memory to be filled."""
    tensor = torch.empty(shape.sizes, dtype=shape.dtype)
    return tensor, _memory(tensor)


def _memory(tensor: Tensor) -> memoryview:
    if tensor.numel() == 0:
        return memoryview(b"")
    # Lazily conjugated or negated tensors have other bytes than values.
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.view(-1).view(torch.uint8).numpy().data
