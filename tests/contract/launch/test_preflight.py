"""A preflight: over loopback, and on machines with a closed way, a slow cable and another clock."""

import re
import socket
import sys
import threading
import time

import pytest

from helpers.hosts import hosts, why_not
from helpers.live import wait_until
from holdfast.cli.main import main
from holdfast.errors import HoldfastError
from holdfast.launch.preflight.prober import MachineProber
from holdfast.launch.preflight.survey import Survey
from holdfast.launch.preflight.talk import Talk

SECRET = bytes(range(32))
WHY_NOT = why_not()
LIMIT_S = 60.0
MACHINES_LIMIT_S = 300.0  # a minute on two slow cores


def looked(*probers, num_refused=0):
    """What the survey finds when these come, and so many of them are refused."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        said = []
        survey = Survey(listener, SECRET, len(probers), said.append)
        errors = []

        def run(prober):
            try:
                prober.run("127.0.0.1", port, advertise="", try_s=LIMIT_S)
            except HoldfastError as why:
                errors.append(str(why))

        threads = [threading.Thread(target=run, args=(each,)) for each in probers]
        for thread in threads:
            thread.start()
        num_here = len(probers) - num_refused
        survey.gather(LIMIT_S, lambda: (survey.num_here, len(errors)) == (num_here, num_refused))
        try:
            return survey.look(), said, errors
        finally:
            survey.close()
            for thread in threads:
                thread.join(LIMIT_S)


def test_three_machines_look_at_each_other():
    found, said, errors = looked(*(MachineProber(name, SECRET) for name in "abc"))
    assert len(found.links) == 6
    assert all(link.reason == "" for link in found.links.values())
    assert all(0 < link.round_trip_s < 1 for link in found.links.values())
    assert all(link.bytes_per_s > 1e6 for link in found.links.values())
    assert all(abs(clock.offset_s) < 0.5 for clock in found.clocks.values())
    assert sorted(line.split()[0] for line in said) == ["a", "b", "c"]
    assert errors == []
    assert [each for each in found.findings() if each.is_fatal] == []


def test_a_machine_that_is_busy_for_a_moment_has_no_slow_link(monkeypatch):
    lengths, send_bytes = [], Talk.send_bytes

    def busy_at_first(talk, length, limit_s):
        lengths.append(length)
        if len(lengths) == 1:
            time.sleep(0.5)
        send_bytes(talk, length, limit_s)

    monkeypatch.setattr(Talk, "send_bytes", busy_at_first)
    found, _, _ = looked(MachineProber("a", SECRET), MachineProber("b", SECRET))
    assert all(link.bytes_per_s > 1e6 for link in found.links.values())


def test_another_clock_is_measured():
    ahead = MachineProber("b", SECRET, wall_s=lambda: time.time() + 3600)
    found, _, _ = looked(MachineProber("a", SECRET), ahead)
    assert abs(found.clocks["b"].offset_s - 3600) < 0.5
    assert abs(found.clocks["a"].offset_s) < 0.5


def test_who_does_not_know_the_secret_is_not_let_in():
    found, _, errors = looked(
        MachineProber("a", SECRET), MachineProber("b", bytes(32)), num_refused=1
    )
    assert [each.machine for each in found.machines] == ["a"]
    assert len(errors) == 1
    assert "machines: 1 of 2 have come" in str(found.findings()[0])


def test_two_machines_of_one_name_are_told_apart():
    found, _, errors = looked(MachineProber("a", SECRET), MachineProber("a", SECRET), num_refused=1)
    assert errors == ["two machines are called a; give them different names"]
    assert "a: two machines have this name" in str(found.findings()[0])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "expected --machines N, or the --ticket"),
        ("--machines 1 --listen h:1", "--machines 1: expected at least 2"),
        ("--machines 2", "expected with --listen HOST:PORT"),
        ("--machines 2 --listen h:1", "expected with --cluster, or --ticket FILE"),
        ("--machines 2 --listen x --ticket t", "--listen x: expected HOST:PORT"),
        ("--ticket /no/ticket", "ticket /no/ticket: cannot be read"),
        ("--ticket t --wait 0", "--wait 0: expected more than 0 s"),
    ],
)
def test_bad_input_is_one_line(words, expected, capsys):
    assert main(["preflight", *words.split()]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


# --- on machines ---

AHEAD = "import time; now = time.time; time.time = lambda: now() + 90; "
OTHER = "import holdfast; holdfast.__version__ = '0.0.9'; "
RUN = "import sys; from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"


def preflight(machines, folder, codes):
    """Each machine runs it, after some code of its own; the first coordinates too."""
    first = machines[0]
    words = ["--machines", str(len(machines)), "--listen", f"{first.ipv4}:40321"]
    words += ["--ticket", "/tmp/pf.ticket", "--wait", "240"]
    command = [sys.executable, "-c", RUN, "preflight"]
    program = first.start([*command, *words], folder, "preflight")
    ticket = first.file("/tmp/pf.ticket")
    wait_until(ticket.exists, "the ticket")
    text = ticket.read_text()
    for host, code in zip(machines, codes, strict=True):
        own = host.file("/tmp/own.ticket")
        own.write_text(text)
        own.chmod(0o600)
        mine = [sys.executable, "-c", code + RUN, "preflight", "--ticket", "/tmp/own.ticket"]
        host.start(mine, folder, f"prober-{host.name}")
    code = program.wait(MACHINES_LIMIT_S)
    return code, program.stdout


@pytest.mark.wide
@pytest.mark.timeout(2 * MACHINES_LIMIT_S)
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_each_fault_of_four_machines_is_named(tmp_path):
    with hosts(4) as machines:
        _, b, c, d = machines
        b.block(c)  # what b says never gets to c
        d.delay(0.01)
        code, text = preflight(machines, tmp_path, ["", AHEAD, OTHER, ""])
    lines = text.splitlines()
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert code == 1
    assert any(re.match(r"WRONG  h1 -> h2: cannot be reached at 10\.77\.0\.3", w) for w in wrong)
    assert any(w.startswith("WRONG  h2: has holdfast 0.0.9, others have") for w in wrong)
    assert any(re.match(r"check  h1: its clock is \+90\.0 s off", line) for line in lines)
    assert any(re.match(r"check  h3, all its links: far: 2\d", line) for line in lines)
    assert not any("h0 -> h1" in line for line in lines)


@pytest.mark.wide
@pytest.mark.timeout(2 * MACHINES_LIMIT_S)
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_slow_cable_is_named_and_is_no_reason_to_fail(tmp_path):
    with hosts(3) as machines:
        machines[2].limit_rate(50)
        code, text = preflight(machines, tmp_path, ["", "", ""])
    assert code == 0, text
    slow = [line for line in text.splitlines() if line.startswith("check") and "slow: " in line]
    assert [line.split()[1] for line in slow] == ["h2,"]
