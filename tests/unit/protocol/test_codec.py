"""Messages survive the wire; anything else becomes one kind of error at the edge."""

import json
import zlib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.stamps import stamps_of_both
from holdfast.config import RunConfig
from holdfast.errors import ProtocolError
from holdfast.protocol import codec, messages
from holdfast.protocol.records import KeptRow, MicrobatchLoss, OperationTime, Transfers, VerdictRow

text = st.text(st.characters(codec="utf-8"), max_size=20)
workers = st.builds("{}.{}".format, st.integers(0, 9999), st.integers(0, 9999))
seconds = st.floats(0, 1e9)
operations = st.builds(
    OperationTime,
    op=st.sampled_from(["0F0", "3BW12", "9999R"]),
    start_s=seconds,
    end_s=seconds,
    cpu_s=seconds,
    elements=st.integers(0, 10**9),
)
transfers = st.builds(
    Transfers,
    source=workers,
    purpose=st.sampled_from(["pipeline", "reduction", "probe"]),
    number=st.integers(0, 99),
    num_bytes=st.integers(0, 10**12),
    moved_s=st.floats(-1e9, 1e9),
)
losses = st.builds(
    MicrobatchLoss,
    microbatch=st.integers(0, 99),
    loss=st.floats(allow_nan=False),
    weight=st.floats(allow_nan=False),
)
verdicts = st.builds(
    VerdictRow,
    norm=st.floats(allow_nan=False),
    scale=st.none() | st.floats(0, 1),
    skip=st.booleans(),
)
reports = st.builds(
    messages.StepReport,
    worker=workers,
    step=st.integers(0, 9_999_999_999),
    losses=st.lists(losses, max_size=4),
    num_tokens=st.integers(0, 10**9),
    norm=st.floats(allow_nan=False),
    clipped=st.booleans(),
    skipped=st.booleans(),
    taken_back=st.booleans(),
    operations=st.lists(operations, max_size=4),
    transfers=st.lists(transfers, max_size=4),
)
tells = st.builds(
    messages.Inventory,
    worker=workers,
    epoch=st.integers(0, 99),
    reduced=st.integers(-2, 99),
    oldest=st.integers(-2, 99),
    attempt=st.integers(0, 1),
    progress=st.dictionaries(st.integers(0, 99), st.integers(0, 3), max_size=4),
    kept=st.lists(
        st.builds(KeptRow, step=st.integers(0, 9), activations=st.just([1]), gradients=st.just([]))
    ),
    verdicts=st.dictionaries(st.integers(0, 99), verdicts, max_size=4),
    kept_bytes=st.integers(0, 9),
    done=st.integers(0, 9),
    saving=st.integers(0, 9),
    commits=st.lists(st.integers(0, 9)),
)
anything = st.one_of(
    reports,
    tells,
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


# --- nothing is left unchecked ---


def parts_of(hint: Any) -> Iterator[Any]:
    """The type and all types inside of it, those of records too."""
    yield hint
    own = get_type_hints(hint, include_extras=True).values() if hasattr(hint, "_fields") else ()
    for inner in (*get_args(hint), *own):
        yield from parts_of(inner)


@pytest.mark.parametrize("kind", get_args(messages.Message), ids=lambda cls: cls.__name__)
def test_every_field_says_what_is_in_it(kind) -> None:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        unchecked = [one for one in parts_of(hint) if one in (Any, object, list, dict, tuple, set)]
        assert not unchecked, f"{kind.__name__}.{name}: {hint}"


ORDER = messages.StartWorkers(
    workers=["0.0"],
    job="/job.py",
    job_sha256="5a" * 32,
    run_dir="/runs/x",
    resumed="",
    config=RunConfig(),
)


def test_settings_arrive_as_settings() -> None:
    assert codec.decode(codec.encode(ORDER)[4:]) == ORDER


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("train", "steps", -1), ("recovery", "log_dir", "/a/../b"), ("recovery", "log_mirror", "a")],
)
def test_settings_that_cannot_be_run_are_refused_with_their_name(section, name, value) -> None:
    body = json.loads(codec.encode(ORDER)[4:])
    body["config"]["recovery"]["log"] = "boundary"
    body["config"][section][name] = value
    with pytest.raises(ProtocolError, match=rf"StartWorkers\.config.*{section}\.{name}"):
        codec.decode(json.dumps(body).encode())


def test_text_that_is_no_unicode_is_made_readable() -> None:
    body = json.dumps(
        {"v": codec.VERSION, "kind": "Stop", "reason": "a\ud800b", "is_over": False}
    ).encode()
    assert codec.decode(body) == messages.Stop(reason="a?b")


def test_a_long_message_is_compressed_and_comes_through_as_it_was():
    lanes = "".join(f"{p}.{s}: 0F1 0B1 0W1 0R\n" for p in range(200) for s in range(8))
    long = messages.Offer(epoch=3, number=1, schedule=lanes)
    frame = codec.encode(long)
    assert len(frame) < len(lanes) // 4
    assert codec.decode(codec.body_of(frame)) == long
    sender, receiver = stamps_of_both()
    assert codec.Splitter(receiver).feed(sender.stamped(frame)) == [long]


def test_a_compressed_message_that_is_cut_off_or_padded_or_none_is_refused():
    frame = codec.encode(messages.Offer(epoch=3, number=1, schedule="x" * 100_000))
    for bad in (frame[:-5], frame + b"more", frame[:4] + b"no zlib at all"):
        with pytest.raises(ProtocolError, match="compressed message"):
            codec.body_of(bad)


def test_a_small_frame_does_not_become_a_huge_message():
    body = b" " * (codec.MAX_MESSAGE_BYTES + 1)
    packed = zlib.compress(body, 9)
    frame = (len(packed) | 1 << 31).to_bytes(4, "little") + packed
    with pytest.raises(ProtocolError, match=f"over {codec.MAX_MESSAGE_BYTES}"):
        codec.body_of(frame)
