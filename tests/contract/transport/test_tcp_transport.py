"""What only sockets can do wrong: strangers, broken streams, killed processes, leaks."""

import errno
import gc
import itertools
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
import torch

from helpers.harness.transport_harness import (
    ALICE,
    BOB,
    CAROL,
    LIMIT_S,
    SECRET,
    Background,
    Caller,
    Frame,
    TcpCluster,
    activation,
    frame,
    state,
    wait_until,
)
from helpers.relay import Meddler
from helpers.scarce import refuse_threads
from helpers.seed import SEED
from holdfast.auth.stamps import STAMP_BYTES
from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, EpochPast, PeerLost, TransportClosed, WaitTimeout
from holdfast.host import scarce
from holdfast.transport.base import Limits
from holdfast.transport.frame import FRAME_HEADER_BYTES
from holdfast.transport.tcp.greeting import GOODBYE, SessionHello, encode_hello
from holdfast.transport.tcp.incoming import Incoming
from holdfast.transport.tcp.outgoing import Outgoing
from holdfast.transport.tcp.transport import TcpTransport

MB = 1 << 20
HUGE = torch.empty(64 * MB, dtype=torch.uint8)
HUGE_FRAME = frame(activation(1), HUGE)._replace(payload=b"")  # it never comes
HASTY = Limits(reconnect_limit_s=0.1)


@pytest.fixture
def cluster() -> Iterator[TcpCluster]:
    torch.set_num_threads(1)
    started = TcpCluster()
    yield started
    started.close()


@pytest.fixture
def sink() -> Iterator[socket.socket]:
    """Takes connections and reads nothing unless told to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def call(cluster: TcpCluster, callee: WorkerId, data: bytes = b"") -> Caller:
    return Caller(cluster.addresses[callee]).say(data)


def call_as(
    me: WorkerId, cluster: TcpCluster, *said: bytes | Frame, epoch: int = 0, **more: int
) -> Caller:
    """Of a worker that calls Bob, and is known to him."""
    caller = Caller(cluster.addresses[BOB]).introduce(me).hello(epoch, **more)
    return caller.say(*said)


def check_still_works(alice: TcpTransport, bob: TcpTransport) -> None:
    alice.send(BOB, activation(99), torch.tensor(5))
    assert bob.receive(ALICE, activation(99), LIMIT_S) == 5


def send_until_lost(sender: TcpTransport, to: WorkerId) -> None:
    """The connection is made behind the caller's back, so the first sends may still be taken."""
    for step in itertools.count():
        sender.send(to, activation(step), torch.ones(1))
        sender.flush(LIMIT_S)


def holdfast_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "holdfast" in thread.name}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


STRANGE = {
    "noise": random.Random(f"{SEED}-noise").randbytes(5000),
    "http": b"GET / HTTP/1.1\r\nHost: somebody-else.example\r\nAccept: */*\r\n\r\n",
}
BROKEN_OFF = HUGE_FRAME._replace(payload=bytes(1000))
BROKEN = {
    "bad-frame": b"x" * 5000,
    "huge-frame": HUGE_FRAME,
    "no-stamp": frame(activation(1), torch.ones(4)).header + bytes(STAMP_BYTES + 16),
    "damaged": frame(activation(1), torch.ones(4), checksum=1),
    "gap": frame(activation(1), torch.ones(4), sequence=3),
}


@pytest.mark.parametrize("data", STRANGE.values(), ids=STRANGE)
def test_a_stranger_is_hung_up_on_and_the_others_go_on(cluster, data):
    alice, bob = cluster.start(ALICE, BOB)
    alice.send(BOB, activation(0), torch.ones(1))
    with call(cluster, BOB, data) as stranger:
        assert stranger.is_hung_up()
    wait_until(lambda: bob.statistics.refused_connections == 1)
    check_still_works(alice, bob)
    assert bob.receive(ALICE, activation(0), LIMIT_S) == 1


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_caller_that_breaks_the_rules_is_hung_up_on_and_the_others_go_on(cluster, data):
    alice, bob = cluster.start(ALICE, BOB, limits=Limits(payload_bytes=MB))
    alice.send(BOB, activation(0), torch.ones(1))
    with call_as(CAROL, cluster, data) as broken:
        assert broken.is_hung_up()
    wait_until(lambda: bob.statistics.refused_connections == 1)
    check_still_works(alice, bob)
    assert bob.receive(ALICE, activation(0), LIMIT_S) == 1


def test_a_caller_that_says_nothing_is_hung_up_on(cluster):
    limits = Limits(connect_limit_s=0.3, reconnect_limit_s=LIMIT_S)
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    with call(cluster, BOB) as stranger:
        assert stranger.is_hung_up()
    wait_until(lambda: bob.statistics.refused_connections == 1)
    check_still_works(alice, bob)


def test_a_peer_that_breaks_the_rules_and_does_not_come_back_is_lost(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=HASTY)
    with call_as(CAROL, cluster, b"x" * 5000):
        lost = r"worker 1\.0 broke the protocol, and was not back in 0\.1 s"
        with pytest.raises(PeerLost, match=lost):
            bob.receive(CAROL, activation(1), LIMIT_S)
        check_still_works(alice, bob)


@pytest.mark.parametrize(
    ("data", "what"),
    [(HUGE_FRAME.header[:50], "of a header"), (BROKEN_OFF, "1000 of 67108864 bytes")],
    ids=["header", "payload"],
)
def test_a_message_that_breaks_off_loses_its_sender_only(cluster, data, what):
    alice, bob = cluster.start(ALICE, BOB, limits=HASTY)
    with call_as(CAROL, cluster) as carol:
        assert carol.answer() == 0
        carol.say(data)
    with pytest.raises(PeerLost, match=what):
        bob.receive(CAROL, activation(1), LIMIT_S)
    assert bob.statistics.received_messages == 0
    check_still_works(alice, bob)


KILLED_IN_MID_MESSAGE = """
import signal, socket, sys
from holdfast.auth.handshake import Identity, call
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
secret, *opening = map(bytes.fromhex, sys.argv[2:])
_, stamps = call(connection, secret, Identity("worker", "1.0"), "worker", 60)
connection.sendall(b"".join(map(stamps.stamped, opening)) + bytes(20 << 20))
connection.recv(24)  # else the kernel would reset the connection, not end it
print("sent", flush=True)
signal.pause()
"""


def test_a_peer_killed_in_the_middle_of_a_large_message_is_lost(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=HASTY)
    port = str(cluster.addresses[BOB][1])
    opening = [encode_hello(SessionHello(1, 0, False)).hex(), HUGE_FRAME.header.hex()]
    command = [sys.executable, "-c", KILLED_IN_MID_MESSAGE, port, SECRET.hex(), *opening]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as carol:
        try:
            assert carol.stdout.readline() == b"sent\n"
            waiting = Background(bob.receive, CAROL, activation(1), LIMIT_S).wait_until_blocked()
        finally:
            carol.send_signal(signal.SIGKILL)
    with pytest.raises(PeerLost, match="67108864"):
        waiting.result()
    check_still_works(alice, bob)


KILLED_WITHOUT_READING = """
import signal, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
print("accepted", flush=True)
signal.pause()
"""


def test_a_sender_is_told_of_a_receiver_killed_in_the_middle_of_a_large_message(cluster):
    limits = Limits(outbox_bytes=MB, send_limit_s=LIMIT_S)
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    command = [sys.executable, "-c", KILLED_WITHOUT_READING]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as carol:
        try:
            alice.connect({CAROL: ("127.0.0.1", int(carol.stdout.readline()))})
            alice.send(CAROL, activation(1), HUGE)  # does not wait for anyone
            assert carol.stdout.readline() == b"accepted\n"
            sending = Background(alice.send, CAROL, activation(2), HUGE).wait_until_blocked()
        finally:
            carol.send_signal(signal.SIGKILL)
    with pytest.raises(PeerLost, match=r"worker 0\.0 cannot send to worker 1\.0"):
        sending.result()
    with pytest.raises(PeerLost):
        alice.send(CAROL, activation(3), torch.ones(1))
    check_still_works(alice, bob)


def test_flush_waits_until_all_has_arrived(cluster):
    limits = Limits(inbox_bytes=MB)
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    for step in range(3):
        alice.send(BOB, activation(step), HUGE)
    with pytest.raises(WaitTimeout, match=r"still wait to leave for worker 0\.1"):
        alice.flush(0.01)
    flushing = Background(alice.flush, LIMIT_S).wait_until_blocked()
    for step in range(3):
        bob.receive(ALICE, activation(step), LIMIT_S)
    flushing.result()
    alice.flush(0.0)  # there is nothing left to wait for


def test_close_ends_a_flush(cluster, sink):
    [alice] = cluster.start(ALICE)
    alice.connect({CAROL: sink.getsockname()})
    alice.send(CAROL, activation(1), HUGE)
    flushing = Background(alice.flush, LIMIT_S).wait_until_blocked()
    alice.close()
    with pytest.raises(TransportClosed):
        flushing.result()


def test_nobody_at_the_address_is_a_lost_peer(cluster, sink):
    [alice] = cluster.start(ALICE)
    alice.connect({CAROL: sink.getsockname()})
    sink.close()
    with pytest.raises(PeerLost, match="Connection refused"):
        send_until_lost(alice, CAROL)
    alice.flush(LIMIT_S)  # nothing is left to leave for a lost peer


def test_an_address_that_does_not_answer_is_a_lost_peer(cluster, deaf_address):
    limits = Limits(connect_limit_s=0.05, reconnect_limit_s=0.1)
    [alice] = cluster.start(ALICE, limits=limits)
    alice.connect({CAROL: deaf_address})
    with pytest.raises(PeerLost, match=r"no connection within 0\.05 s"):
        send_until_lost(alice, CAROL)


def test_close_ends_an_attempt_to_connect(cluster, deaf_address):
    [alice] = cluster.start(ALICE, limits=Limits(connect_limit_s=LIMIT_S))
    alice.connect({CAROL: deaf_address})
    alice.send(CAROL, activation(1), torch.ones(1))
    alice.close()
    assert not holdfast_threads()


ONES = torch.ones(4)


def test_a_newer_session_of_the_same_worker_takes_over(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    check_still_works(alice, bob)
    with call_as(ALICE, cluster, frame(activation(1), ONES), epoch=1):
        assert torch.equal(bob.receive(ALICE, activation(1), LIMIT_S), ONES)
        with pytest.raises(PeerLost):  # the old life speaks once more
            send_until_lost(alice, BOB)
        wait_until(lambda: bob.statistics.refused_connections >= 1)
        with pytest.raises(WaitTimeout):  # refused, and no reason to count the new one as lost
            bob.receive(ALICE, activation(0), 0)


def test_a_caller_of_an_earlier_epoch_cannot_take_over(cluster):
    [bob] = cluster.start(BOB)
    with call_as(ALICE, cluster, frame(activation(1), ONES), epoch=3) as current:
        bob.receive(ALICE, activation(1), LIMIT_S)
        with call_as(ALICE, cluster, epoch=2) as stale:
            assert stale.answer() == GOODBYE
            assert stale.is_hung_up()
        current.say(frame(activation(1), ONES, sequence=2))
        assert torch.equal(bob.receive(ALICE, activation(1), LIMIT_S), ONES)


def test_a_connection_that_was_replaced_is_hung_up_on_although_it_says_nothing(cluster):
    [bob] = cluster.start(BOB)
    with call_as(ALICE, cluster, frame(activation(1), ONES)) as old:
        bob.receive(ALICE, activation(1), LIMIT_S)
        with call_as(ALICE, cluster, frame(activation(1), ONES)):
            assert old.is_hung_up()
            assert torch.equal(bob.receive(ALICE, activation(1), LIMIT_S), ONES)


def test_a_timeless_message_does_not_let_a_caller_of_an_earlier_epoch_in(cluster):
    [bob] = cluster.start(BOB)
    message = frame(state(1), ONES)
    with call_as(ALICE, cluster, message, epoch=3):
        bob.receive(ALICE, state(1), LIMIT_S)
        with call_as(ALICE, cluster, message, epoch=2) as stale:
            assert stale.is_hung_up()
        wait_until(lambda: bob.statistics.refused_connections == 1)
        assert not bob.has(ALICE, state(1))


def test_the_old_bearer_of_a_dropped_name_is_refused_before_the_new_one_has_called(cluster):
    [bob] = cluster.start(BOB)
    for epoch in (0, 4):
        message = frame(activation(1), ONES, epoch=epoch)
        with call_as(ALICE, cluster, message, epoch=epoch) as dropped:
            bob.advance(epoch)
            bob.receive(ALICE, activation(1), LIMIT_S)
            bob.advance(epoch + 4)
            bob.disconnect([])
            assert dropped.is_hung_up()
        with call_as(ALICE, cluster, epoch=epoch + 3) as old:
            assert old.is_hung_up()


def test_a_new_address_means_a_new_process(cluster):
    old, bob = cluster.start(ALICE, BOB)
    check_still_works(old, bob)
    bob.advance(1)
    new = TcpTransport(ALICE, SECRET)
    bob.connect({ALICE: new.listen()})
    wait_until(lambda: "holdfast-0.1-read-0.0" not in holdfast_threads())
    old.close()  # long given up: no reason to count the new one as lost
    with pytest.raises(WaitTimeout):
        bob.receive(ALICE, activation(1), 0)
    new.close()


def test_a_new_process_may_call_before_its_address_is_known(cluster):
    old, bob = cluster.start(ALICE, BOB)
    check_still_works(old, bob)
    new = TcpTransport(ALICE, SECRET, epoch=1)
    new.connect({BOB: cluster.addresses[BOB]})
    new.send(BOB, activation(1), torch.tensor(1))
    wait_until(lambda: bob.statistics.received_messages == 2)
    bob.advance(1)
    bob.connect({ALICE: new.listen()})
    new.send(BOB, activation(1), torch.tensor(2))
    assert [int(bob.receive(ALICE, activation(1), LIMIT_S)) for _ in range(2)] == [1, 2]
    new.close()


def test_connect_replaces_a_link_on_which_the_peer_hung_up(cluster):
    """Else the first message, taken by the kernel, would be lost without a word."""
    alice, bob = cluster.start(ALICE, BOB)
    check_still_works(alice, bob)
    bob.disconnect([])
    alice.connect({BOB: cluster.addresses[BOB]})
    check_still_works(alice, bob)


def test_connect_finds_a_hung_up_link_whoever_hears_it_first(cluster):
    """Its writer may be about to tell: of 300 tries without a lock there, about ten failed."""
    interval_s = sys.getswitchinterval()
    alice, bob = cluster.start(ALICE, BOB)
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(300):
            check_still_works(alice, bob)
            bob.disconnect([])
            bob.connect(cluster.addresses)
            alice.connect({BOB: cluster.addresses[BOB]})
    finally:
        sys.setswitchinterval(interval_s)


@pytest.mark.parametrize("what", ["send", "flush"])
def test_disconnect_ends_waits_for_a_peer_that_does_not_read(cluster, sink, what):
    limits = Limits(outbox_bytes=MB, send_limit_s=LIMIT_S)
    [alice] = cluster.start(ALICE, limits=limits)
    alice.connect({CAROL: sink.getsockname()})
    alice.send(CAROL, activation(1), HUGE)
    if what == "flush":
        flushing = Background(alice.flush, LIMIT_S).wait_until_blocked()
        alice.disconnect([])
        flushing.result()
    else:
        sending = Background(alice.send, CAROL, activation(2), HUGE).wait_until_blocked()
        alice.disconnect([])
        with pytest.raises(PeerLost, match="it was disconnected"):
            sending.result()
    wait_until(lambda: holdfast_threads() == {"holdfast-0.0-accept"})


def test_an_interrupt_ends_a_send_to_a_peer_that_never_reads(cluster, sink):
    [alice] = cluster.start(ALICE, limits=Limits(outbox_bytes=MB, send_limit_s=2 * LIMIT_S))
    alice.connect({CAROL: sink.getsockname()})
    alice.send(CAROL, activation(1), HUGE)
    sending = Background(alice.send, CAROL, activation(2), HUGE).wait_until_blocked()
    alice.interrupt(1)
    with pytest.raises(EpochPast, match="waited for room in epoch 0"):
        sending.result()


def test_disconnect_ends_an_attempt_to_connect(cluster, deaf_address):
    [alice] = cluster.start(ALICE, limits=Limits(connect_limit_s=10 * LIMIT_S))
    alice.connect({CAROL: deaf_address})
    alice.send(CAROL, activation(1), torch.ones(1))
    alice.disconnect([])
    wait_until(lambda: holdfast_threads() == {"holdfast-0.0-accept"})


@pytest.mark.parametrize("how", ["disconnected", "replaced"])
def test_a_reader_that_waits_for_room_ends_with_its_connection(cluster, how):
    [bob] = cluster.start(BOB, limits=Limits(inbox_bytes=1))
    with call_as(ALICE, cluster, frame(activation(1), ONES)) as full:
        wait_until(lambda: bob.statistics.received_messages == 1)
        if how == "disconnected":
            bob.disconnect([])
            wait_until(lambda: holdfast_threads() == {"holdfast-0.1-accept"})
        else:
            with call_as(ALICE, cluster):
                wait_until(lambda: bob.statistics.refused_connections == 1)
        assert full.is_hung_up()


def test_two_hundred_lives_of_a_peer_leave_nothing_behind(cluster):
    torch.set_num_threads(1)
    [bob] = cluster.start(BOB)
    address = cluster.addresses[BOB]
    num_rounds = 200

    def is_alone() -> bool:
        return holdfast_threads() == {f"holdfast-{BOB}-accept"}

    def held() -> tuple[int, int]:
        gc.collect()
        kept = sum(type(thing) in (Incoming, Outgoing) for thing in gc.get_objects())
        return open_files(), kept

    wait_until(is_alone)  # threads of tests before this one may be about to end
    before = held()
    for epoch in range(1, num_rounds + 1):
        alice = TcpTransport(ALICE, SECRET, epoch=epoch)
        alice.connect({BOB: address})
        bob.advance(epoch)
        bob.connect({ALICE: alice.listen()})
        alice.send(BOB, activation(1), torch.tensor(epoch))
        assert bob.receive(ALICE, activation(1), LIMIT_S) == epoch
        bob.send(ALICE, activation(1), torch.tensor(epoch))
        assert alice.receive(BOB, activation(1), LIMIT_S) == epoch
        alice.send(BOB, state(1), torch.ones(1000))  # never read
        alice.close()
        bob.interrupt(epoch + 1)
        bob.disconnect([])
    del alice
    wait_until(is_alone)
    bob.disconnect([])  # lets go of links that had not yet ended at the last call
    files, kept = held()
    assert files <= before[0]
    assert kept <= before[1]
    assert bob.statistics.unread_bytes == 0
    assert bob.statistics.sent_messages == num_rounds


def test_what_arrives_is_read_straight_into_the_tensor(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    check_still_works(alice, bob)  # connections are made
    tensor = torch.arange(16 * MB, dtype=torch.uint8)
    tracemalloc.start()
    try:
        alice.send(BOB, activation(1), tensor)
        arrived = bob.receive(ALICE, activation(1), LIMIT_S)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert torch.equal(arrived, tensor)
    # Python and numpy buffers are traced, memory of tensors is not: a copy on the way would show.
    assert peak_bytes < MB


def without_descriptors(monkeypatch: pytest.MonkeyPatch, is_over: Callable[[], bool]) -> list[int]:
    """No link can be opened until it is over; returns a list that grows with each try."""
    eventfd, refused = os.eventfd, list[int]()

    def scarce(*words: int) -> int:
        if is_over():
            return eventfd(*words)
        refused.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "eventfd", scarce)
    return refused


def test_a_send_waits_for_a_descriptor_longer_than_for_an_answer(cluster, monkeypatch):
    limits = Limits(connect_limit_s=0.3, reconnect_limit_s=LIMIT_S)
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    refused = without_descriptors(monkeypatch, lambda: len(refused) == 10)
    check_still_works(alice, bob)
    assert len(refused) == 10


def test_a_link_that_never_opens_is_told_as_one_that_broke(cluster, monkeypatch):
    alice, _ = cluster.start(ALICE, BOB, limits=HASTY)
    refused = without_descriptors(monkeypatch, lambda: False)
    with pytest.raises(PeerLost, match="cannot send to worker") as lost:
        alice.send(BOB, activation(1), torch.ones(1))
    assert lost.value.worker == str(BOB)
    assert len(refused) > 1


def test_the_end_of_an_epoch_ends_the_wait_for_a_descriptor(cluster, monkeypatch):
    alice, _ = cluster.start(ALICE, BOB, limits=Limits(reconnect_limit_s=10 * LIMIT_S))
    refused = without_descriptors(monkeypatch, lambda: False)
    sending = Background(lambda: alice.send(BOB, activation(1), torch.ones(1)))
    wait_until(lambda: len(refused) > 1)
    alice.interrupt(1)
    with pytest.raises(EpochPast):
        sending.result()


def test_a_worker_without_a_thread_or_a_descriptor_listens_later(cluster, monkeypatch):
    monkeypatch.setattr(scarce, "PAUSES_S", (0.0, 0.0))
    threads = refuse_threads(monkeypatch, f"holdfast-{BOB}-accept", 2)
    selector, selectors_refused = selectors.DefaultSelector, []

    def no_selector() -> selectors.BaseSelector:
        if len(selectors_refused) == 2:
            return selector()
        selectors_refused.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(selectors, "DefaultSelector", no_selector)
    alice, bob = cluster.start(ALICE, BOB)
    check_still_works(alice, bob)
    assert (len(threads), len(selectors_refused)) == (2, 2)


def test_the_constructor_opens_nothing_and_starts_nothing():
    files, threads = open_files(), threading.active_count()
    transport = TcpTransport(ALICE, SECRET)
    assert open_files() <= files
    assert threading.active_count() <= threads
    transport.close()


def test_close_leaves_no_file_no_thread_and_no_port_behind(cluster):
    files = open_files()
    workers = cluster.start(ALICE, BOB, CAROL)
    for sender in workers:
        for name in (ALICE, BOB, CAROL):
            sender.send(name, activation(1), torch.full((MB,), 1.0))
    for receiver in workers[:2]:  # one of them closes with unread messages
        for name in (ALICE, BOB, CAROL):
            receiver.receive(name, activation(1), LIMIT_S)
    # In each worker one accepts, three write, three read.
    wait_until(lambda: len(holdfast_threads()) == 3 * (1 + 3 + 3))
    cluster.close()
    assert not holdfast_threads()
    assert open_files() <= files  # what a test before this one had left may be closed by now
    host, port = cluster.addresses[ALICE]
    again = TcpTransport(ALICE, SECRET, host, listen_port=port)
    assert again.listen() == (host, port)
    again.close()


def test_a_secret_of_the_wrong_size_is_refused():
    with pytest.raises(ConfigError, match="3 bytes: must be 32"):
        TcpTransport(ALICE, b"abc")


def test_a_message_that_has_left_in_part_is_finished_in_the_next_epoch(cluster) -> None:
    """Else the rest of its bytes would be read from the message after it."""
    alice, bob = cluster.start(ALICE, BOB, limits=Limits(inbox_bytes=MB))
    between = Meddler(cluster.addresses[BOB])
    alice.connect({BOB: between.address})
    sizes: list[int] = []
    between.change = lambda data: sizes.append(len(data))
    alice.send(BOB, activation(0), HUGE)
    alice.send(BOB, activation(1), HUGE)  # Bob is full: of this one the kernel takes a part
    wait_until(lambda: sum(sizes) > HUGE.nbytes + MB and bob.statistics.received_messages == 1)
    alice.advance(1)
    alice.send(BOB, activation(2), torch.tensor(7))
    bob.advance(1)
    assert bob.receive(ALICE, activation(2), LIMIT_S) == 7
    assert bob.statistics.refused_past_epoch == 2
    between.close()


# --- what is damaged or repeated ---


@pytest.fixture
def meddled(cluster, request) -> Iterator[tuple[TcpTransport, TcpTransport, Meddler]]:
    """Alice and Bob, and somebody between them. Its parameter: when they give each other up."""
    limits = Limits(reconnect_limit_s=getattr(request, "param", LIMIT_S))
    alice, bob = cluster.start(ALICE, BOB, limits=limits)
    meddler = Meddler(cluster.addresses[BOB])
    alice.connect({BOB: meddler.address})
    check_still_works(alice, bob)
    yield alice, bob, meddler
    meddler.close()


@pytest.mark.parametrize("where", [-1, 10, -50], ids=["payload", "header", "checksum"])
def test_s5_a_damaged_message_is_sent_again(meddled, where):
    alice, bob, meddler = meddled
    num_before = meddler.num_connections
    tensor = torch.arange(8.0)
    num_bytes = FRAME_HEADER_BYTES + tensor.nbytes

    def damage(data: bytearray) -> None:
        if len(data) == num_bytes:
            data[where] ^= 1
            meddler.change = None

    meddler.change = damage
    alice.send(BOB, activation(1), tensor)
    assert torch.equal(bob.receive(ALICE, activation(1), LIMIT_S), tensor)
    assert meddler.change is None, "nothing was damaged: this test proves nothing"
    assert meddler.num_connections == num_before + 1
    wait_until(lambda: alice.statistics.reconnections == 1)
    if where == -1:
        wait_until(lambda: bob.statistics.damaged_messages == 1)
    check_still_works(alice, bob)


@pytest.mark.parametrize("meddled", [2.0], indirect=True)
def test_s5_a_message_that_is_damaged_every_time_loses_the_peer_in_the_end(meddled):
    alice, bob, meddler = meddled

    def damage(data: bytearray) -> None:
        if data.startswith(b"HFtn"):
            data[FRAME_HEADER_BYTES] ^= 1

    meddler.change = damage
    alice.send(BOB, activation(1), torch.arange(8.0))
    with pytest.raises(PeerLost):
        send_until_lost(alice, BOB)
    assert not bob.has(ALICE, activation(1))


@pytest.mark.parametrize("how", ["repeated", "made up"])
def test_s5_whoever_stands_between_two_workers_cannot_put_in_a_message(meddled, how):
    """It has passed on their proofs, and knows how a message looks."""
    alice, bob, meddler = meddled
    tensor = torch.arange(8.0)
    forged = frame(activation(1), torch.zeros(8), sequence=2)
    num_bytes = FRAME_HEADER_BYTES + tensor.nbytes

    def put_in(data: bytearray) -> None:
        if len(data) == num_bytes:
            more = forged.header + bytes(STAMP_BYTES) + forged.payload
            data[:] = data + data if how == "repeated" else more
            meddler.change = None

    meddler.change = put_in
    alice.send(BOB, activation(1), tensor)
    assert torch.equal(bob.receive(ALICE, activation(1), LIMIT_S), tensor)
    assert meddler.change is None, "nothing was put in: this test proves nothing"
    wait_until(lambda: alice.statistics.reconnections == 1)
    check_still_works(alice, bob)
    assert bob.statistics.received_messages == 3


def test_a_message_that_comes_twice_is_taken_once(cluster):
    [bob] = cluster.start(BOB)
    messages = [frame(activation(step), torch.tensor(step), sequence=step) for step in (1, 2)]
    with call_as(ALICE, cluster, *messages, *messages) as alice:
        alice.say(frame(activation(3), torch.tensor(3), sequence=3))
        assert bob.receive(ALICE, activation(3), LIMIT_S) == 3
        assert [int(bob.receive(ALICE, activation(step), 0)) for step in (1, 2)] == [1, 2]
        assert bob.statistics.received_messages == 3
        assert bob.statistics.unread_bytes == 0


def test_a_sender_that_is_back_hears_what_has_come(cluster):
    [bob] = cluster.start(BOB)
    with call_as(ALICE, cluster, frame(activation(1), ONES), session=7) as alice:
        assert (alice.answer(), alice.answer()) == (0, 1)
    with call_as(ALICE, cluster, session=7, resumes=True) as again:
        assert again.answer() == 1
        again.say(frame(activation(2), ONES, sequence=2))
        assert again.answer() == 2
        assert torch.equal(bob.receive(ALICE, activation(2), LIMIT_S), ONES)


def test_a_session_that_was_dropped_cannot_be_resumed(cluster):
    [bob] = cluster.start(BOB)
    with call_as(ALICE, cluster, frame(activation(1), ONES), session=7) as alice:
        alice.answer()
        bob.disconnect([])
    with call_as(ALICE, cluster, session=7, resumes=True) as again:
        assert again.answer() == GOODBYE
        assert again.is_hung_up()
