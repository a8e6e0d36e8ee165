"""Messages survive the wire; anything else becomes one kind of error at the edge."""

import json
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.stamps import stamps_of_both
from holdfast.errors import ProtocolError
from holdfast.protocol import codec, messages

text = st.text(max_size=20)
workers = st.builds("{}.{}".format, st.integers(0, 9999), st.integers(0, 9999))
reports = st.builds(
    messages.StepReport,
    worker=workers,
    step=st.integers(0, 9_999_999_999),
    losses=st.lists(st.tuples(st.integers(0, 99), st.floats(allow_nan=False)).map(list)),
    num_tokens=st.integers(0, 10**9),
    norm=st.floats(allow_nan=False),
    clipped=st.booleans(),
    skipped=st.booleans(),
    taken_back=st.booleans(),
    operations=st.lists(st.tuples(text, st.floats(0, 1), st.floats(0, 1)).map(list), max_size=4),
    transfers=st.lists(st.tuples(text, text, st.integers(0, 9)).map(list), max_size=4),
)
anything = st.one_of(
    reports,
    st.builds(messages.Stop, reason=text),
    st.builds(messages.Ready, worker=workers),
    st.builds(messages.WorkerNotStarted, worker=workers, reason=text),
    st.builds(messages.WorkerExited, worker=workers, pid=st.integers(1, 9999), how=text),
)


@given(st.lists(anything, max_size=5), st.integers(1, 50))
def test_messages_arrive_whole_however_the_stream_is_chopped(sent, size) -> None:
    stamps, their_stamps = stamps_of_both()
    stream = b"".join(stamps.stamped(codec.encode(message)) for message in sent)
    splitter = codec.Splitter(their_stamps)
    got = []
    for start in range(0, len(stream), size):
        got += splitter.feed(stream[start : start + size])
    assert got == sent


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error_and_nothing_else(garbage) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(garbage)


@pytest.mark.parametrize("kind", get_args(messages.Message), ids=lambda cls: cls.__name__)
def test_a_missing_field_is_refused(kind) -> None:
    body = json.dumps({"v": codec.VERSION, "kind": kind.__name__, "surprise": 1}).encode()
    assert "surprise" not in {field.name for field in fields(kind)}
    with pytest.raises(ProtocolError, match="surprise"):
        codec.decode(body)


def test_a_field_of_the_wrong_type_is_refused() -> None:
    body = json.dumps({"v": codec.VERSION, "kind": "WorkerStarted", "worker": "0.0", "pid": "x"})
    with pytest.raises(ProtocolError, match="pid"):
        codec.decode(body.encode())


def test_another_version_is_refused() -> None:
    body = json.dumps({"v": codec.VERSION + 1, "kind": "Stop", "reason": ""}).encode()
    with pytest.raises(ProtocolError, match="version"):
        codec.decode(body)


def test_an_announced_giant_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="announced"):
        codec.Splitter(stamps_of_both()[0]).feed(b"\xff\xff\xff\xff")
