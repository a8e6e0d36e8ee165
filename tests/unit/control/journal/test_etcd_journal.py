"""A journal in etcd when answers are lost, leases run out, and endpoints hang or lie."""

import base64
import json
import time
from collections.abc import Iterator

import pytest

from helpers import etcd_fake
from helpers.etcd_fake import FakeEtcd, served
from holdfast.control.journal import etcd_journal
from holdfast.control.journal.base import Claim
from holdfast.control.journal.etcd_access import EtcdAccess
from holdfast.control.journal.etcd_calls import EtcdCalls
from holdfast.control.journal.etcd_journal import EtcdJournal
from holdfast.errors import (
    ConfigError,
    Deposed,
    JournalAway,
    JournalDamaged,
    JournalError,
    JournalHeld,
)
from holdfast.journal_address import parse_journal_address

LIMIT_S = 60.0
FIRST, SECOND, THIRD = {"epoch": 1}, {"epoch": 2}, {"epoch": 3}


@pytest.fixture
def fake() -> FakeEtcd:
    return FakeEtcd()


@pytest.fixture
def at(fake) -> Iterator[str]:
    with served(fake) as place:
        yield place


@pytest.fixture
def open_at(fake) -> Iterator:
    made: list[EtcdJournal] = []

    def opened(at: str, name: str = "first", *, lease_s: float = 30.0, **access) -> EtcdJournal:
        address = parse_journal_address(f"etcd://{at}/run", "a test")
        made.append(EtcdJournal(address, name, lease_s=lease_s, access=EtcdAccess(**access)))
        return made[-1]

    yield opened
    fake.fault = lambda _, path: ""
    fake.ends.set()
    for journal in made:
        journal.close()


@pytest.fixture
def patient_close(monkeypatch):
    """Who ends in good order is waited for, however slow the machine is."""
    monkeypatch.setattr(etcd_journal, "CLOSE_LIMIT_S", LIMIT_S)


def faulty(fake: FakeEtcd, path: str, *faults: str) -> None:
    """The next calls of this kind, one after another."""
    left = list(faults)

    def fault(_: FakeEtcd, asked: str) -> str:
        return left.pop(0) if asked == path and left else ""

    fake.fault = fault


def always(fake: FakeEtcd, fault: str, *paths: str) -> None:
    fake.fault = lambda _, asked: fault if asked in paths else ""


def wait_until(holds) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def refused_until(holds, journal: EtcdJournal, record: dict) -> None:
    """The append fails, with more and more time for it, until what it is to bring about is so."""
    limit_s = 0.2
    while True:
        with pytest.raises(JournalAway) as refused:
            journal.append(record, limit_s=limit_s)
        if holds(str(refused.value)):
            return
        assert limit_s < LIMIT_S
        limit_s *= 2


# --- answers that are lost ---


@pytest.mark.parametrize("fault", [etcd_fake.LOST_ANSWER, etcd_fake.REFUSED, etcd_fake.NO_ETCD])
def test_a_record_whose_answer_was_lost_is_written_once(fake, at, open_at, fault):
    journal = open_at(at)
    journal.claim()
    faulty(fake, "kv/txn", fault, fault)
    journal.append(FIRST)
    faulty(fake, "kv/txn", fault)
    journal.append(FIRST)
    faulty(fake, "kv/txn", fault)
    journal.compact(SECOND)
    journal.append({"text": "x" * 200_000})
    assert journal.records() == [SECOND, {"text": "x" * 200_000}]
    assert fake.asked["kv/txn"] > 4


def test_a_claim_whose_answer_was_lost_is_not_taken_for_that_of_another(fake, at, open_at):
    journal = open_at(at)
    faulty(fake, "kv/txn", "", etcd_fake.LOST_ANSWER)
    assert journal.claim() == Claim(1, "")
    journal.append(FIRST)
    assert journal.records() == [FIRST]


@pytest.mark.parametrize(("size", "num_pieces"), [(1, 0), (200_000, 2)])
def test_a_refused_record_that_was_written_all_the_same_is_replaced_by_the_next(
    fake, at, open_at, size, num_pieces
):
    journal = open_at(at)
    journal.claim()
    refused, later = {"text": "x" * size}, {"text": "y" * size}
    faulty(fake, "kv/txn", *[""] * num_pieces, *[etcd_fake.LOST_ANSWER] * 1000)
    refused_until(lambda why: journal.records() == [refused], journal, refused)
    faulty(fake, "kv/txn", *[""] * num_pieces, *[etcd_fake.REFUSED] * 1000)
    with pytest.raises(JournalAway, match=r"no answer within 0\.\d* s"):
        journal.append(later, limit_s=0.3)
    assert journal.records() == [refused], "it has lost its pieces"
    fake.fault = lambda _, path: ""  # not before: a call that was given up may come late
    journal.append(later)
    assert journal.records() == [later]
    journal.append(FIRST)
    assert journal.records() == [later, FIRST]


def test_a_late_write_from_before_a_snapshot_counts_for_nothing(fake, at, open_at):
    journal = open_at(at)
    journal.claim()
    journal.append(FIRST)
    late = {key: dict(entry) for key, entry in fake.keys.items() if b"/records/" in key}
    journal.compact(SECOND)
    fake.keys |= late
    assert journal.records() == [SECOND]


# --- leases ---


def test_without_renewals_one_leads_no_more_though_nobody_has_said_so(fake, at, open_at):
    journal = open_at(at, lease_s=0.5)
    journal.claim()
    always(fake, etcd_fake.HANGS, "lease/keepalive")
    now_s = time.monotonic()
    assert not journal.leads(now_s + 0.5)
    wait_until(lambda: not journal.leads(time.monotonic()))
    assert time.monotonic() < now_s + 0.5 + LIMIT_S


def test_a_lease_that_is_renewed_outlives_its_length(fake, at, open_at):
    journal = open_at(at, lease_s=0.4)
    journal.claim()
    first_s = time.monotonic()
    wait_until(lambda: journal.leads(first_s + 0.4))
    before = fake.asked["lease/keepalive"]
    journal.renew()
    wait_until(lambda: fake.asked["lease/keepalive"] > before)


def test_a_lease_that_ran_out_is_had_again_if_nobody_came(fake, at, open_at, patient_close):
    journal = open_at(at)
    journal.claim()
    fake.revoke_all()
    journal.append(FIRST)  # waits for the new lease
    assert journal.leads(time.monotonic())
    assert journal.records() == [FIRST]
    journal.close()
    assert open_at(at).claim().generation == 2


def test_a_lease_that_cannot_be_had_again_in_time_delays_the_record(fake, at, open_at):
    journal = open_at(at)
    journal.claim()
    always(fake, etcd_fake.REFUSED, "lease/keepalive", "lease/grant")
    fake.revoke_all()
    refused_until(lambda why: "the lease has run out" in why, journal, FIRST)
    fake.fault = lambda _, path: ""
    journal.append(SECOND)
    assert journal.records() == [SECOND]


def asleep(fake: FakeEtcd, journal: EtcdJournal) -> None:
    """It leads, and its renewals hang; then its lease runs out."""
    always(fake, etcd_fake.HANGS, "lease/keepalive")
    journal.claim()
    journal.append(FIRST)
    wait_until(lambda: fake.asked["lease/keepalive"])
    fake.revoke_all()


def test_who_slept_through_its_lease_cannot_append(fake, at, open_at):
    first, second = open_at(at), open_at(at, "second")
    asleep(fake, first)
    assert second.claim() == Claim(2, "launch 1, first")
    for write in (first.append, first.compact):
        with pytest.raises(Deposed):
            write(SECOND)
    assert not first.leads(time.monotonic())
    second.append(THIRD)
    assert second.records() == [FIRST, THIRD]
    first.close()
    assert second.leads(time.monotonic())
    with pytest.raises(JournalHeld, match="launch 2, second leads"):
        first.claim()


def test_a_renewal_finds_out_by_itself_that_another_leads(fake, at, open_at):
    first, second = open_at(at), open_at(at, "second")
    asleep(fake, first)
    second.claim()
    fake.fault = lambda _, path: ""
    fake.ends.set()
    wait_until(lambda: not first.leads(time.monotonic()))


def test_who_slept_while_another_led_and_ended_cannot_go_on(fake, at, open_at):
    first, second = open_at(at), open_at(at, "second")
    asleep(fake, first)
    second.claim()
    second.close()
    fake.fault = lambda _, path: ""
    fake.ends.set()
    with pytest.raises(Deposed):
        first.append(SECOND)
    assert first.records() == [FIRST]


@pytest.fixture
def meanwhile(monkeypatch):
    """What to do between what a claimant reads and what it writes: in its own thread, so that no
    limit of a call ends it."""
    acts, grant = [], EtcdCalls.grant

    def acting(self: EtcdCalls, ttl_s: int, limit_s: float) -> str:
        act, lease = acts.pop() if acts else None, grant(self, ttl_s, limit_s)
        if act is not None:
            act()
        return lease

    monkeypatch.setattr(EtcdCalls, "grant", acting)
    return acts.append


def test_a_claim_is_void_if_another_has_led_meanwhile_though_it_has_ended(
    at, open_at, meanwhile, patient_close
):
    slow, fast = open_at(at, "slow"), open_at(at, "fast")
    meanwhile(lambda: (fast.claim(), fast.append(FIRST), fast.close()))
    with pytest.raises(JournalHeld):
        slow.claim(limit_s=LIMIT_S)
    assert slow.claim().generation == 2


def test_a_claim_is_void_if_the_leader_has_its_lease_again_meanwhile(fake, at, open_at, meanwhile):
    meanwhile(lambda: put(fake, "run/leader", b"{}"))
    with pytest.raises(JournalHeld, match="another process leads this run"):
        open_at(at).claim()


def test_a_claimant_that_slept_until_its_new_lease_had_run_out_takes_another(
    fake, at, open_at, meanwhile
):
    journal = open_at(at)
    meanwhile(fake.revoke_all)
    assert journal.claim() == Claim(1, "")
    journal.close()
    meanwhile(fake.revoke_all)
    with pytest.raises(JournalAway):
        journal.claim(limit_s=0.0)


# --- endpoints ---


@pytest.mark.parametrize("fault", [etcd_fake.HANGS, etcd_fake.REFUSED, etcd_fake.DRIBBLES])
def test_another_endpoint_is_asked_if_one_does_not_answer(fake, at, open_at, fault):
    bad = FakeEtcd()
    bad.fault = lambda _, path: fault
    with served(bad) as wrong:
        journal = open_at(f"{wrong},{at}")
        journal.claim()
        journal.append(FIRST)
    assert bad.asked.total() > 0
    assert journal.records() == [FIRST]


@pytest.mark.parametrize("fault", [etcd_fake.HANGS, etcd_fake.DRIBBLES, etcd_fake.NO_ETCD])
def test_the_limit_of_an_append_holds_whatever_the_endpoint_does(fake, at, open_at, fault):
    journal = open_at(at)
    journal.claim()
    always(fake, fault, "kv/txn")
    start_s = time.monotonic()
    with pytest.raises(JournalAway, match=r"no answer within 0\.\d* s"):
        journal.append(FIRST, limit_s=0.3)
    assert time.monotonic() < start_s + 0.3 + LIMIT_S


def test_nobody_there_is_said_and_no_name_known(open_at):
    for at in ("127.0.0.1:1", "no-such-host.invalid:2379"):
        with pytest.raises(JournalAway, match=rf"^etcd://{at}/run: no answer within 0.1 s \({at}"):
            open_at(at).claim(limit_s=0.1)


def test_a_token_that_is_no_longer_good_is_replaced(fake, at, open_at):
    fake.password = "secret"
    journal = open_at(at, user="someone", password="secret")
    journal.claim()
    faulty(fake, "kv/txn", etcd_fake.NO_TOKEN)
    journal.append(FIRST)
    assert journal.records() == [FIRST]


def test_a_wrong_password_is_said_at_once(fake, at, open_at):
    fake.password = "secret"
    with pytest.raises(JournalError, match="invalid user ID or password; set ETCDCTL_USER"):
        open_at(at, user="someone", password="wrong").claim()
    with pytest.raises(JournalError, match="invalid auth token"):
        open_at(at).claim()


# --- what is there already ---


def put(fake: FakeEtcd, key: str, value: bytes) -> None:
    encoded = base64.b64encode(key.encode()).decode(), base64.b64encode(value).decode()
    content = {"key": encoded[0], "value": encoded[1], "lease": "0"}
    fake.kv_txn({"compare": [], "success": [{"request_put": content}], "failure": []})


@pytest.mark.parametrize("value", [b"\xff", b"[]", b"{}", b"1"])
def test_a_value_that_is_no_record_is_an_error_that_says_what_to_do(fake, at, open_at, value):
    journal = open_at(at)
    journal.claim()
    put(fake, "run/records/000000000000", value)
    with pytest.raises(JournalDamaged, match="restore etcd from a snapshot, or choose another"):
        journal.records()


def test_a_piece_that_is_damaged_is_found(fake, at, open_at):
    journal = open_at(at)
    journal.claim()
    journal.append({"text": "x" * 200_000})
    piece = next(key for key in fake.keys if b"/pieces/" in key)
    put(fake, piece.decode(), b"y")
    with pytest.raises(JournalDamaged, match=r"key run/records/0*: is damaged"):
        journal.records()


def test_a_prefix_of_somebody_else_is_left_alone(fake, at, open_at):
    put(fake, "run/generation", json.dumps({"other": 1}).encode())
    before = dict(fake.keys)
    with pytest.raises(JournalDamaged, match="holds something else; choose another prefix"):
        open_at(at).claim()
    assert fake.keys == before


def test_keys_that_were_removed_under_a_leader_are_not_written_anew(fake, at, open_at):
    journal = open_at(at)
    journal.claim()
    fake.keys.clear()
    with pytest.raises(JournalDamaged, match="was removed while the run used it"):
        journal.append(FIRST)
    assert fake.keys == {}


# --- addresses ---


def test_an_address_names_endpoints_and_a_prefix():
    address = parse_journal_address("etcds://a:1,[::1]:2/runs/mine", "control.journal")
    assert address.endpoints == (("a", 1), ("::1", 2))
    assert (address.prefix, address.tls) == ("runs/mine", True)
    assert str(address) == "etcds://a:1,[::1]:2/runs/mine"


@pytest.mark.parametrize(
    "text",
    [
        *("etcd://a:1", "etcd:///run", "etcd://a/run", "etcd://a:1,/run", "http://a:1/run"),
        *("etcd://me:word@a:1/run", "etcd://a:1/../run", "etcd://a:1//run", "etcd://a:1/r\n"),
    ],
)
def test_another_address_is_refused(text):
    with pytest.raises(ConfigError, match=r"^control.journal[ =].*: expected .*"):
        parse_journal_address(text, "control.journal")


def test_access_comes_from_the_variables_of_etcdctl():
    given = {"ETCDCTL_USER": "me:word", "ETCDCTL_CACERT": "ca", "ETCDCTL_KEY": "k"}
    assert EtcdAccess.of(given) == EtcdAccess("me", "word", "ca", "", "k")
    given = {"ETCDCTL_USER": "me", "ETCDCTL_PASSWORD": "w:o", "ETCDCTL_CERT": "c"}
    assert EtcdAccess.of(given) == EtcdAccess("me", "w:o", "", "c")
    assert "w:o" not in repr(EtcdAccess.of(given))


def test_a_file_that_cannot_be_used_for_tls_is_named(tmp_path):
    for access in (EtcdAccess(ca="no-such-ca"), EtcdAccess(certificate="no-such-certificate")):
        with pytest.raises(ConfigError, match=r"^no-such-\w+: cannot be used for TLS with etcd"):
            access.context()
