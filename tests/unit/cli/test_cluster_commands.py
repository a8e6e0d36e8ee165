"""Commands beside a run: what they refuse, and what they say if nobody is to be found."""

import socket
from collections.abc import Iterator

import pytest

from holdfast.auth.ticket import Ticket, write_ticket
from holdfast.cli.main import main


def told(capsys, *words: str) -> str:
    assert main(list(words)) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_a_standby_in_a_run_directory_has_no_other_one(tmp_path, capsys):
    line = told(capsys, "standby", str(tmp_path), "--run-dir", "elsewhere")
    assert f"--run-dir elsewhere: expected with --control only; {tmp_path} is where" in line


@pytest.fixture
def nobody() -> Iterator[tuple[int, int]]:
    """Two ports that nobody listens at: they are taken, so that nobody else can."""
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        yield first.getsockname()[1], second.getsockname()[1]


def test_a_drain_in_vain_says_why_the_coordinator_was_not_reached(tmp_path, capsys, nobody):
    first, second = nobody
    ticket = tmp_path / "a.ticket"
    write_ticket(ticket, Ticket("127.0.0.1", first, bytes(32), "", (f"127.0.0.1:{second}",)))
    line = told(capsys, "drain", "node-1", "--ticket", str(ticket))
    assert f"nobody answers at 127.0.0.1:{first}" in line
