"""Stamps: only the next frame of the other end is opened, and only as it was sent."""

from hashlib import sha256

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.stamps import stamps_of_both
from holdfast.auth.stamps import LONG_BYTES, STAMP_BYTES, LongFrame, Stamps
from holdfast.errors import ProtocolError

bodies = st.binary(max_size=60)


@given(st.lists(bodies, max_size=6))
def test_frames_are_opened_in_their_order_both_ways(sent):
    one, two = stamps_of_both()
    assert [two.opened(one.stamped(body)) for body in sent] == sent
    assert [one.opened(two.stamped(body)) for body in sent] == sent


@given(body=bodies, position=st.integers(0), change=st.integers(1, 255))
def test_any_byte_changed_is_refused(body, position, change):
    one, two = stamps_of_both()
    data = bytearray(one.stamped(body))
    assert len(data) == len(body) + STAMP_BYTES
    data[position % len(data)] ^= change
    with pytest.raises(ProtocolError, match="wrong stamp"):
        two.opened(data)


@given(order=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_frames_that_are_repeated_moved_or_left_out_are_refused(order):
    assume(order != list(range(len(order))))
    one, two = stamps_of_both()
    frames = [one.stamped(b"the same each time") for _ in range(4)]

    def open_all() -> None:
        for number in order:
            two.opened(frames[number])

    with pytest.raises(ProtocolError, match="wrong stamp"):
        open_all()


def test_a_frame_that_was_refused_does_not_take_the_place_of_the_next():
    one, two = stamps_of_both()
    with pytest.raises(ProtocolError):
        two.opened(bytes(40))
    assert two.opened(one.stamped(b"first")) == b"first"


def test_what_is_not_numbered_may_come_in_any_order_but_in_no_other_place():
    one, two = stamps_of_both()
    late, early = one.stamped_unnumbered(b"1"), one.stamped_unnumbered(b"2")
    assert [two.opened_unnumbered(data) for data in (early, late, early)] == [b"2", b"1", b"2"]
    with pytest.raises(ProtocolError):
        two.opened(late)
    with pytest.raises(ProtocolError):
        two.opened_unnumbered(one.stamped(b"1"))


@given(st.binary(max_size=100))
def test_noise_is_refused(data):
    with pytest.raises(ProtocolError, match="wrong stamp"):
        stamps_of_both()[0].opened(data)


def test_what_one_said_is_not_taken_from_the_other():
    one, _ = stamps_of_both()
    with pytest.raises(ProtocolError):
        one.opened(one.stamped(b"mirror"))
    with pytest.raises(ProtocolError):
        Stamps(bytes(32), bytes(32)).opened(one.stamped(b"of another connection"))


@pytest.mark.parametrize("length", [LONG_BYTES - 1, LONG_BYTES, 3 * LONG_BYTES])
@pytest.mark.parametrize("kind", [bytes, LongFrame])
def test_long_frames_are_opened_as_they_were_sent_and_not_otherwise(length, kind):
    one, two = stamps_of_both()
    body = kind(bytes(range(256)) * (length // 256 + 1))[:length]
    assert two.opened(one.stamped(kind(body))) == body
    again = one.stamped(kind(body))
    for position in (0, length // 2, length - 1, length, length + STAMP_BYTES - 1):
        changed = bytearray(again)
        changed[position] ^= 1
        with pytest.raises(ProtocolError, match="wrong stamp"):
            two.opened(changed)
    with pytest.raises(ProtocolError, match="wrong stamp"):
        two.opened(again[1:])
    assert two.opened(again) == body


def test_one_long_frame_has_another_stamp_on_each_connection():
    frame = LongFrame(bytes(LONG_BYTES))
    one, _ = stamps_of_both()
    two, its_end = Stamps(b"1" * 32, b"2" * 32), Stamps(b"2" * 32, b"1" * 32)
    with pytest.raises(ProtocolError, match="wrong stamp"):
        its_end.opened(one.stamped(frame))
    assert its_end.opened(two.stamped(frame)) == frame


def test_the_digest_of_a_long_frame_is_not_taken_for_it_nor_it_for_the_digest():
    frame = bytes(LONG_BYTES)
    digest = sha256(frame).digest()
    for sent, put_in in ((frame, digest), (digest, frame)):
        one, two = stamps_of_both()
        stamp = one.stamped(sent)[-STAMP_BYTES:]
        with pytest.raises(ProtocolError, match="wrong stamp"):
            two.opened(put_in + stamp)
