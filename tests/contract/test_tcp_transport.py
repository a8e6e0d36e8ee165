"""What only sockets can do wrong: strangers, broken streams, killed processes, leaks."""

import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator

import pytest
import torch
from transport_harness import (
    ALICE,
    BOB,
    CAROL,
    LIMIT_S,
    TOKEN,
    Background,
    TcpCluster,
    activation,
    state,
    wait_until,
)

from holdfast.cluster import WorkerId
from holdfast.errors import ConfigError, EpochPast, PeerLost, TransportClosed, WaitTimeout
from holdfast.transport.base import Limits
from holdfast.transport.frame import (
    FRAME_HEADER_BYTES,
    HELLO_BYTES,
    decode_frame,
    encode_frame,
    encode_hello,
    payload_view,
)
from holdfast.transport.incoming import Incoming
from holdfast.transport.outgoing import Outgoing, _Message
from holdfast.transport.tcp import TcpTransport

MB = 1 << 20
HUGE = torch.empty(64 * MB, dtype=torch.uint8)
HUGE_HEADER = encode_frame(0, activation(1), HUGE, 1 << 30)


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


def call(cluster: TcpCluster, callee: WorkerId, *, hello: bytes) -> socket.socket:
    connection = socket.create_connection(cluster.addresses[callee], timeout=LIMIT_S)
    connection.sendall(hello)
    return connection


def is_hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


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


HELLO_OF_CAROL = encode_hello(TOKEN, CAROL, 0)


@pytest.mark.parametrize(
    "data",
    [
        os.urandom(5000),
        b"GET / HTTP/1.1\r\nHost: somebody-else.example\r\nAccept: */*\r\n\r\n",
        encode_hello(b"another job's id", CAROL, 0),
        HELLO_OF_CAROL + b"x" * 5000,
        HELLO_OF_CAROL + HUGE_HEADER,
        HELLO_OF_CAROL + HUGE_HEADER[:-1] + b"?",
    ],
    ids=["noise", "http", "wrong-token", "bad-frame", "huge-frame", "bad-checksum"],
)
def test_a_caller_that_breaks_the_rules_is_hung_up_on_and_the_others_go_on(cluster, data):
    alice, bob = cluster.start(ALICE, BOB, limits=Limits(payload_bytes=MB))
    alice.send(BOB, activation(0), torch.ones(1))
    with call(cluster, BOB, hello=data) as stranger:
        assert is_hung_up(stranger)
    wait_until(lambda: bob.statistics.refused_connections == 1)
    check_still_works(alice, bob)
    assert bob.receive(ALICE, activation(0), LIMIT_S) == 1


def test_a_caller_that_says_nothing_is_hung_up_on(cluster):
    alice, bob = cluster.start(ALICE, BOB, limits=Limits(connect_limit_s=0.05))
    with call(cluster, BOB, hello=b"") as stranger:
        assert is_hung_up(stranger)
    wait_until(lambda: bob.statistics.refused_connections == 1)
    check_still_works(alice, bob)


def test_a_peer_that_breaks_the_rules_is_lost(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    with call(cluster, BOB, hello=HELLO_OF_CAROL + b"x" * 5000):
        with pytest.raises(PeerLost, match=r"worker 1\.0 broke the protocol"):
            bob.receive(CAROL, activation(1), LIMIT_S)
        check_still_works(alice, bob)


@pytest.mark.parametrize(
    ("data", "what"),
    [(HUGE_HEADER[:50], "of a header"), (HUGE_HEADER + bytes(1000), "1000 of 67108864 bytes")],
    ids=["header", "payload"],
)
def test_a_message_that_breaks_off_loses_its_sender_only(cluster, data, what):
    alice, bob = cluster.start(ALICE, BOB)
    call(cluster, BOB, hello=HELLO_OF_CAROL + data).close()
    with pytest.raises(PeerLost, match=what):
        bob.receive(CAROL, activation(1), LIMIT_S)
    assert bob.statistics.received_messages == 0
    check_still_works(alice, bob)


KILLED_IN_MID_MESSAGE = """
import signal, socket, sys
port, opening = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
connection = socket.create_connection(("127.0.0.1", port))
connection.sendall(opening + bytes(20 << 20))
print("sent", flush=True)
signal.pause()
"""


def test_a_peer_killed_in_the_middle_of_a_large_message_is_lost(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    opening = (HELLO_OF_CAROL + HUGE_HEADER).hex()
    port = str(cluster.addresses[BOB][1])
    command = [sys.executable, "-c", KILLED_IN_MID_MESSAGE, port, opening]
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


def test_flush_waits_for_what_the_kernel_did_not_take(cluster, sink):
    [alice] = cluster.start(ALICE)
    alice.connect({CAROL: sink.getsockname()})
    alice.send(CAROL, activation(1), HUGE)
    with pytest.raises(WaitTimeout, match=r"still wait to leave for worker 1\.0"):
        alice.flush(0.01)
    flushing = Background(alice.flush, LIMIT_S).wait_until_blocked()
    connection, _ = sink.accept()
    with connection:
        num_left = len(encode_hello(TOKEN, ALICE, 0)) + len(HUGE_HEADER) + len(HUGE)
        while num_left:
            num_left -= len(connection.recv(min(num_left, MB)))
        flushing.result()


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


@pytest.fixture
def deaf_address() -> Iterator[tuple[str, int]]:
    """An address that answers no new caller: its queue of callers is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for caller in (first, second):
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()


def test_an_address_that_does_not_answer_is_a_lost_peer(cluster, deaf_address):
    [alice] = cluster.start(ALICE, limits=Limits(connect_limit_s=0.05))
    alice.connect({CAROL: deaf_address})
    with pytest.raises(PeerLost, match=r"no connection within 0\.05 s"):
        send_until_lost(alice, CAROL)


def test_close_ends_an_attempt_to_connect(cluster, deaf_address):
    [alice] = cluster.start(ALICE, limits=Limits(connect_limit_s=LIMIT_S))
    alice.connect({CAROL: deaf_address})
    alice.send(CAROL, activation(1), torch.ones(1))
    alice.close()
    assert not holdfast_threads()


def test_a_newer_connection_of_the_same_worker_takes_over(cluster):
    alice, bob = cluster.start(ALICE, BOB)
    check_still_works(alice, bob)
    newer = encode_hello(TOKEN, ALICE, 1)
    ones = torch.ones(4)
    message = encode_frame(0, activation(1), ones, MB) + ones.numpy().tobytes()
    with call(cluster, BOB, hello=newer + message):
        assert torch.equal(bob.receive(ALICE, activation(1), LIMIT_S), ones)
        with pytest.raises(PeerLost):  # the old life speaks once more
            send_until_lost(alice, BOB)
        wait_until(lambda: bob.statistics.refused_connections == 1)
        with pytest.raises(WaitTimeout):  # refused, and no reason to count the new one as lost
            bob.receive(ALICE, activation(0), 0)


def test_a_caller_of_an_earlier_epoch_cannot_take_over(cluster):
    [bob] = cluster.start(BOB)
    ones = torch.ones(4)
    message = encode_frame(0, activation(1), ones, MB) + ones.numpy().tobytes()
    with call(cluster, BOB, hello=encode_hello(TOKEN, ALICE, 3) + message) as current:
        bob.receive(ALICE, activation(1), LIMIT_S)
        with call(cluster, BOB, hello=encode_hello(TOKEN, ALICE, 2)) as stale:
            assert is_hung_up(stale)
        current.sendall(message)
        assert torch.equal(bob.receive(ALICE, activation(1), LIMIT_S), ones)


def test_a_connection_that_was_replaced_is_hung_up_on_although_it_says_nothing(cluster):
    [bob] = cluster.start(BOB)
    ones = torch.ones(4)
    message = encode_frame(0, activation(1), ones, MB) + ones.numpy().tobytes()
    with call(cluster, BOB, hello=encode_hello(TOKEN, ALICE, 0) + message) as old:
        bob.receive(ALICE, activation(1), LIMIT_S)
        with call(cluster, BOB, hello=encode_hello(TOKEN, ALICE, 0) + message):
            assert is_hung_up(old)
            assert torch.equal(bob.receive(ALICE, activation(1), LIMIT_S), ones)


def test_a_timeless_message_does_not_let_a_caller_of_an_earlier_epoch_in(cluster):
    [bob] = cluster.start(BOB)
    ones = torch.ones(4)
    message = encode_frame(0, state(1), ones, MB) + ones.numpy().tobytes()
    with call(cluster, BOB, hello=encode_hello(TOKEN, ALICE, 3) + message):
        bob.receive(ALICE, state(1), LIMIT_S)
        with call(cluster, BOB, hello=encode_hello(TOKEN, ALICE, 2) + message) as stale:
            assert is_hung_up(stale)
        wait_until(lambda: bob.statistics.refused_connections == 1)
        assert not bob.has(ALICE, state(1))


def test_the_old_bearer_of_a_dropped_name_is_refused_before_the_new_one_has_called(cluster):
    [bob] = cluster.start(BOB)
    ones = torch.ones(4)
    for epoch in (0, 4):
        message = encode_frame(epoch, activation(1), ones, MB) + ones.numpy().tobytes()
        with call(cluster, BOB, hello=encode_hello(TOKEN, ALICE, epoch) + message) as dropped:
            bob.advance(epoch)
            bob.receive(ALICE, activation(1), LIMIT_S)
            bob.advance(epoch + 4)
            bob.disconnect([])
            assert is_hung_up(dropped)
        with call(cluster, BOB, hello=encode_hello(TOKEN, ALICE, epoch + 3)) as old:
            assert is_hung_up(old)


def test_a_new_address_means_a_new_process(cluster):
    old, bob = cluster.start(ALICE, BOB)
    check_still_works(old, bob)
    bob.advance(1)
    new = TcpTransport(ALICE, TOKEN)
    bob.connect({ALICE: new.listen()})
    wait_until(lambda: "holdfast-0.1-read-0.0" not in holdfast_threads())
    old.close()  # long given up: no reason to count the new one as lost
    with pytest.raises(WaitTimeout):
        bob.receive(ALICE, activation(1), 0)
    new.close()


def test_a_new_process_may_call_before_its_address_is_known(cluster):
    old, bob = cluster.start(ALICE, BOB)
    check_still_works(old, bob)
    new = TcpTransport(ALICE, TOKEN, epoch=1)
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
    [alice] = cluster.start(ALICE, limits=Limits(outbox_bytes=MB, send_limit_s=3 * LIMIT_S))
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
    ones = torch.ones(4)
    message = encode_frame(0, activation(1), ones, MB) + ones.numpy().tobytes()
    hello = encode_hello(TOKEN, ALICE, 0)
    with call(cluster, BOB, hello=hello + message) as full:
        wait_until(lambda: bob.statistics.received_messages == 1)
        if how == "disconnected":
            bob.disconnect([])
            wait_until(lambda: holdfast_threads() == {"holdfast-0.1-accept"})
        else:
            with call(cluster, BOB, hello=hello):
                wait_until(lambda: bob.statistics.refused_connections == 1)
        assert is_hung_up(full)


def test_two_hundred_lives_of_a_peer_leave_nothing_behind():
    torch.set_num_threads(1)
    bob = TcpTransport(BOB, TOKEN)
    address = bob.listen()
    num_rounds = 200

    def held() -> tuple[int, int, int]:
        gc.collect()
        kept = sum(type(thing) in (Incoming, Outgoing) for thing in gc.get_objects())
        return open_files(), threading.active_count(), kept

    before = held()
    for epoch in range(1, num_rounds + 1):
        alice = TcpTransport(ALICE, TOKEN, epoch=epoch)
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
    wait_until(lambda: threading.active_count() == before[1])
    bob.disconnect([])  # lets go of links that had not yet ended at the last call
    assert held() == before
    assert bob.statistics.unread_bytes == 0
    assert bob.statistics.sent_messages == num_rounds
    bob.close()


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


def test_the_constructor_opens_nothing_and_starts_nothing():
    files, threads = open_files(), threading.active_count()
    transport = TcpTransport(ALICE, TOKEN)
    assert (open_files(), threading.active_count()) == (files, threads)
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
    assert open_files() == files
    host, port = cluster.addresses[ALICE]
    again = TcpTransport(ALICE, TOKEN, host, listen_port=port)
    assert again.listen() == (host, port)
    again.close()


def test_a_token_of_the_wrong_size_is_refused():
    with pytest.raises(ConfigError, match="3 bytes: must be 16"):
        TcpTransport(ALICE, b"abc")


def test_a_message_that_has_left_in_part_is_finished_in_the_next_epoch(sink) -> None:
    """Else the rest of its bytes would be read from the message after it."""
    alice = TcpTransport(ALICE, TOKEN)
    alice.connect({BOB: sink.getsockname()})
    alice.send(BOB, activation(0), torch.tensor(1))
    connection, _ = sink.accept()
    alice.flush(LIMIT_S)  # connected: from now on the caller's thread writes
    link = alice._outgoing[BOB]
    with link._changed:  # the writer thread cannot take over what is left
        link._queue.append(begun := half_sent(link, HUGE))
        link._queued_bytes += begun.num_bytes
    alice.advance(1)
    alice.send(BOB, activation(2), torch.tensor(7))
    expected = [(0, torch.tensor(1)), (0, HUGE), (1, torch.tensor(7))]
    skipped = HELLO_BYTES + sum(FRAME_HEADER_BYTES + t.nbytes for _, t in expected[:2])
    connection.settimeout(LIMIT_S)
    received = read_all(connection, skipped + FRAME_HEADER_BYTES)
    header = decode_frame(received[skipped:], 1 << 30)
    assert (header.epoch, header.tag) == (1, activation(2))
    alice.close()
    connection.close()


def half_sent(link, tensor: torch.Tensor):
    """As ``send`` leaves a message of which the kernel took only the beginning."""
    message = _Message(0, [HUGE_HEADER, payload_view(tensor)])
    message.written(link._socket.send(HUGE_HEADER))
    return message


def read_all(connection: socket.socket, num_bytes: int) -> bytearray:
    received = bytearray()
    while len(received) < num_bytes:
        received += connection.recv(min(1 << 20, num_bytes - len(received)))
    return received
