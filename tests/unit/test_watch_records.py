"""What comes from a watched job is read without trust, and without a buffer that grows."""

import pytest

from holdfast.watch.records import MOST_CALLS, Call, Hello, Reader, Record

KNOWN = b"call 0 all_reduce - 64\n"
GOOD = b"0 5 9\n"
READ = Record(Call("all_reduce", "", 64), 5, 9)


def held_bytes(reader):
    return len(reader._rest) + len(reader._calls)


def test_lines_may_come_in_pieces_of_any_length():
    reader, found = Reader(), []
    for byte in b"rank 3 4 77\n" + KNOWN + GOOD:
        found += reader.feed(bytes([byte]))
    assert found == [Hello(3, 4, 77), READ]


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


@pytest.mark.parametrize(
    "line", [b"", b"rank", b"rank x y z", b"7 5 9", b"0 5", b"0 a 9", b"\xff\xfe", b"9" * 4000]
)
def test_a_line_that_makes_no_sense_is_left_out(line):
    reader = Reader()
    reader.feed(KNOWN)
    assert reader.feed(line + b"\n" + GOOD) == [READ]
