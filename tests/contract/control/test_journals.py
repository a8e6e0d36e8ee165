"""What every journal promises, whatever keeps it."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.etcd_fake import FakeEtcd, served
from helpers.etcd_server import etcd_cluster
from helpers.wide import wide
from holdfast.control.journal.base import Claim, Journal, wait_for_leadership
from holdfast.control.journal.etcd_access import EtcdAccess
from holdfast.control.journal.etcd_journal import EtcdJournal
from holdfast.control.journal.file_journal import FileJournal
from holdfast.errors import Deposed, JournalError, JournalHeld
from holdfast.journal_address import parse_journal_address

Make = Callable[[str], Journal]
FIRST, SECOND, THIRD = {"epoch": 1}, {"epoch": 2, "why": "ä\n\0"}, {"epoch": 3, "x": [None, 1.5]}


@pytest.fixture(scope="module")
def fake_etcd() -> Iterator[str]:
    """Its HOST:PORT."""
    with served(FakeEtcd()) as fake:
        yield fake


@pytest.fixture(scope="module")
def real_etcd(tmp_path_factory) -> Iterator[str]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield f"127.0.0.1:{cluster.nodes[0].port}"


@pytest.fixture(params=["file", "fake_etcd", wide("real_etcd")])
def make(request, tmp_path: Path) -> Iterator[Make]:
    """A journal of the run, for a process of that name."""
    made: list[Journal] = []
    at = "" if request.param == "file" else request.getfixturevalue(request.param)

    def journal(name: str) -> Journal:
        if at:
            address = parse_journal_address(f"etcd://{at}/{tmp_path.name}", "a test")
            made.append(EtcdJournal(address, name, lease_s=30.0, access=EtcdAccess()))
        else:
            made.append(FileJournal(tmp_path, name))
        return made[-1]

    yield journal
    for each in made:
        each.close()


def claimed(make: Make, name: str = "first") -> Journal:
    journal = make(name)
    journal.claim()
    return journal


def test_records_are_read_in_order_by_the_next_leader_and_gone_on_from(make):
    first = claimed(make)
    first.append(FIRST)
    first.append_all([SECOND, THIRD])
    first.close()
    second = claimed(make, "second")
    assert second.records() == [FIRST, SECOND, THIRD]
    second.append(FIRST)
    assert make("reader").records() == [FIRST, SECOND, THIRD, FIRST]


def test_a_journal_that_is_new_is_empty(make):
    assert make("reader").records() == []
    assert claimed(make).records() == []


def test_many_and_large_records_are_all_there(make):
    journal = claimed(make)
    many = [{"number": number} for number in range(60)]
    for each in many:
        journal.append(each)
    large = {"text": "x" * 700_000}
    journal.append_all([large, FIRST])
    assert make("reader").records() == [*many, large, FIRST]


def test_a_snapshot_takes_the_place_of_all_before_it(make):
    journal = claimed(make)
    large = {"text": "y" * 300_000}
    for snapshot in (THIRD, large, SECOND):
        journal.append_all([FIRST, large])
        journal.compact(snapshot)
        journal.append(FIRST)
        assert journal.records() == [snapshot, FIRST]
    journal.close()
    second = claimed(make, "second")
    second.append(THIRD)
    assert second.records() == [SECOND, FIRST, THIRD]


def test_what_is_no_json_is_refused_and_leaves_nothing(make):
    journal = claimed(make)
    with pytest.raises(JournalError, match="is no JSON"):
        journal.append_all([FIRST, {"loss": float("nan")}])
    journal.append(SECOND)
    assert journal.records() == [SECOND]


def test_a_second_claimant_is_refused_and_told_who_leads(make):
    first, second = claimed(make), make("second")
    with pytest.raises(JournalHeld, match="launch 1, first leads this run") as refused:
        second.claim()
    assert (refused.value.holder, refused.value.generation) == ("launch 1, first", 1)
    assert wait_for_leadership(second, 0.0) is None
    with pytest.raises(Deposed):
        second.append(FIRST)
    assert [each.leads(time.monotonic()) for each in (first, second)] == [True, False]
    first.append(SECOND)
    assert second.records() == [SECOND]


def test_generations_rise_and_who_has_ended_cannot_append(make):
    first, second, third = claimed(make), make("second"), make("third")
    first.close()
    assert second.claim() == Claim(2, "")
    for journal in (first, third):
        assert not journal.leads(time.monotonic())
        for write in (journal.append, journal.compact):
            with pytest.raises(Deposed):
                write(FIRST)
    first.close()
    second.renew()
    second.append(SECOND)
    second.close()
    assert third.claim(above=6).generation == 7
    assert third.records() == [SECOND]


def test_of_many_claimants_at_once_one_leads(make):
    journals = [make(f"claimant {number}") for number in range(6)]
    together = threading.Barrier(len(journals))

    def run(journal: Journal) -> int:
        together.wait()
        try:
            return journal.claim().generation
        except JournalHeld:
            return 0

    for expected in (1, 2, 3):
        with ThreadPoolExecutor(len(journals)) as pool:
            won = list(pool.map(run, journals))
        assert sorted(won) == [0] * 5 + [expected]
        leader = journals[won.index(expected)]
        leader.append({"by": expected})
        leader.close()
    assert make("reader").records() == [{"by": 1}, {"by": 2}, {"by": 3}]


def test_a_standby_leads_as_soon_as_the_leader_has_ended(make):
    first, second = claimed(make), make("second")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for_leadership, second, 60.0)
        first.close()
        assert waiting.result() == Claim(2, "")
