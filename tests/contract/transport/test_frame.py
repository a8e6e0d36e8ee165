"""The wire format: all that is sent can be read, nothing else is believed."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.auth.stamps import STAMP_BYTES
from holdfast.errors import ProtocolError
from holdfast.transport.base import MAX_BUNDLE, Bundle, Channel, Tag
from holdfast.transport.frame import (
    FRAME_HEADER_BYTES,
    Note,
    checksum_of,
    decode_frame,
    decode_note,
    encode_frame,
    encode_note,
    numbered,
    payload_view,
    wire_form,
)
from holdfast.transport.tcp.greeting import (
    ANSWER_BYTES,
    HELLO_BYTES,
    SessionHello,
    decode_answer,
    decode_hello,
    encode_answer,
    encode_hello,
)

LIMIT_BYTES = 1 << 20
DTYPES = [
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]

untimed = settings(deadline=None)  # a busy machine is no error
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
tags = st.builds(Tag, st.sampled_from(Channel), u64, u32, u32, u32)
shapes = st.lists(st.integers(0, 3), max_size=8).map(tuple)
tensors = st.builds(torch.zeros, shapes, dtype=st.sampled_from(DTYPES))
FRAME = numbered(
    encode_frame(3, Tag(Channel.GRADIENT, 7, 1, 2, 3), torch.zeros(2, 5), LIMIT_BYTES, sent_ns=99),
    6,
)


def forged(header: bytes, offset: int, layout: str, value: int) -> bytes:
    """``header`` with another value at ``offset``."""
    body = bytearray(header)
    struct.pack_into(layout, body, offset, value)
    return bytes(body)


@untimed
@given(
    epoch=u32,
    tag=tags,
    size=st.integers(1, MAX_BUNDLE),
    asks=st.booleans(),
    tensor=tensors,
    sent_ns=u64,
    checksum=u64,
    sequence=u64,
)
def test_a_frame_reads_as_it_was_written(
    epoch, tag, size, asks, tensor, sent_ns, checksum, sequence
):
    tag = tag._replace(part=tag.part % size) if size > 1 else tag
    can = tag.channel is Channel.ACTIVATION and tensor.is_floating_point()
    bundle, times = Bundle(size, asks and can), {"sent_ns": sent_ns, "checksum": checksum}
    header = encode_frame(epoch, tag, tensor, LIMIT_BYTES, bundle=bundle, **times)
    header = numbered(header, sequence)
    assert len(header) + STAMP_BYTES == FRAME_HEADER_BYTES
    assert decode_note(header) is None
    assert decode_frame(header, LIMIT_BYTES) == (
        epoch,
        tag,
        bundle,
        tensor.dtype,
        tensor.shape,
        tensor.nbytes,
        sent_ns,
        checksum,
        sequence,
    )


@untimed
@given(session=u64, epoch=u32, resumes=st.booleans())
def test_a_hello_reads_as_it_was_written(session, epoch, resumes):
    data = encode_hello(SessionHello(session, epoch, resumes))
    assert len(data) + STAMP_BYTES == HELLO_BYTES
    assert decode_hello(data) == SessionHello(session, epoch, resumes)


@untimed
@given(num_received=u64)
def test_an_answer_reads_as_it_was_written(num_received):
    data = encode_answer(num_received)
    assert len(data) + STAMP_BYTES == ANSWER_BYTES
    assert decode_answer(data) == num_received


@pytest.mark.parametrize("note", Note)
def test_a_note_is_as_long_as_a_header_and_is_none(note):
    data = encode_note(note)
    assert decode_note(data) is note
    with pytest.raises(ProtocolError):
        decode_frame(data, LIMIT_BYTES)
    assert decode_note(data[:-1] + b"?") is None


@untimed
@given(data=st.binary(min_size=1, max_size=300), bit=st.integers(0, 2399))
def test_any_bit_that_differs_shows_in_the_checksum(data, bit):
    damaged = bytearray(data)
    damaged[bit // 8 % len(data)] ^= 1 << bit % 8
    assert checksum_of(memoryview(damaged)) != checksum_of(memoryview(data))


@untimed
@given(st.binary(max_size=2 * FRAME_HEADER_BYTES))
def test_other_bytes_are_neither_frame_nor_hello(data):
    with pytest.raises(ProtocolError):
        decode_frame(data, LIMIT_BYTES)
    with pytest.raises(ProtocolError):
        decode_hello(data)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (0, "<I", 0, "expected a frame"),
        (4, "<B", 9, "expected a frame of version 5"),
        (5, "<B", 99, "unknown channel 99"),
        (6, "<B", 99, "dtype 99"),
        (7, "<B", 9, "9 dimensions"),
        (7, "<B", 1, "not 40"),
        (8, "<B", 0, "one of 0 tensors: expected 1 to 16"),
        (8, "<B", 17, "one of 17 tensors: expected 1 to 16"),
        (8, "<B", 3, "part 3: it is one of 3 tensors, from part 0 on"),
        (9, "<B", 2, "whether it requires a gradient: 2"),
        (9, "<B", 1, "GRADIENT of .* cannot require a gradient"),
        (10, "<Q", 3, "is 60 bytes, not 40"),
        (26, "<Q", 1, "not 40"),
        (74, "<Q", 41, "is 40 bytes, not 41"),
    ],
    ids=[
        "magic",
        "version",
        "channel",
        "dtype",
        "ndim",
        "fewer",
        "no bundle",
        "large bundle",
        "beyond bundle",
        "flag",
        "gradient of gradient",
        "shape",
        "padding",
        "payload",
    ],
)
def test_a_well_formed_lie_is_refused_for_what_it_says(offset, layout, value, message):
    with pytest.raises(ProtocolError, match=message):
        decode_frame(forged(FRAME, offset, layout, value), LIMIT_BYTES)


def test_a_payload_over_the_limit_is_refused_on_both_sides():
    with pytest.raises(ProtocolError, match="40 bytes, the limit is 39"):
        encode_frame(0, Tag(Channel.NOTES, 0), torch.zeros(10), 39)
    with pytest.raises(ProtocolError, match="over the limit of 39 bytes"):
        decode_frame(FRAME, 39)


def test_an_empty_tensor_with_a_huge_side_is_refused():
    header = numbered(encode_frame(0, Tag(Channel.NOTES, 0), torch.zeros(0, 5), LIMIT_BYTES), 1)
    with pytest.raises(ProtocolError, match="over the limit"):
        decode_frame(forged(header, 18, "<Q", 2**63), LIMIT_BYTES)


@pytest.mark.parametrize(
    "tag", [Tag(Channel.NOTES, -1), Tag(Channel.NOTES, 0, part=2**32)], ids=["negative", "large"]
)
def test_a_tag_that_does_not_fit_is_refused(tag):
    with pytest.raises(ProtocolError, match="does not fit the wire format"):
        encode_frame(0, tag, torch.zeros(1), LIMIT_BYTES)


@pytest.mark.parametrize(
    ("bundle", "tag", "dtype", "message"),
    [
        (Bundle(0), Tag(Channel.ACTIVATION, 0), torch.float32, "one of 0 tensors"),
        (Bundle(17), Tag(Channel.ACTIVATION, 0), torch.float32, "one of 17 tensors"),
        (
            Bundle(2),
            Tag(Channel.ACTIVATION, 0, part=2),
            torch.float32,
            "part 2: it is one of 2",
        ),
        (Bundle(1, True), Tag(Channel.ACTIVATION, 0), torch.int64, "int64 cannot require"),
        (Bundle(1, True), Tag(Channel.PARTIAL, 0), torch.float32, "PARTIAL .* cannot require"),
    ],
    ids=["none", "too many", "beyond", "integers", "no activation"],
)
def test_a_bundle_that_cannot_be_is_not_sent(bundle, tag, dtype, message):
    with pytest.raises(ProtocolError, match=message):
        encode_frame(0, tag, torch.zeros(1, dtype=dtype), LIMIT_BYTES, bundle=bundle)


def test_an_activation_of_integers_cannot_require_a_gradient():
    tag = Tag(Channel.ACTIVATION, 0)
    header = numbered(encode_frame(0, tag, torch.zeros(1, dtype=torch.int64), LIMIT_BYTES), 1)
    with pytest.raises(ProtocolError, match="int64 cannot require a gradient"):
        decode_frame(forged(header, 9, "<B", 1), LIMIT_BYTES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_payload_is_the_tensors_own_memory(dtype):
    tensor = torch.zeros(2, 3, dtype=dtype)
    payload_view(tensor)[-tensor.itemsize :] = b"\1" * tensor.itemsize
    assert tensor[1, 2] != 0
    assert tensor.count_nonzero() == 1


def test_a_contiguous_tensor_is_not_copied_and_a_slice_is():
    tensor = torch.arange(6).reshape(2, 3)
    assert wire_form(tensor).data_ptr() == tensor.data_ptr()
    assert bytes(payload_view(wire_form(tensor[:, 1]))) == bytes(payload_view(torch.tensor([1, 4])))
