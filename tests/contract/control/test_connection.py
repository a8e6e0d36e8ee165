"""A control connection: whole messages out of any pieces, and an end that is noticed."""

import socket
from collections.abc import Iterator

import pytest

from helpers.harness.transport_harness import LIMIT_S, Background
from helpers.ports import held_port
from helpers.stamps import stamps_of_both
from holdfast.auth.handshake import AGENT
from holdfast.config import RunConfig
from holdfast.errors import HoldfastError, PeerLost, ProtocolError
from holdfast.protocol.codec import encode
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.messages import Halt, Message, Ready, StartWorkers, Stop
from holdfast.protocol.spec import Access

MESSAGES: list[Message] = [
    Ready(worker="0.1"),
    Stop(reason="läufe/ä"),
    Halt(epoch=3),
    StartWorkers(
        workers=["0.0"] * 20_000,
        job="/" + "j" * 3000,
        job_sha256="5a" * 32,
        run_dir="/runs/x",
        resumed="",
        config=RunConfig(),
    ),
    Stop(reason=""),
]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Connection]]:
    """A bare socket and the connection at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        bare = socket.create_connection(listener.getsockname())
        connection = Connection(listener.accept()[0], stamps_of_both()[1])
    yield bare, connection
    bare.close()
    connection.close()


def wire_form(messages: list[Message]) -> bytes:
    stamps = stamps_of_both()[0]
    return b"".join(stamps.stamped(encode(message)) for message in messages)


def read(connection: Connection, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += connection.read()
    return found


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
def test_messages_chopped_anywhere_arrive_whole_and_in_order(ends, size):
    bare, connection = ends
    small = [message for message in MESSAGES if not isinstance(message, StartWorkers)] * 3
    given = small if size < 100 else MESSAGES
    data = wire_form(given)
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send() -> None:
        for start in range(0, len(data), size):
            bare.sendall(data[start : start + size])

    sending = Background(send)
    assert read(connection, len(given)) == given
    sending.result()


def test_what_one_side_sends_the_other_reads(ends):
    bare, connection = ends
    other = Connection(bare, stamps_of_both()[0])
    for message in MESSAGES:
        sending = Background(other.send, message)
        assert read(connection, 1) == [message]
        sending.result()


def test_half_a_message_is_no_message_yet(ends):
    bare, connection = ends
    data = wire_form([Ready(worker="0.1")])
    bare.sendall(data[:-1])
    assert connection.read() == []
    bare.sendall(data[-1:])
    assert connection.read() == [Ready(worker="0.1")]


@pytest.mark.parametrize("left", [b"", wire_form(MESSAGES[:1])[:-1]], ids=["clean", "half"])
def test_a_peer_that_closes_is_lost(ends, left):
    bare, connection = ends
    bare.sendall(left)
    bare.close()
    with pytest.raises(PeerLost, match="closed by the other side"):
        read(connection, 1)


def test_what_a_peer_sent_before_it_closed_is_still_read(ends):
    bare, connection = ends
    bare.sendall(wire_form(MESSAGES))
    bare.close()
    assert read(connection, len(MESSAGES)) == MESSAGES
    with pytest.raises(PeerLost):
        connection.read()


def test_sending_to_a_peer_that_is_gone_ends_with_peer_lost(ends):
    bare, connection = ends
    bare.close()

    def send_often() -> None:
        while True:  # the kernel takes some before it knows
            connection.send(MESSAGES[2])

    with pytest.raises(PeerLost, match="broke while sending"):
        send_often()


def test_shutdown_ends_the_blocked_read_of_another_thread(ends):
    _, connection = ends
    reading = Background(connection.read)
    connection.shutdown()
    connection.shutdown()  # repeatable
    with pytest.raises(PeerLost):
        reading.result()


def test_garbage_is_a_protocol_error_and_not_a_lost_peer(ends):
    bare, connection = ends
    bare.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ProtocolError):
        read(connection, 1)


def test_a_launcher_that_is_not_there_is_named():
    host, port = "127.0.0.1", held_port()
    with pytest.raises(HoldfastError, match=f"cannot reach the launcher at {host}:{port}"):
        connect(Access(host, port, bytes(32), 1), AGENT, "", LIMIT_S)


@pytest.mark.parametrize(("source", "is_within"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_whoever_calls_from_the_address_that_it_calls_is_on_this_machine(source, is_within) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, source_address=(source, 0)):
            connection = Connection(listener.accept()[0], stamps_of_both()[1])
            assert connection.is_within_machine == is_within
            connection.close()
            assert not connection.is_within_machine
