"""Tensors as bytes: a header with a checksum of the tensor and a stamp, then the tensor's memory.

Knows nothing of sockets and of keys: stamps are put on and checked outside. Whatever cannot be a
header raises ProtocolError before a byte of its payload is believed.
"""

import math
import struct
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from holdfast.auth.stamps import STAMP_BYTES
from holdfast.errors import ProtocolError
from holdfast.transport.base import ALONE, MAX_BUNDLE, Bundle, Channel, Tag

VERSION = 5
MAX_DIMS = 8

_FRAME_MAGIC = b"HFtn"
_SEQUENCE = struct.Struct("<Q")
# What differs from message to message: epoch, step, attempt, microbatch, part, time of sending,
# checksum of the tensor ...
_NAME = struct.Struct("<IQ3IQQ")
# ... and what hardly ever does: magic, version, channel, dtype, ndim, tensors of its bundle,
# whether it requires a gradient | shape | payload bytes
_FORM = struct.Struct(f"<4s6B{MAX_DIMS}QQ")

_BODY_BYTES = _FORM.size + _NAME.size + _SEQUENCE.size
FRAME_HEADER_BYTES = _BODY_BYTES + STAMP_BYTES  # on the wire

_DTYPES = {  # codes are part of the wire format: add, never renumber
    1: torch.float16,
    2: torch.float32,
    3: torch.float64,
    4: torch.bfloat16,
    5: torch.int8,
    6: torch.int16,
    7: torch.int32,
    8: torch.int64,
    9: torch.uint8,
    10: torch.bool,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_CHANNELS = {int(channel): channel for channel in Channel}
_UNKNOWN_TO_MEMORYVIEW = (torch.bfloat16, torch.float16)
_PADDING = [(0,) * (MAX_DIMS - num_dims) for num_dims in range(MAX_DIMS + 1)]


class FrameHeader(NamedTuple):
    epoch: int
    tag: Tag
    bundle: Bundle
    dtype: torch.dtype
    shape: tuple[int, ...]
    payload_bytes: int
    sent_ns: int  # by the sender's monotonic clock
    checksum: int  # of the payload
    sequence: int  # of its link, from 1 on


class Note(Enum):
    """What is said between frames. As long as a header, so that one read serves both."""

    BYE = b"HFby"  # nothing more will come
    SYNC = b"HFsy"  # acknowledge what has come


def wire_form(tensor: Tensor) -> Tensor:
    """The same values as they arrive: contiguous, without autograd history. Rarely copies."""
    if not tensor.is_cpu or tensor.dtype not in _CODES or tensor.ndim > MAX_DIMS:
        raise ProtocolError(
            f"cannot send a {tensor.dtype} tensor of {tensor.ndim} dimensions on {tensor.device}: "
            f"need a CPU tensor of at most {MAX_DIMS} dimensions and one of {list(_CODES)}"
        )
    return tensor.detach().contiguous()


def payload_view(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor as bytes, shared and not copied; keeps the tensor alive."""
    if tensor.numel() == 0:
        return memoryview(b"")
    if tensor.dtype in _UNKNOWN_TO_MEMORYVIEW:
        tensor = tensor.view(torch.int16)
    return tensor.numpy().data.cast("B")


def checksum_of(payload: memoryview) -> int:
    """Of what is sent, and of what has arrived."""
    return xxh3_64_intdigest(payload)


def encode_frame(
    epoch: int,
    tag: Tag,
    tensor: Tensor,
    payload_limit_bytes: int,
    *,
    bundle: Bundle = ALONE,
    sent_ns: int = 0,
    checksum: int = 0,
) -> bytes:
    """Most of the header that goes before ``payload_view(tensor)``, which is in wire form.

    It is ``numbered`` when it leaves: what never does leaves no gap.
    """
    if tensor.nbytes > payload_limit_bytes:
        raise ProtocolError(
            f"{tag} has {tensor.nbytes} bytes, the limit is {payload_limit_bytes} of the transport"
        )
    _check_part(tag, bundle)
    channel, *name = tag
    form = _encode_form(channel, tensor.dtype, tensor.shape, bundle)
    return form + _pack(_NAME, epoch, *name, sent_ns, checksum)


def numbered(header: bytes, sequence: int) -> bytes:
    return header + _SEQUENCE.pack(sequence)


def encode_note(note: Note) -> bytes:
    return note.value.ljust(_BODY_BYTES, b"\0")


def decode_note(data: bytes) -> Note | None:
    """None: it is no note."""
    return None if data.startswith(_FRAME_MAGIC) else _NOTES.get(data)


def decode_frame(data: bytes, payload_limit_bytes: int) -> FrameHeader:
    check_size(data, _BODY_BYTES)
    form = data[: _FORM.size]
    channel, dtype, shape, payload_bytes, bundle = _decode_form(form, payload_limit_bytes)
    epoch, *name, sent_ns, checksum = _NAME.unpack_from(data, _FORM.size)
    (sequence,) = _SEQUENCE.unpack_from(data, _FORM.size + _NAME.size)
    tag = Tag(channel, *name)
    _check_part(tag, bundle)
    return FrameHeader(epoch, tag, bundle, dtype, shape, payload_bytes, sent_ns, checksum, sequence)


def _check_part(tag: Tag, bundle: Bundle) -> None:
    if tag.part >= bundle.size > 1:
        raise ProtocolError(f"{tag}: it is one of {bundle.size} tensors, from part 0 on")


def _check_bundle(bundle: Bundle, channel: Channel, dtype: torch.dtype) -> None:
    size, requires_grad = bundle
    if not 1 <= size <= MAX_BUNDLE:
        raise ProtocolError(f"one of {size} tensors: expected 1 to {MAX_BUNDLE}")
    if requires_grad and not (channel is Channel.ACTIVATION and dtype.is_floating_point):
        raise ProtocolError(f"{channel.name} of {dtype} cannot require a gradient")


# A job uses few shapes, over and over: remembered, a form costs a tenth.
@lru_cache(maxsize=1024)
def _encode_form(channel: Channel, dtype: torch.dtype, shape: torch.Size, bundle: Bundle) -> bytes:
    _check_bundle(bundle, channel, dtype)
    kind = (_FRAME_MAGIC, VERSION, channel, _CODES[dtype], len(shape), *bundle)
    payload_bytes = math.prod(shape) * dtype.itemsize
    return _pack(_FORM, *kind, *shape, *_PADDING[len(shape)], payload_bytes)


@lru_cache(maxsize=1024)
def _decode_form(
    data: bytes, payload_limit_bytes: int
) -> tuple[Channel, torch.dtype, tuple[int, ...], int, Bundle]:
    magic, version, channel_code, dtype_code, *rest = _FORM.unpack(data)
    num_dims, bundle_size, requires_grad, *sizes, payload_bytes = rest
    if magic != _FRAME_MAGIC or version != VERSION:
        raise ProtocolError(f"expected a frame of version {VERSION}, got {magic!r} {version}")
    channel, dtype = _CHANNELS.get(channel_code), _DTYPES.get(dtype_code)
    if channel is None or dtype is None or num_dims > MAX_DIMS:
        raise ProtocolError(
            f"unknown channel {channel_code}, dtype {dtype_code} or {num_dims} dimensions"
        )
    if requires_grad > 1:
        raise ProtocolError(f"whether it requires a gradient: {requires_grad}, expected 0 or 1")
    bundle = Bundle(bundle_size, bool(requires_grad))
    _check_bundle(bundle, channel, dtype)
    shape = tuple(sizes[:num_dims])
    expected_bytes = math.prod(shape) * dtype.itemsize
    if payload_bytes != expected_bytes or any(sizes[num_dims:]):
        raise ProtocolError(f"{dtype} {sizes} is {expected_bytes} bytes, not {payload_bytes}")
    if max(payload_bytes, *sizes) > payload_limit_bytes:
        raise ProtocolError(f"{dtype} {shape} is over the limit of {payload_limit_bytes} bytes")
    return channel, dtype, shape, payload_bytes, bundle


def empty_tensor(header: FrameHeader) -> Tensor:
    """Room for the payload of ``header``, to be filled through ``payload_view``."""
    try:
        return torch.empty(header.shape, dtype=header.dtype)
    except RuntimeError as error:  # out of memory, or sizes torch cannot represent
        raise ProtocolError(f"no room for {header.tag}, {header.payload_bytes} bytes") from error


def _pack(layout: struct.Struct, *values: object) -> bytes:
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ProtocolError(f"{values} does not fit the wire format: {error}") from error


def check_size(data: bytes, expected_bytes: int) -> None:
    if len(data) != expected_bytes:
        raise ProtocolError(f"expected {expected_bytes} bytes, got {len(data)}")


_NOTES = {encode_note(note): note for note in Note}
