"""Tensors and greetings as bytes: a fixed header with a checksum, then the tensor's own memory.

Knows nothing of sockets. Whatever cannot be a header raises ProtocolError before
a byte of its payload is believed.
"""

import hmac
import math
import struct
import zlib
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.cluster import WorkerId
from holdfast.errors import ProtocolError
from holdfast.transport.base import Channel, Tag

VERSION = 2
MAX_DIMS = 8
TOKEN_BYTES = 16

_FRAME_MAGIC = b"HFtn"
_HELLO_MAGIC = b"HFhi"
_CRC = struct.Struct("<I")
# What differs from message to message: epoch, step, attempt, microbatch, part, time of sending ...
_NAME = struct.Struct("<IQ3IQ")
# ... and what hardly ever does: magic, version, channel, dtype, ndim | shape | payload bytes
_FORM = struct.Struct(f"<4s4B{MAX_DIMS}QQ")
# magic, version | token | pipeline, stage, epoch
_HELLO = struct.Struct(f"<4sB{TOKEN_BYTES}s3I")

FRAME_HEADER_BYTES = _FORM.size + _NAME.size + _CRC.size
HELLO_BYTES = _HELLO.size + _CRC.size

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
    dtype: torch.dtype
    shape: tuple[int, ...]
    payload_bytes: int
    sent_ns: int  # by the sender's monotonic clock


class Hello(NamedTuple):
    sender: WorkerId
    epoch: int


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


def encode_frame(
    epoch: int, tag: Tag, tensor: Tensor, payload_limit_bytes: int, sent_ns: int = 0
) -> bytes:
    """The header that goes before ``payload_view(tensor)``; ``tensor`` is in wire form."""
    if tensor.nbytes > payload_limit_bytes:
        raise ProtocolError(
            f"{tag} has {tensor.nbytes} bytes, the limit is {payload_limit_bytes} of the transport"
        )
    channel, *name = tag
    form = _encode_form(channel, tensor.dtype, tensor.shape)
    return _sealed(form + _pack(_NAME, epoch, *name, sent_ns))


def decode_frame(data: bytes | bytearray, payload_limit_bytes: int) -> FrameHeader:
    _check_seal(data, FRAME_HEADER_BYTES)
    form = bytes(data[: _FORM.size])
    channel, dtype, shape, payload_bytes = _decode_form(form, payload_limit_bytes)
    epoch, step, attempt, microbatch, part, sent_ns = _NAME.unpack_from(data, _FORM.size)
    tag = Tag(channel, step, attempt, microbatch, part)
    return FrameHeader(epoch, tag, dtype, shape, payload_bytes, sent_ns)


# A job uses few shapes, over and over: remembered, a form costs a tenth.
@lru_cache(maxsize=1024)
def _encode_form(channel: Channel, dtype: torch.dtype, shape: torch.Size) -> bytes:
    kind = (_FRAME_MAGIC, VERSION, channel, _CODES[dtype], len(shape))
    payload_bytes = math.prod(shape) * dtype.itemsize
    return _pack(_FORM, *kind, *shape, *_PADDING[len(shape)], payload_bytes)


@lru_cache(maxsize=1024)
def _decode_form(
    data: bytes, payload_limit_bytes: int
) -> tuple[Channel, torch.dtype, tuple[int, ...], int]:
    magic, version, channel_code, dtype_code, num_dims, *sizes, payload_bytes = _FORM.unpack(data)
    if magic != _FRAME_MAGIC or version != VERSION:
        raise ProtocolError(f"expected a frame of version {VERSION}, got {magic!r} {version}")
    channel, dtype = _CHANNELS.get(channel_code), _DTYPES.get(dtype_code)
    if channel is None or dtype is None or num_dims > MAX_DIMS:
        raise ProtocolError(
            f"unknown channel {channel_code}, dtype {dtype_code} or {num_dims} dimensions"
        )
    shape = tuple(sizes[:num_dims])
    expected_bytes = math.prod(shape) * dtype.itemsize
    if payload_bytes != expected_bytes or any(sizes[num_dims:]):
        raise ProtocolError(f"{dtype} {sizes} is {expected_bytes} bytes, not {payload_bytes}")
    if max(payload_bytes, *sizes) > payload_limit_bytes:
        raise ProtocolError(f"{dtype} {shape} is over the limit of {payload_limit_bytes} bytes")
    return channel, dtype, shape, payload_bytes


def empty_tensor(header: FrameHeader) -> Tensor:
    """Room for the payload of ``header``, to be filled through ``payload_view``."""
    try:
        return torch.empty(header.shape, dtype=header.dtype)
    except RuntimeError as error:  # out of memory, or sizes torch cannot represent
        raise ProtocolError(f"no room for {header.tag}, {header.payload_bytes} bytes") from error


def encode_hello(token: bytes, sender: WorkerId, epoch: int) -> bytes:
    return _sealed(_pack(_HELLO, _HELLO_MAGIC, VERSION, token, *sender, epoch))


def decode_hello(data: bytes | bytearray, token: bytes) -> Hello:
    """Who is calling. ProtocolError unless the caller knows the job's ``token``."""
    _check_seal(data, HELLO_BYTES)
    magic, version, their_token, pipeline, stage, epoch = _HELLO.unpack_from(data)
    if magic != _HELLO_MAGIC or version != VERSION:
        raise ProtocolError(f"expected a hello of version {VERSION}, got {magic!r} {version}")
    if not hmac.compare_digest(their_token, token):
        raise ProtocolError("wrong job token")
    return Hello(WorkerId(pipeline, stage), epoch)


def _pack(layout: struct.Struct, *values: object) -> bytes:
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ProtocolError(f"{values} does not fit the wire format: {error}") from error


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(zlib.crc32(body))


def _check_seal(data: bytes | bytearray, expected_bytes: int) -> None:
    if len(data) != expected_bytes:
        raise ProtocolError(f"expected {expected_bytes} bytes, got {len(data)}")
    if zlib.crc32(data[: -_CRC.size]) != _CRC.unpack_from(data, expected_bytes - _CRC.size)[0]:
        raise ProtocolError("checksum of the header does not match")
