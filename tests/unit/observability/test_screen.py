"""Nobody reads what a run shows: it goes on all the same, and the number of lost lines is told."""

import io
import os
import sys
import threading

import pytest

from helpers.scarce import refuse_threads
from holdfast.cli.terminal import screen as module
from holdfast.cli.terminal.screen import Screen

LIMIT_S = 60.0


@pytest.fixture
def pipe():
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "w")
    yield read_end, stream
    os.close(read_end)
    stream.close()


class Reader:
    """Reads all, as soon as it is told to, until nothing more can come."""

    def __init__(self, descriptor: int) -> None:
        self.text = b""
        self._thread = threading.Thread(target=self._run, args=(descriptor,), daemon=True)
        self._thread.start()

    def _run(self, descriptor: int) -> None:
        while b"last\n" not in self.text:
            self.text += os.read(descriptor, 1 << 16)

    def all(self) -> str:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return self.text.decode()


def test_r8_a_pipe_that_nobody_reads_blocks_no_write(pipe) -> None:
    read_end, stream = pipe
    screen = Screen(stream)
    line = "x" * 99 + "\n"
    num_lines = 4 * module.MOST_BYTES // len(line)
    for _ in range(num_lines):
        screen.write(line)
    assert screen.is_behind
    screen.close(0.01)  # it does not wait for ever
    reader = Reader(read_end)
    while screen.is_behind:  # the reader takes up again
        screen.close(LIMIT_S)
    screen.write("last\n")
    shown = reader.all()
    lines = shown.splitlines()
    told = [int(text.split()[0].lstrip("(")) for text in lines if "not shown" in text]
    assert sum(told) > 0
    assert lines.count(line.strip()) + sum(told) == num_lines


def test_what_was_written_before_comes_first_and_all_is_shown_at_the_end(pipe) -> None:
    read_end, stream = pipe
    stream.write("first\n")
    screen = Screen(stream)
    screen.write("last\n")
    screen.close(LIMIT_S)
    assert Reader(read_end).all() == "first\nlast\n"


def test_r8_a_reader_that_is_gone_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as stream:
        screen = Screen(stream)
        for _ in range(3):
            screen.write("into the void\n")
            screen.close(LIMIT_S)
        assert not screen.is_behind


def test_without_a_thread_what_waits_is_shown_with_the_next_line(pipe, monkeypatch) -> None:
    refused = refuse_threads(monkeypatch, "screen", 1)
    descriptor, stream = pipe
    screen = Screen(stream)
    screen.write("one\n")
    assert refused == ["screen"]
    screen.write("two\n")
    screen.close(LIMIT_S)
    assert os.read(descriptor, 100) == b"one\ntwo\n"


def test_a_stream_without_a_descriptor_is_written_at_once() -> None:
    stream = io.StringIO()
    Screen(stream).write("here")
    assert stream.getvalue() == "here"
    assert Screen(sys.__stdout__).encoding == sys.__stdout__.encoding
