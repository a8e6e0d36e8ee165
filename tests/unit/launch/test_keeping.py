"""The keeper of an agent: it passes lines and signals on, and never leaves an agent behind."""

import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.live import wait_until
from holdfast.errors import ConfigError
from holdfast.launch.keeping import Keeper, agent_words, ticket_descriptor
from holdfast.launch.orders import STOP, AgentOrder, outlives, read_order

SLEEPS = "trap 'echo bye; exit 5' TERM; echo up; sleep 60 & wait"
DEAF = "trap '' TERM; echo up; sleep 60"


@contextmanager
def kept(script, order=None, label=""):
    """A keeper in a thread of its own, what it wrote, and the launcher's end of its input."""
    order = order or AgentOrder("", grace_s=60)
    written, ours = bytearray(), {}
    theirs, said = os.pipe()
    keeper = Keeper(order, ["sh", "-c", script], written.extend, label=label)
    thread = threading.Thread(target=lambda: ours.update(code=keeper.run(theirs)))
    thread.start()
    try:
        yield keeper, written, said, lambda limit_s=60: (thread.join(limit_s), ours["code"])[1]
    finally:
        keeper.pass_on(signal.SIGKILL)
        thread.join()
        for descriptor in (theirs, said):
            os.close(descriptor)


def is_up(written):
    wait_until(lambda: b"up\n" in written, "the agent", 60)


def test_the_agent_ends_by_itself_and_its_code_is_ours():
    with kept("echo one; echo two >&2; printf three; exit 3") as (_, written, _, code):
        assert code() == 3
    assert written == b"one\ntwo\nthree\n"


def test_every_line_has_the_name_of_the_machine_in_front():
    with kept("echo one; echo two", label="n1") as (_, written, _, code):
        code()
    assert written == b"n1 | one\nn1 | two\n"


def test_it_is_ended_when_told_to():
    with kept(SLEEPS) as (_, written, said, code):
        is_up(written)
        os.write(said, STOP)
        assert code() == 5
    assert written == b"up\nbye\n"


def test_it_is_ended_when_the_launcher_is_gone():
    with kept(SLEEPS) as (_, written, said, code):
        is_up(written)
        os.dup2(os.open(os.devnull, os.O_RDONLY), said)  # our end of the pipe is closed
        assert code() == 5


def test_one_that_does_not_end_is_killed():
    with kept(DEAF, AgentOrder("", grace_s=0.3)) as (_, written, said, code):
        is_up(written)
        os.write(said, STOP)
        assert code() == 128 + signal.SIGKILL


def test_where_there_are_standbys_it_outlives_its_launcher():
    order = AgentOrder("", outlives=True, grace_s=60)
    with kept(f"{SLEEPS}", order) as (keeper, written, said, code):
        is_up(written)
        os.dup2(os.open(os.devnull, os.O_RDONLY), said)
        with pytest.raises(KeyError):
            code(0.3)
        keeper.pass_on(signal.SIGTERM)
        assert code() == 5


def test_nobody_reads_any_more_and_the_agent_goes_on(tmp_path):
    seen, told = [], tmp_path / "told"

    def broken(lines):
        seen.append(lines)
        told.touch()
        raise BrokenPipeError

    theirs, said = os.pipe()
    script = f"echo 1; until [ -e {told} ]; do sleep 0.01; done; echo 2; exit 4"
    keeper = Keeper(AgentOrder(""), ["sh", "-c", script], broken)
    assert keeper.run(theirs) == 4
    assert seen == [b"1\n"]
    os.close(theirs)
    os.close(said)


def test_the_ticket_is_a_file_that_only_its_owner_reads():
    descriptor = ticket_descriptor("{}")
    found = os.fstat(descriptor)
    assert stat.S_ISREG(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_uid == os.geteuid()
    assert Path(f"/proc/self/fd/{descriptor}").read_text() == "{}"
    os.close(descriptor)


def test_an_order_says_how_the_agent_is_started_but_never_the_ticket():
    order = AgentOrder("SECRET", slots=2, advertise="10.0.0.1", name_from="NODE")
    words = agent_words(order, "/proc/self/fd/7", {"NODE": "n7"})
    given = ["--slots", "2", "--advertise", "10.0.0.1", "--name", "n7"]
    assert words[1:] == ["-m", "holdfast", "agent", "--ticket", "/proc/self/fd/7", *given]
    assert agent_words(AgentOrder("SECRET"), "T", {})[-2:] == ["--ticket", "T"]


def test_an_order_is_read_as_it_was_written():
    order = AgentOrder("{}", slots=2, name="a", labels=True)
    assert read_order(order.encode()) == order
    for wrong in (b"", b"{", b"[]", b'{"slots": 1}', b'{"ticket": "", "more": 1}'):
        with pytest.raises(ConfigError, match="started by a launcher"):
            read_order(wrong)


@pytest.mark.parametrize(
    ("ticket", "stays"),
    [('{"more": ["h:1"]}', True), ('{"more": []}', False), ("{}", False), ("no", False)],
)
def test_agents_outlive_their_launcher_if_the_ticket_names_standbys(ticket, stays):
    assert outlives(ticket) is stays


def test_the_command_reads_its_order_from_its_input(tmp_path):
    """With a program in place of Python, which stands for the agent."""
    fake = tmp_path / "agent"
    fake.write_text('#!/bin/sh\necho "$@"; cat "$5"\n')
    fake.chmod(0o700)
    code = f"import sys; sys.executable = {str(fake)!r}; "
    code += "from holdfast.cli.launching.keeper import main; sys.exit(main())"
    order = AgentOrder("THE TICKET\n", name="n1", labels=True)
    words, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as keeper:
        keeper.stdin.write(order.encode())
        keeper.stdin.flush()  # and stays open: its end is the launcher's
        lines = keeper.stdout.read().decode().splitlines()
        assert keeper.wait(60) == 0
    assert lines[0].startswith("n1 | -m holdfast agent --ticket /proc/self/fd/")
    assert lines[1:] == ["n1 | THE TICKET"]
    none = subprocess.run(words, input=b"", capture_output=True, timeout=60)
    assert none.returncode == 2
    assert b"started by a launcher, not by hand" in none.stderr
