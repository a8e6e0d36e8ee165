"""A socket that speaks TLS does what a plain one does, for threads and for selectors."""

import contextlib
import hashlib
import os
import random
import select
import selectors
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from helpers.certificates import LIMIT_S, tcp_pair, tls_key, tls_pair
from helpers.harness.transport_harness import Background
from helpers.stamps import stamps_of_both
from holdfast.auth.tls import calling, greet
from holdfast.auth.tls_socket import TlsSocket
from holdfast.errors import HandshakeBroken, HandshakeFailed, PeerLost
from holdfast.protocol.codec import encode
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import Halt, Message, Stop

HALTS: list[Message] = [Halt(epoch=number) for number in range(20)]


@pytest.fixture
def pair() -> Iterator[tuple[TlsSocket, TlsSocket]]:
    ends = tls_pair()
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def connections(pair) -> tuple[Connection, Connection]:
    one, other = pair
    ours, theirs = stamps_of_both()
    return Connection(one, ours), Connection(other, theirs)


def on_the_wire(end: TlsSocket) -> bytes:
    assert is_readable(end)
    with socket.socket(fileno=os.dup(end.fileno())) as wire:
        return wire.recv(1000, socket.MSG_PEEK)


def is_readable(end: TlsSocket | Connection) -> bool:
    return bool(select.select([end], [], [], LIMIT_S)[0])


def read(connection: Connection, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += connection.read()
    return found


def read_by_selector(connection: Connection, count: int) -> list[Message]:
    found: list[Message] = []
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while len(found) < count:
            assert selector.select(LIMIT_S), f"nothing to be seen after {len(found)} messages"
            found += connection.read()
    return found


def test_it_is_tls_1_3_and_nothing_is_readable_on_the_wire(pair):
    one, other = pair
    assert (one.version(), other.version()) == ("TLSv1.3", "TLSv1.3")
    one.sendall(b"attack at dawn")
    seen = on_the_wire(other)
    assert len(seen) > len(b"attack at dawn")
    assert b"attack" not in seen
    assert other.recv(1000) == b"attack at dawn"


def test_a_selector_sees_all_messages_of_one_record_and_of_many(connections, pair):
    """What is decrypted and not yet read is invisible to it: none may be left."""
    stamps = stamps_of_both()[0]
    pair[0].sendall(b"".join(stamps.stamped(encode(message)) for message in HALTS))
    assert read_by_selector(connections[1], len(HALTS)) == HALTS
    for message in HALTS:
        pair[0].sendall(stamps.stamped(encode(message)))
    assert read_by_selector(connections[1], len(HALTS)) == HALTS


def test_what_is_left_of_a_record_is_read_although_no_selector_sees_it(pair):
    one, other = pair
    one.sendall(b"0123456789")
    assert other.recv(4) == b"0123"
    assert not select.select([other], [], [], 0)[0]
    assert other.recv(100) == b"456789"


def test_half_a_record_is_no_message_and_nobody_waits_for_the_rest(connections, pair, monkeypatch):
    """Else one slow sender would hold up a server that was woken for it."""
    waits: list[float | None] = []
    wait = TlsSocket.wait

    def noted(self: TlsSocket, limit_s: float | None, *more: int) -> None:
        wait(self, limit_s, *more)
        waits.append(limit_s)

    taken, to_send = tcp_pair()  # what leaves the one end goes this way, to be cut
    data = ciphertext(pair[0], stamps_of_both()[0].stamped(encode(HALTS[0])), taken, to_send)
    wire = socket.socket(fileno=os.dup(pair[0].fileno()))
    monkeypatch.setattr(TlsSocket, "wait", noted)
    wire.sendall(data[:-1])
    assert is_readable(connections[1])
    assert connections[1].read() == []
    assert len(waits) == 1  # for what is there already
    wire.sendall(data[-1:])
    wire.close()
    assert read(connections[1], 1) == HALTS[:1]


def ciphertext(end: TlsSocket, data: bytes, taken: socket.socket, to_send: socket.socket) -> bytes:
    """What ``end`` would have sent: for a moment its descriptor is another one."""
    kept = os.dup(end.fileno())
    to_send.setblocking(False)
    os.dup2(to_send.fileno(), end.fileno())
    end.sendall(data)
    os.dup2(kept, end.fileno())
    os.close(kept)
    to_send.close()
    found = b""
    while more := taken.recv(1 << 16):
        found += more
    taken.close()
    return found


@pytest.mark.parametrize("size", [1, 1000, (1 << 14) - 1, 1 << 14, 3_000_001])
def test_any_number_of_bytes_arrives(pair, size):
    one, other = pair
    data = random.Random(size).randbytes(size)
    sending = Background(one.sendmsg, [data[:10], memoryview(data)[10:]])
    into = bytearray(size)
    assert other.recv_into(memoryview(into), size, socket.MSG_WAITALL) == size
    assert sending.result() == size
    assert into == data


def test_threads_send_and_read_both_ways_at_once(pair):
    """OpenSSL allows one thread at a time; so many bytes each way fill all buffers."""
    size, given = 8 << 20, random.Random(5).randbytes(8 << 20)

    def receive(end: TlsSocket) -> str:
        into = bytearray(size)
        assert end.recv_into(memoryview(into), size, socket.MSG_WAITALL) == size
        return hashlib.sha256(into).hexdigest()

    receiving = [Background(receive, end) for end in pair]
    sending = [Background(end.sendall, given) for end in pair]
    for one in sending:
        one.result()
    assert [one.result() for one in receiving] == [hashlib.sha256(given).hexdigest()] * 2


def test_messages_of_several_threads_arrive_whole(connections):
    ours, theirs = connections
    lock, each = threading.Lock(), 50

    def send(epoch: int) -> None:
        for _ in range(each):
            with lock:  # stamps are counted
                ours.send(Halt(epoch=epoch))

    def echo() -> None:
        for message in read(theirs, 4 * each):
            theirs.send(message)

    echoing, sending = Background(echo), [Background(send, epoch) for epoch in range(4)]
    back = read(ours, 4 * each)
    for one in [echoing, *sending]:
        one.result()
    assert sorted(message.epoch for message in back) == sorted(list(range(4)) * each)


def test_what_cannot_leave_at_once_goes_before_the_next(pair):
    """``send`` never waits: confirmations of tensors."""
    one, other = pair
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    num_taken, block = 0, bytes(16_000)
    with contextlib.suppress(BlockingIOError):
        while num_taken < 10_000:
            one.send(block, socket.MSG_DONTWAIT)
            num_taken += 1
    assert num_taken < 10_000
    reading = Background(read_all, other)
    one.sendall(b"end")
    one.shutdown(socket.SHUT_WR)
    found = reading.result()
    assert found.endswith(b"end")
    assert found[:-3] == num_taken * block


def read_all(end: TlsSocket) -> bytes:
    found = b""
    while True:
        try:
            more = end.recv(1 << 16)
        except BlockingIOError:
            continue
        if not more:
            return found
        found += more


def test_a_peer_that_takes_nothing_is_given_up_after_the_limit(connections, pair):
    pair[0].settimeout(0.1)
    with pytest.raises(PeerLost, match="broke while sending: timed out"):
        connections[0].send(Stop(reason=random.Random(1).randbytes(1 << 24).hex()))


def test_shutdown_ends_the_blocked_read_of_another_thread(connections):
    reading = Background(connections[0].read)
    connections[0].shutdown()
    connections[0].shutdown()  # repeatable
    with pytest.raises(PeerLost):
        reading.result()


def test_after_a_shutdown_nothing_leaves_in_plain_text(pair):
    one, other = pair
    one.shutdown(socket.SHUT_RD)
    one.sendall(b"still a secret")
    assert b"secret" not in on_the_wire(other)


def test_what_a_peer_sent_before_it_closed_is_still_read(connections):
    ours, theirs = connections
    for message in HALTS:
        ours.send(message)
    ours.close()
    assert read(theirs, len(HALTS)) == HALTS
    with pytest.raises(PeerLost, match="closed by the other side"):
        theirs.read()


def test_what_a_peer_sent_is_read_also_after_a_send_to_it_has_failed(connections):
    """Its last words; few, as its kernel forgets those that are not on their way yet."""
    ours, theirs = connections
    for message in HALTS[:5]:
        ours.send(message)
    ours.close()

    def send_often() -> None:
        while True:  # the kernel takes some before it knows
            theirs.send(HALTS[0])

    with pytest.raises(PeerLost, match="broke while sending"):
        send_often()
    assert read(theirs, 5) == HALTS[:5]


def test_a_changed_byte_ends_the_connection(pair):
    one, other = pair
    with socket.socket(fileno=os.dup(one.fileno())) as wire:
        wire.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(ssl.SSLError):
        other.recv(100)


# --- who calls ---


def greeted(answering, certificate: str = "", limit_s: float = LIMIT_S) -> object:
    """``answering``: what the other side does with its socket."""
    caller, called = tcp_pair()
    background = Background(answering, called)
    made = calling(caller)
    try:
        return greet(made, certificate, limit_s)
    finally:
        made.close()
        called.close()
        background.result()


def test_somebody_who_is_silent_is_waited_for_until_the_limit():
    tls_key()
    with pytest.raises(HandshakeBroken, match="timed out"):
        greeted(lambda sock: None, limit_s=0.05)


def test_somebody_who_hangs_up_is_called_again():
    def hang_up(sock: socket.socket) -> None:
        sock.recv(1 << 14)
        sock.shutdown(socket.SHUT_RDWR)

    with pytest.raises(HandshakeBroken, match="broke before TLS was agreed on"):
        greeted(hang_up)


def test_somebody_who_speaks_no_tls_is_not_called_again():
    with pytest.raises(HandshakeFailed, match="if the run there is without TLS, leave out the"):
        greeted(lambda sock: sock.sendall(b"220 mail.example ESMTP\r\n"))
