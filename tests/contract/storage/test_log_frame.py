"""Whatever is logged comes back: every dtype and shape, bit for bit."""

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.harness.log_harness import LIMIT_S, reader, segments, writer
from holdfast.storage.log.frame import (
    HEADER_BYTES,
    Flag,
    FrameKind,
    FrameName,
    LogFrameHeader,
    decode_header,
    encode_header,
)
from holdfast.storage.log.tensors import encode_frame, frame_bytes

A = FrameKind.ACTIVATION

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def round_trip(tmp_path, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = writer(tmp_path)
    made.append(A, 2, 5, 1, 3, tensors)
    assert made.flush(LIMIT_S)
    made.close()
    return reader(tmp_path).read(A, 2, 5, 1, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape_comes_back_with_the_same_bits(tmp_path, dtype, shape):
    count = math.prod(shape) * dtype.itemsize
    raw = torch.arange(count, dtype=torch.int64).remainder(2 if dtype is torch.bool else 251)
    tensor = raw.to(torch.uint8).view(dtype).reshape(shape)
    (back,) = round_trip(tmp_path, tensor)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert bits(back) == bits(tensor)


def test_tensors_that_lie_crosswise_or_are_conjugated_come_back_with_the_same_values(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    lazy = torch.tensor([1 + 2j, 3 - 4j])
    wanted = [base.t(), base[:, ::2], base[1].expand(3, 6), lazy.conj(), lazy.conj().imag]
    back = round_trip(tmp_path, *wanted)
    assert all(torch.equal(a, b) for a, b in zip(back, wanted, strict=True))
    assert all(tensor.is_contiguous() for tensor in back)


def test_requires_grad_comes_back_as_it_was_when_it_was_logged(tmp_path):
    tensors = [torch.ones(2, requires_grad=True), torch.ones(2), torch.ones(2, dtype=torch.int64)]
    assert [t.requires_grad for t in round_trip(tmp_path, *tensors)] == [True, False, False]


def test_a_receiver_that_changes_requires_grad_later_does_not_show_in_the_log(tmp_path):
    made, tensor = writer(tmp_path, max_age_s=1e6), torch.ones(2, requires_grad=True)
    made.append(A, 0, 0, 0, 0, (tensor,))
    tensor.requires_grad_(False)
    assert made.flush(LIMIT_S)
    made.close()
    assert reader(tmp_path).read(A, 0, 0, 0, 0)[0].requires_grad


def test_sixteen_tensors_and_none_at_all_come_back(tmp_path):
    many = [torch.full((i,), float(i)) for i in range(16)]
    back = round_trip(tmp_path / "many", *many)
    assert all(torch.equal(a, b) for a, b in zip(back, many, strict=True))
    assert round_trip(tmp_path / "none") == ()


def test_what_was_read_is_memory_of_its_own(tmp_path):
    first, second = round_trip(tmp_path, torch.zeros(4), torch.zeros(4))
    first.fill_(1.0)
    assert second.sum() == 0
    assert first.untyped_storage().nbytes() == first.nbytes


@pytest.mark.parametrize("norm", [1.5, 0.1 + 0.2, math.nan, math.inf, 5e-324])
@pytest.mark.parametrize("scale", [None, 0.0, 1 / 3])
@pytest.mark.parametrize("skip", [False, True])
def test_numbers_of_a_verdict_are_exact(tmp_path, norm, scale, skip):
    flags = (Flag.SCALED if scale is not None else Flag.NONE) | (Flag.SKIP if skip else Flag.NONE)
    made = writer(tmp_path)
    numbers = torch.tensor([norm, scale or 0.0], dtype=torch.float64)
    made.append(FrameKind.VERDICT, 3, 4, 0, 0, (numbers,), flags)
    made.close()
    found = reader(tmp_path).verdict(4)
    assert struct.pack("d", found.norm) == struct.pack("d", norm)
    assert (found.scale, found.skip) == (scale, skip)


@pytest.mark.parametrize("touched", [False, True])
def test_a_tied_gradient_is_found_whichever_stage_logged_it(tmp_path, touched):
    made = writer(tmp_path)
    flags = Flag.TOUCHED if touched else Flag.NONE
    made.append(FrameKind.TIED, 3, 4, 1, 2, (torch.arange(16.0),), flags)
    made.close()
    values, was_touched = reader(tmp_path).tied(2, 4, 1)
    assert torch.equal(values, torch.arange(16.0))
    assert was_touched is touched


def test_the_size_of_a_frame_is_known_beforehand(tmp_path):
    tensors = [torch.ones(3, 5), torch.ones((), dtype=torch.bfloat16), torch.ones(0)]
    parts = encode_frame(FrameName(A, 0, 0, 0, 0), Flag.NONE, tensors, [False] * 3)
    assert frame_bytes(tensors) == sum(map(len, parts))


def test_a_contiguous_tensor_is_not_copied_to_be_written():
    tensor = torch.zeros(8)
    parts = encode_frame(FrameName(A, 0, 0, 0, 0), Flag.NONE, [tensor], [False])
    tensor.fill_(1.0)
    assert bytes(parts[2]) == bits(tensor)


SMALL, LARGE = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@given(
    kind=st.sampled_from(FrameKind),
    numbers=st.tuples(SMALL, LARGE, SMALL, SMALL),
    sizes=st.tuples(st.integers(0, 16), SMALL, LARGE),
    at=st.integers(0, HEADER_BYTES - 1),
    flip=st.integers(1, 255),
)
def test_a_header_comes_back_and_any_changed_byte_of_it_is_noticed(kind, numbers, sizes, at, flip):
    header = LogFrameHeader(FrameName(kind, *numbers), Flag.SKIP, *sizes)
    data = bytearray(encode_header(header))
    assert decode_header(bytes(data)) == header
    data[at] ^= flip
    assert decode_header(bytes(data)) is None


def test_a_segment_says_whose_it_is(tmp_path):
    round_trip(tmp_path, torch.ones(1))
    (path,) = segments(tmp_path)
    assert b'{"run": "7", "worker": "0.1"}' in path.read_bytes()[:100]
