"""What comes from a watched job is read without trust, and without a buffer that grows."""

import pytest

from holdfast.watch.records import (
    MOST_CALL_BYTES,
    MOST_CALLS,
    Call,
    Lost,
    RankHello,
    Reader,
    Record,
)

KNOWN = b"call 0 all_reduce - 64\n"
GOOD = b"0 5 9\n"
READ = Record(Call("all_reduce", "", 64), 5, 9)


def held_bytes(reader):
    return reader.num_rest_bytes + reader.num_calls


def test_lines_may_come_in_pieces_of_any_length():
    reader, found = Reader(), []
    for byte in b"rank 3 4 77\n" + KNOWN + GOOD:
        found += reader.feed(bytes([byte]))
    assert found == [RankHello(3, 4, 77), READ]


@pytest.mark.parametrize("piece", [100, 5000, 100_000])
def test_a_line_without_an_end_is_not_kept(piece):
    reader = Reader()
    reader.feed(KNOWN)
    for _ in range(200):
        assert reader.feed(b"x" * piece) == []
        assert held_bytes(reader) < 10_000
    assert reader.feed(b"tail of it\n" + GOOD) == [READ]
    assert reader.feed(GOOD) == [READ]


def test_calls_beyond_the_most_are_left_out():
    reader = Reader()
    for number in (*range(MOST_CALLS + 100), -1, 10**30):
        reader.feed(f"call {number} all_reduce - {number}\n".encode())
    assert held_bytes(reader) == MOST_CALLS
    assert reader.feed(f"{MOST_CALLS} 5 9\n".encode()) == []


@pytest.mark.parametrize("piece", [100, 5000, 100_000])
def test_a_line_that_is_too_long_is_left_out_and_counted_however_it_comes(piece):
    reader, found = Reader(), []
    data = b"call 1 " + b"x" * 50_000 + b" - 64\n1 5 9\n" + KNOWN + GOOD
    for start in range(0, len(data), piece):
        found += reader.feed(data[start : start + piece])
    assert found == [READ]
    assert reader.num_dropped == 1
    assert held_bytes(reader) < 100


def test_names_of_calls_are_bounded_in_bytes_and_what_is_left_out_is_counted():
    reader, long = Reader(), "x" * 4000
    for number in range(2000):
        reader.feed(f"call {number} {long} - 64\n".encode())
    num_kept = reader.num_calls
    assert num_kept + reader.num_dropped == 2000
    assert num_kept * 4000 < MOST_CALL_BYTES < (num_kept + 2) * 4100
    reader.feed(b"call 0 short - 64\n" + f"call 1999 {long[:3900]} - 64\n".encode())
    assert reader.num_calls == num_kept + 1  # a name given anew makes room


def test_a_name_that_finds_no_room_is_not_mistaken_for_the_one_before():
    reader = Reader()
    reader.feed(KNOWN)
    for number in range(1, 2000):
        reader.feed(f"call {number} {'x' * 4000} - 64\n".encode())
    reader.feed(f"call 0 {'y' * 4000} - 64\n".encode())
    assert reader.feed(GOOD) == []


def test_what_a_process_lost_is_read():
    assert Reader().feed(b"lost 12\nlost many\nlost -3\n") == [Lost(12), Lost(0)]


@pytest.mark.parametrize("line", [b"rank 4 4 7", b"rank -1 4 7", b"rank 0 9999999 7"])
def test_a_rank_that_cannot_be_is_left_out(line):
    assert Reader().feed(line + b"\nrank 3 4 7\n") == [RankHello(3, 4, 7)]


@pytest.mark.parametrize(
    "line", [b"", b"rank", b"rank x y z", b"7 5 9", b"0 5", b"0 a 9", b"\xff\xfe", b"9" * 4000]
)
def test_a_line_that_makes_no_sense_is_left_out(line):
    reader = Reader()
    reader.feed(KNOWN)
    assert reader.feed(line + b"\n" + GOOD) == [READ]
