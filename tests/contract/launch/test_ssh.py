"""Agents over ssh, with two real sshd: lines come, ends are noticed, nothing is left behind."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast
from helpers.live import wait_until
from helpers.sshd import sshds
from holdfast.launch.clusters import MachineEnded
from holdfast.launch.ssh.ssh_cluster import SshCluster, open_ssh

SRC = Path(holdfast.__file__).parents[1]
LIMIT_S = 60.0
# Stands for the agent: says who it is, and what is in the ticket, and stays.
AGENT = """\
#!/bin/sh
trap 'echo told to end; exit 0' TERM
echo "$@" | sed 's,/proc/self/fd/[0-9]*,TICKET,'
echo "ticket $(cat "$5")"
echo $$ > "{folder}/$7.pid"
sleep 100 & wait
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ssh")
    with sshds(folder, 2) as (servers, config):
        agent = folder / "agent"
        agent.write_text(AGENT.format(folder=folder))
        agent.chmod(0o700)
        _python(folder / "python", SRC, agent)
        yield SimpleNamespace(folder=folder, servers=servers, config=config)


def _python(path: Path, src: Path, agent: Path) -> None:
    """A Python that has this holdfast, and starts the above as agents."""
    site = path.parent / f"site-{path.name}"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(agent)!r}\n")
    path.write_text(f'#!/bin/sh\nPYTHONPATH={site}:{src} exec {sys.executable} "$@"\n')
    path.chmod(0o700)


class _Launched:
    def __init__(self, world: SimpleNamespace, rows: str, machines: int = 1) -> None:
        hosts = world.folder / "hosts.toml"
        hosts.write_text(f"ssh_config = 'ssh_config'\n{rows.format(folder=world.folder)}")
        self.lines: list[str] = []
        self.ended: list[MachineEnded] = []
        self.cluster: SshCluster = open_ssh(str(hosts), self.lines.append, "agent")
        ticket = world.folder / "ticket"
        ticket.write_text(json.dumps({"secret": "5ec2e7"}))
        ticket.chmod(0o600)
        self.num = self.cluster.start(ticket, machines)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def polled() -> bool:
            self.ended += self.cluster.poll()
            return condition()

        wait_until(polled, what, LIMIT_S)

    def __enter__(self) -> "_Launched":
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()


HOST = """
[[host]]
address = "{name}"
python = "{{folder}}/python"
"""
TWO = HOST.format(name="s0") + "slots = 4\n" + HOST.format(name="s1") + "advertise = '10.0.0.9'\n"


def pid_of(world, machine):
    path = world.folder / f"{machine}.pid"
    return int(path.read_text()) if path.exists() and path.read_text() else None


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


def test_agents_run_on_both_hosts_and_end_when_they_are_told(world):
    with _Launched(world, TWO.replace("advertise", "name = 'b'\nadvertise"), 2) as launched:
        launched.wait(lambda: sum("ticket" in line for line in launched.lines) == 4, "agents")
        assert launched.num == 2
        assert sorted(launched.lines) == [
            "b | -m holdfast agent --ticket TICKET --advertise 10.0.0.9 --name b",
            'b | ticket {"secret": "5ec2e7"}',
            "s0 | -m holdfast agent --ticket TICKET --slots 4 --name s0",
            's0 | ticket {"secret": "5ec2e7"}',
        ]
        assert not any("5ec2e7" in line for line in command_lines())
    assert launched.ended == []
    assert sorted(launched.lines[4:]) == ["b | told to end", "s0 | told to end"]


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def test_an_agent_whose_launcher_is_killed_ends(world):
    (world.folder / "s0.pid").unlink(missing_ok=True)  # of a test before this one
    with _Launched(world, HOST.format(name="s0")) as launched:
        launched.wait(lambda: pid_of(world, "s0") is not None, "the agent")
        pid = pid_of(world, "s0")
        [session] = [each for each in children() if "ssh -T" in each[1]]
        os.kill(session[0], 9)
        wait_until(lambda: is_gone(pid), "the end of the agent", LIMIT_S)
        launched.wait(lambda: bool(launched.ended), "the end of ssh")
    [ended] = launched.ended
    assert ended == MachineEnded("s0", "ssh was ended here by signal 9", was_up=True)


def children():
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in path.read_text().split():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            yield int(pid), words


def test_an_agent_that_ends_is_named(world):
    (world.folder / "s1.pid").unlink(missing_ok=True)
    with _Launched(world, HOST.format(name="s1")) as launched:
        launched.wait(lambda: pid_of(world, "s1") is not None, "the agent")
        os.kill(pid_of(world, "s1"), 9)
        launched.wait(lambda: bool(launched.ended), "its end")
    assert launched.ended == [MachineEnded("s1", "its agent ended with code 137", was_up=True)]


def reason_of(world, rows):
    with _Launched(world, rows) as launched:
        launched.wait(lambda: bool(launched.ended), "an end")
        launched.ended += launched.cluster.poll()
    [ended] = launched.ended
    assert not ended.was_up
    assert "\n" not in ended.reason
    assert launched.lines == []
    return ended.reason


def test_a_host_that_nobody_answers_at_is_named(world):
    reason = reason_of(world, "[[host]]\naddress = '127.0.0.1'\nport = 1\n")
    assert reason == ("cannot be reached by ssh: nobody listens for ssh there; is sshd running?")


def test_a_name_that_does_not_resolve_is_named(world):
    reason = reason_of(world, "[[host]]\naddress = 'nowhere.invalid'\n")
    assert reason == "cannot be reached by ssh: this name does not resolve; correct its address"


def test_a_host_key_that_is_not_known_is_named(world):
    port = world.servers[0].port
    reason = reason_of(world, f"[[host]]\naddress = '127.0.0.1'\nport = {port}\n")
    config = world.folder / "ssh_config"
    assert reason.startswith("cannot be reached by ssh: its host key is not known here")
    assert reason.endswith(f"ssh -F {config} -p {port} 127.0.0.1")


def test_a_key_that_is_not_taken_is_named(world):
    keys = world.servers[0].folder / "keys"
    kept = keys.read_text()
    keys.write_text("")
    try:
        reason = reason_of(world, HOST.format(name="s0"))
    finally:
        keys.write_text(kept)
    assert reason.startswith("cannot be reached by ssh: it takes none of your keys; try by hand")


def test_a_python_that_is_not_there_is_named(world):
    reason = reason_of(world, "[[host]]\naddress = 's0'\npython = '/no/python'\n")
    assert reason == "has no program /no/python; say which Python to use: python = ..."


def test_a_python_without_holdfast_is_named(world):
    bare = world.folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec {Path(sys.base_prefix)}/bin/python3 "$@"\n')
    bare.chmod(0o700)
    reason = reason_of(world, f"[[host]]\naddress = 's0'\npython = '{bare}'\n")
    wanted = f"holdfast=={holdfast.__version__}"
    assert reason == (
        f"its {bare} has no holdfast; install it there: {bare} -m pip install {wanted}"
    )


def test_another_version_is_named(world):
    other = world.folder / "other-src" / "holdfast"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("__version__ = '0.0.7'\n")
    _python(world.folder / "other", other.parent, world.folder / "agent")
    reason = reason_of(world, "[[host]]\naddress = 's0'\npython = '{folder}/other'\n")
    assert reason.startswith(f"has holdfast 0.0.7; here is {holdfast.__version__}; install")


def test_a_working_directory_that_is_not_there_is_named(world):
    reason = reason_of(world, HOST.format(name="s0") + "workdir = '/no such'\n")
    assert reason == "has no directory /no such; make it, or change workdir = ..."
