"""Bad input to the commands of several machines: one line that says where and what to do."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import jobs, runs
from helpers.hosts import why_not
from helpers.live import wait_until
from helpers.ports import held_port
from helpers.wide import first, where

pytestmark = pytest.mark.multiprocess
LIMIT_S = 120.0
FULL_KB = 4
NAMED = ["--name", "m7"]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A run that waits for its machines, and tickets that are not quite its own."""
    folder = tmp_path_factory.mktemp("waiting")
    free = held_port()
    words = ["train", str(jobs.small(folder)), "--run-dir", str(folder / "run"), "--machines", "2"]
    with open(folder / "out", "wb") as out:
        process = subprocess.Popen(
            runs.command(*words, "--listen", f"127.0.0.1:{free}"),
            env=runs.environment(),
            stdout=out,
            stderr=out,
        )
    ticket = folder / "run.ticket"
    wait_until(ticket.exists, "the ticket", LIMIT_S)
    others = {
        "good": {},
        "old": {"secret": "ab" * 32},
        "closed": {"address": "127.0.0.1:1"},
        "nowhere": {"address": "no-such-machine.invalid:40123"},
        "newer": {"version": 9},
        "empty": {"address": None},
    }
    for name, changes in others.items():
        path = folder / name
        path.write_text(json.dumps(json.loads(ticket.read_text()) | changes))
        path.chmod(0o600)
    (folder / "open").write_text(ticket.read_text())
    (folder / "open").chmod(0o644)
    yield SimpleNamespace(folder=folder, at=f"127.0.0.1:{free}")
    process.send_signal(signal.SIGKILL)
    process.wait()


def told(waiting: SimpleNamespace, cache: Path, *words: str, before: Sequence[str] = ()) -> str:
    """The last line of a command that was refused."""
    done = subprocess.run(
        [*before, *runs.command(*words)],
        cwd=waiting.folder,
        env=runs.environment() | {"HOLDFAST_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


TICKETS = {
    "missing": "ticket missing: cannot be read (No such file or directory); a run over several "
    "machines writes it",
    "open": "ticket open: others may read it (mode 0644); chmod 600 open",
    "empty": "ticket empty: address None: expected HOST:PORT, such as 127.0.0.1:40123",
    "newer": "ticket newer: is of version 9, this holdfast reads 1; use the same holdfast on all "
    "machines",
    "old": "machine m7: --ticket old: no run with this secret is at {at} (it does not know the "
    "secret of this run); the ticket is old, or of another run: bring the one that the run has "
    "written at its start",
    "closed": "machine m7: --ticket closed: nobody answers at 127.0.0.1:1 (cannot reach the "
    "launcher at 127.0.0.1:1: [Errno 111] Connection refused); is the run there, and its port "
    "open?",
    "nowhere": "machine m7: --ticket nowhere: the name no-such-machine.invalid does not resolve "
    "here (",
}


def patience(ticket: str) -> str:
    """Seconds. Where the run is it answers, be it late; elsewhere nobody ever does."""
    return str(LIMIT_S) if ticket == "old" else "0.5"


@pytest.mark.parametrize("ticket", where(lambda name: name in ("old", "nowhere"), TICKETS))
def test_an_agent_says_what_is_wrong_with_its_ticket_and_leaves_nothing(waiting, tmp_path, ticket):
    words = ["agent", "--ticket", ticket, *NAMED, "--try-for", patience(ticket)]
    line = told(waiting, tmp_path, *words)
    assert line.startswith(f"holdfast: {TICKETS[ticket]}".format(at=waiting.at))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.wide
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--slots", "0"], "--slots 0: expected 1 to 4096"),
        (["--advertise", "a b"], "--advertise a b: expected a host name, or an IPv4 or IPv6"),
        (["--drain-limit", "-1"], "--drain-limit -1.0: expected seconds, 0 or more"),
    ],
)
def test_an_agent_refuses_bad_options(waiting, tmp_path, words, expected):
    line = told(waiting, tmp_path, "agent", "--ticket", "good", *words)
    assert line.startswith(f"holdfast: {expected}")


def test_an_agent_without_a_disk_to_write_to_says_on_which_machine(waiting):
    line = told(waiting, Path("/dev/null/x"), "agent", "--ticket", "good", *NAMED)
    assert line.startswith("holdfast: machine m7: no directory for files of the run in /dev/null/x")
    assert line.endswith("set HOLDFAST_CACHE to a directory of your own")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_an_agent_on_a_full_disk_says_on_which_machine(waiting, tmp_path):
    """Its cache is a disk of a few kilobytes, which only it sees."""
    full = tmp_path / "full"
    full.mkdir()
    mounted = f'mount -t tmpfs -o size={FULL_KB}k,mode=700 none "{full}" && exec "$@"'
    before = ["unshare", "--mount", "sh", "-c", mounted, "sh"]
    line = told(waiting, full, "agent", "--ticket", "good", *NAMED, before=before)
    assert line.startswith(f"holdfast: machine m7: {full}: no room for the job (No space left")
    assert line.endswith("make room, or set HOLDFAST_CACHE to a directory on another disk")


@pytest.mark.parametrize(
    ("ticket", "expected"),
    first(
        1,
        [
            ("good", "machine m9 is not in the run; expected the name of one that is: none"),
            (
                "old",
                "--ticket old: no such run is at {at} (it does not know the secret of this run); ",
            ),
            ("closed", "--ticket closed: nobody answers at 127.0.0.1:1 ("),
            ("missing", "ticket missing: cannot be read"),
        ],
    ),
)
def test_a_drain_that_cannot_be_says_why(waiting, tmp_path, ticket, expected):
    line = told(waiting, tmp_path, "drain", "m9", "--ticket", ticket)
    assert line.startswith(f"holdfast: {expected}".format(at=waiting.at))


@pytest.mark.parametrize(
    ("ticket", "expected"),
    first(
        1,
        [
            ("old", "machine m7: no preflight with this secret is at {at} (it does not know"),
            ("closed", "machine m7: no preflight has answered at 127.0.0.1:1 within 0.5 s ("),
            ("nowhere", "machine m7: no preflight has answered at no-such-machine.invalid:40123"),
        ],
    ),
)
def test_a_preflight_that_cannot_be_says_why(waiting, tmp_path, ticket, expected):
    words = ["preflight", "--ticket", ticket, *NAMED, "--wait", patience(ticket)]
    line = told(waiting, tmp_path, *words)
    assert line.startswith(f"holdfast: {expected}".format(at=waiting.at))


@pytest.mark.wide
def test_what_a_killed_agent_has_left_is_removed_by_the_next_and_what_one_uses_is_not(
    waiting, tmp_path
):
    words = runs.command("agent", "--ticket", "closed", *NAMED)  # tries for ten minutes
    agent = subprocess.Popen(
        words,
        cwd=waiting.folder,
        env=runs.environment() | {"HOLDFAST_CACHE": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: list(tmp_path.glob("holdfast-*/.lock")), "its directory", LIMIT_S)
        other = ["agent", "--ticket", "old", "--name", "m8", "--try-for", "0.5"]
        told(waiting, tmp_path, *other)
        assert len(list(tmp_path.glob("holdfast-*"))) == 1
    finally:
        agent.kill()
        agent.wait()
    assert len(list(tmp_path.glob("holdfast-*"))) == 1
    told(waiting, tmp_path, *other)
    assert not list(tmp_path.glob("holdfast-*"))
