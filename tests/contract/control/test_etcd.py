"""With a real etcd: leaders that are killed or asleep, nodes that are killed or hang, none at all
for a while, TLS and passwords."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.etcd_server import EtcdCluster, EtcdNode, etcd_cluster
from holdfast.control.journal.base import Claim, Journal, wait_for_leadership
from holdfast.control.journal.opening import open_journal
from holdfast.errors import Deposed, JournalAway, JournalError

pytestmark = [pytest.mark.wide]
LIMIT_S = 60.0
LEASE_S = 2.0

LEADER = """
import sys, time
from pathlib import Path
from holdfast.control.journal.opening import open_journal
from holdfast.errors import Deposed
journal = open_journal(sys.argv[1], Path("."), 2.0)
journal.claim()
journal.append({"by": "the child"})
print("leads", flush=True)
sys.stdin.readline()
print(journal.leads(time.monotonic()), flush=True)
try:
    journal.append({"by": "a child that was asleep"})
except Deposed:
    print("Deposed", flush=True)
"""


@pytest.fixture
def one(tmp_path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, 1) as cluster:
        yield cluster


@pytest.fixture
def three(tmp_path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, 3) as cluster:
        yield cluster


@pytest.fixture
def opened(tmp_path) -> Iterator:
    made: list[Journal] = []

    def journal(address: str, lease_s: float = LEASE_S) -> Journal:
        made.append(open_journal(address, tmp_path, lease_s))
        return made[-1]

    yield journal
    for each in made:
        each.close()


@pytest.fixture
def child(one) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", LEADER, one.address("run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as process:
        assert process.stdout.readline() == b"leads\n"
        yield process
        process.kill()


def numbers(journal: Journal) -> list[int]:
    return [record["number"] for record in journal.records()]


def wait_until_it_leads(journal: Journal) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not journal.leads(time.monotonic()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# --- leaders ---


def test_a_standby_leads_when_the_lease_of_a_killed_leader_has_run_out(one, child, opened):
    standby = opened(one.address("run"))
    start_s = time.monotonic()
    child.kill()
    claim = wait_for_leadership(standby, LIMIT_S)
    took_s = time.monotonic() - start_s
    assert claim is not None
    assert (claim.generation, claim.took_over_from[:17]) == (2, "launch 1, process")
    assert took_s > LEASE_S / 2, "the lease was no hindrance"
    assert standby.records() == [{"by": "the child"}]


def test_a_leader_that_slept_wakes_as_none_and_cannot_append(one, child, opened):
    os.kill(child.pid, signal.SIGSTOP)
    standby = opened(one.address("run"))
    assert wait_for_leadership(standby, LIMIT_S) is not None
    os.kill(child.pid, signal.SIGCONT)
    said, _ = child.communicate(b"\n", timeout=LIMIT_S)
    assert said.split() == [b"False", b"Deposed"]
    standby.append({"by": "the standby"})
    assert standby.records() == [{"by": "the child"}, {"by": "the standby"}]


# --- nodes ---


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_one_of_three_nodes_may_go_and_none_else_leads(three, opened, lost, number):
    address, lease_s = three.address("run"), 4.0
    journal, standby = opened(address, lease_s), opened(address)
    journal.claim(limit_s=LIMIT_S)
    for each in range(3):
        journal.append({"number": each}, limit_s=LIMIT_S)
    three.nodes[lost].signal(number)
    for each in range(3, 13):
        journal.append({"number": each}, limit_s=LIMIT_S)
    assert numbers(journal) == list(range(13))
    assert wait_for_leadership(standby, 1.5 * lease_s) is None
    wait_until_it_leads(journal)


def test_etcd_may_be_away_for_long_and_the_same_leader_goes_on(three, opened):
    journal = opened(three.address("run"))
    journal.claim(limit_s=LIMIT_S)
    journal.append({"number": 0})
    three.kill()
    start_s = time.monotonic()
    with pytest.raises(JournalAway, match=r"no answer within 1\.?\d* s"):
        journal.append({"number": 1}, limit_s=1.0)
    while time.monotonic() < start_s + 20:
        time.sleep(0.2)
    assert not journal.leads(time.monotonic())
    three.start()
    journal.append({"number": 2}, limit_s=LIMIT_S)
    wait_until_it_leads(journal)
    assert numbers(journal) == [0, 2]
    journal.close()
    assert opened(three.address("run")).claim() == Claim(2, "")


def append_many(journal: Journal) -> None:
    """10 MB; the last one that it takes is refused and kept, as etcd does at its quota."""
    for number in range(200):
        journal.append({"number": number, "text": "x" * 50_000}, limit_s=3.0)


@pytest.mark.cluster
def test_a_full_etcd_refuses_records_and_the_leader_stays(tmp_path, opened):
    cluster = EtcdCluster(tmp_path, 1)
    try:
        cluster.start("--quota-backend-bytes", str(1 << 20))
        journal = opened(cluster.address("run"))
        journal.claim(limit_s=LIMIT_S)
        with pytest.raises(JournalAway, match="database space exceeded"):
            append_many(journal)
        found = numbers(journal)
        with pytest.raises(JournalAway, match="database space exceeded"):
            journal.append({"number": 1000}, limit_s=3.0)
        assert numbers(journal) == found == list(range(len(found)))
        wait_until_it_leads(journal)
    finally:
        cluster.kill()


# --- who may ask ---


def post(node: EtcdNode, path: str, body: str) -> None:
    url = f"http://127.0.0.1:{node.port}/v3/{path}"
    urllib.request.urlopen(url, body.encode(), timeout=LIMIT_S).close()


def test_with_a_password(one, opened, monkeypatch):
    (node,) = one.nodes
    post(node, "auth/user/add", '{"name": "root", "password": "word"}')
    post(node, "auth/user/grant", '{"user": "root", "role": "root"}')
    post(node, "auth/enable", "{}")
    with pytest.raises(JournalError, match="user name is empty"):
        opened(one.address("run")).claim(limit_s=LIMIT_S)
    monkeypatch.setenv("ETCDCTL_USER", "root:wrong")
    with pytest.raises(JournalError, match="invalid user ID or password; set ETCDCTL_USER"):
        opened(one.address("run")).claim(limit_s=LIMIT_S)
    monkeypatch.setenv("ETCDCTL_USER", "root:word")
    journal = opened(one.address("run"))
    journal.claim(limit_s=LIMIT_S)
    journal.append({"number": 0})
    assert numbers(journal) == [0]


def test_with_tls(tmp_path: Path, opened, monkeypatch):
    node = EtcdNode("n0", tmp_path)
    node.start(node.peer, "--auto-tls", scheme="https")
    address = f"etcds://127.0.0.1:{node.port}/run"
    certificate = tmp_path / "n0" / "fixtures" / "client" / "cert.pem"
    try:
        deadline_s = time.monotonic() + LIMIT_S
        while not certificate.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        with pytest.raises(JournalAway, match="no answer within"):
            opened(address).claim(limit_s=1.0)
        monkeypatch.setenv("ETCDCTL_CACERT", str(certificate))
        journal = opened(address)
        assert journal.claim(limit_s=LIMIT_S) == Claim(1, "")
        journal.append({"number": 0})
        assert numbers(journal) == [0]
        with pytest.raises(Deposed):
            opened(address).append({"number": 1})
    finally:
        node.kill()
