"""Machines in namespaces: what each has of its own, and what can happen between them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.hosts import Host, hosts, why_not
from helpers.live import is_running, wait_until

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
LIMIT_S = 60.0  # nothing takes this long unless it fails
PYTHON = [sys.executable, "-I", "-S", "-c"]
ECHO = """
import socket, threading
def serve(connection):
    while data := connection.recv(1 << 20):
        if data[:1] == b"e":
            connection.sendall(data)
listener = socket.create_server(("::", 9000), family=socket.AF_INET6, dualstack_ipv6=True)
print("up", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 9000), float(sys.argv[2])) as s:
        s.sendall(b"e")
        print("yes" if s.recv(1) else "closed")
except TimeoutError:
    print("silence")
except OSError as why:
    print(type(why).__name__, why.errno)
"""
TALK = """
import socket, sys
s = socket.create_connection((sys.argv[1], 9000), 60)
s.settimeout(float(sys.argv[2]))
try:
    while True:
        s.sendall(b"e")
        if not s.recv(1): break
        print("talking", flush=True)
    print("closed")
except TimeoutError:
    print("silence")
except ConnectionError as why:
    print("reset")
"""
HOW_LONG = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 9000))
start = time.perf_counter()
s.sendall(sys.argv[2].encode() * int(sys.argv[3]))
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(time.perf_counter() - start)
"""


def ask(source: Host, to: Host, address: str = "", limit_s: float = LIMIT_S) -> str:
    return source.run([*PYTHON, ASK, address or to.ipv4, str(limit_s)]).strip()


def is_silent(source: Host, to: Host, address: str = "") -> bool:
    """Who would answer does so sooner."""
    return ask(source, to, address, 0.4) == "silence"


def assert_reaches(source: Host, to: Host) -> None:
    """Soon: who was asked for in vain is asked for again after a second only."""
    wait_until(lambda: ask(source, to) == "yes", f"{source.name} to reach {to.name}")


def start_echo(host: Host, folder: Path) -> None:
    server = host.start([*PYTHON, ECHO], folder)
    wait_until(lambda: server.stdout == "up\n", f"the echo of {host.name}")


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    with hosts(4) as machines:
        for host in machines:
            start_echo(host, folder)
        yield machines


def test_each_has_its_own_name_files_processes_and_clock(four):
    said = "import os, socket, time; print(socket.gethostname(), time.monotonic(), os.getpid())"
    texts = [host.run([*PYTHON, said]).split() for host in four]
    assert [name for name, *_ in texts] == ["h0", "h1", "h2", "h3"]
    ahead_s = [float(clock_s) - time.monotonic() for _, clock_s, _ in texts]
    assert [round(one_s / 1000) for one_s in ahead_s] == [1, 2, 3, 4]
    assert all(int(pid) < 100 for *_, pid in texts)
    a, b, *_ = four
    a.file("/tmp/mine").write_text("a's own")
    assert a.run(["cat", "/tmp/mine"]) == "a's own"
    assert not b.file("/tmp/mine").exists()
    assert not Path("/tmp/mine").exists()
    b.run(["sh", "-c", "echo of b > /dev/shm/some"])
    assert b.file("/dev/shm/some").read_text() == "of b\n"
    assert not a.file("/dev/shm/some").exists()


def test_nothing_else_can_be_written(four):
    for place in ("/etc", str(Path(__file__).parent), os.path.dirname(sys.executable)):
        with pytest.raises(subprocess.CalledProcessError):
            four[0].run(["sh", "-c", f"exec 2> /dev/null; touch {place}/some"])


def test_they_reach_each_other_by_both_addresses_and_by_name(four):
    a, b, *_ = four
    assert [ask(a, b, at) for at in (b.ipv4, b.ipv6, b.name)] == ["yes"] * 3
    assert ask(b, a) == "yes"


def test_output_goes_to_files_and_a_signal_to_the_command_itself(four, tmp_path):
    script = (
        "trap 'echo bye; exit 7' TERM; echo trouble >&2; echo hello; while :; do sleep 0.02; done"
    )
    program = four[0].start(["sh", "-c", script], tmp_path, "loop")
    wait_until(lambda: program.stdout == "hello\n", "its first line")
    program.signal(signal.SIGTERM)
    assert program.wait(LIMIT_S) == 7
    assert (tmp_path / "loop.out").read_text() == "hello\nbye\n"
    assert program.stderr == "trouble\n"


def test_a_cut_cable_is_silent_and_heals(four):
    a, b, c, _ = four
    b.cut()
    assert is_silent(a, b)
    assert ask(a, c) == "yes"
    b.plug_in()
    assert_reaches(a, b)


def test_a_connection_outlives_a_cut_of_a_while(four, tmp_path):
    a, b, *_ = four
    talk = a.start([*PYTHON, TALK, b.ipv6, str(LIMIT_S)], tmp_path)
    wait_until(lambda: talk.stdout, "the first echo")
    b.cut(for_s=0.3)
    before = len(talk.stdout)
    wait_until(lambda: len(talk.stdout) > before, "more echoes")
    talk.end()


def test_a_partition_lies_between_groups_only(four):
    a, b, c, d = four
    a.network.partition([a, b], [c, d])
    assert (ask(a, b), ask(c, d)) == ("yes", "yes")
    assert is_silent(a, c)
    assert is_silent(d, b)
    a.network.partition([a, b, c], [d])
    assert_reaches(a, c)
    assert is_silent(c, d)
    a.network.heal()
    assert_reaches(a, d)
    assert_reaches(d, b)


SHOUT = "import socket, sys; socket.socket(socket.AF_INET, 2).sendto(b'x', (sys.argv[1], 9100))"
LISTEN = """
import socket, sys
s = socket.socket(socket.AF_INET, 2)
s.bind(("", 9100))
print("up", flush=True)
while True: print(s.recvfrom(9)[1][0], flush=True)
"""


def test_one_direction_can_be_blocked(four, tmp_path):
    a, b, c, _ = four
    ears = {host: host.start([*PYTHON, LISTEN], tmp_path) for host in (a, b)}
    wait_until(lambda: all(ear.stdout for ear in ears.values()), "both to listen")
    a.block(b)
    assert is_silent(a, b)
    assert is_silent(a, b, b.ipv6)
    assert (ask(a, c), ask(c, b)) == ("yes", "yes")
    a.run([*PYTHON, SHOUT, b.ipv4])
    b.run([*PYTHON, SHOUT, a.ipv4])
    c.run([*PYTHON, SHOUT, b.ipv4])  # a's was sent before it
    wait_until(lambda: b.ipv4 in ears[a].stdout, "b's shout")
    wait_until(lambda: c.ipv4 in ears[b].stdout, "c's shout")
    assert a.ipv4 not in ears[b].stdout
    a.unblock(b)
    assert_reaches(a, b)
    assert_reaches(b, a)


def how_long_s(source: Host, to: Host, text: str, num: int) -> float:
    return float(source.run([*PYTHON, HOW_LONG, to.ipv4, text, str(num)]))


def test_a_rate_holds_both_ways_and_is_lifted(four):
    a, b, *_ = four
    b.limit_rate(40)
    assert how_long_s(a, b, "x", 1_000_000) > 0.1  # 0.2 s, less what the buffers take
    assert how_long_s(b, a, "x", 1_000_000) > 0.1
    b.limit_rate(None)
    wait_until(lambda: how_long_s(a, b, "x", 1_000_000) < 0.1, "a quick one")


def test_a_delay_holds_each_way_and_is_lifted(four):
    a, b, *_ = four
    b.delay(0.05)
    assert how_long_s(a, b, "e", 1) >= 0.1
    a.network.partition([a], [b])
    assert is_silent(a, b)
    a.network.heal()
    assert_reaches(a, b)
    b.delay(0)
    wait_until(lambda: how_long_s(a, b, "e", 1) < 0.1, "a quick one")


def test_a_power_cut_is_silent_and_an_orderly_end_is_not(tmp_path):
    with hosts(3, clocks_s=(-5, 0, 7)) as (a, b, c):
        for host in (b, c):
            start_echo(host, tmp_path)
        # Of the one who is not silent, silence would be wrong however slow this machine is.
        limits_s = {b: 1.0, c: LIMIT_S}
        talks = [
            a.start([*PYTHON, TALK, host.ipv4, str(limit_s)], tmp_path)
            for host, limit_s in limits_s.items()
        ]
        wait_until(lambda: all(talk.stdout for talk in talks), "both to talk")
        inside = b.pid
        b.power_off()
        c.power_off(silently=False)
        assert not is_running(inside)
        assert [talk.wait(LIMIT_S) for talk in talks] == [0, 0]
        last = [talk.stdout.splitlines()[-1] for talk in talks]
        assert last[0] == "silence"
        assert last[1] in ("closed", "reset")
        assert (a.is_on, b.is_on, c.is_on) == (True, False, False)
        with pytest.raises(OSError, match="h1 is off"):
            b.run(["true"])


LEAVES_ALL_RUNNING = """
import pathlib, sys, time
from helpers.hosts import hosts
with hosts(2) as (a, b):
    a.delay(0.01)
    program = b.start(["sleep", "1000"], pathlib.Path(sys.argv[1]))
    print(a.pid, b.pid, program.process.pid, flush=True)
    time.sleep(1000)
"""


def descendants(pid: int) -> list[int]:
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [*children, *(one for child in children for one in descendants(child))]


def test_nothing_is_left_when_the_process_that_made_them_is_killed(tmp_path):
    maker = subprocess.Popen(
        [sys.executable, "-c", LEAVES_ALL_RUNNING, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with maker:
        assert maker.stdout is not None
        assert len(maker.stdout.readline().split()) == 3
        made = descendants(maker.pid)
        assert len(made) >= 8  # three holders and what each holds, the wire, the program
        maker.kill()
    wait_until(lambda: not any(map(is_running, made)), "all to be gone")


def test_what_cannot_be_had_is_said(monkeypatch):
    monkeypatch.setattr("helpers.hosts.network.shutil.which", lambda name, path: None)
    assert why_not().startswith("not installed: unshare, nsenter, setpriv, ip")
