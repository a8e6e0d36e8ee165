"""A relay that has passed on a handshake can close a connection; it cannot say a word on it."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from helpers.harness.transport_harness import LIMIT_S, Background
from helpers.relay import pass_on_handshake
from holdfast.auth.handshake import COORDINATOR, WORKER_ROLE, Identity, answer, call
from holdfast.auth.stamps import STAMP_BYTES
from holdfast.errors import ProtocolError
from holdfast.protocol.codec import encode
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import Halt, Heartbeat, Message, Stop

SECRET = bytes(range(32))
ME, RUN = Identity(WORKER_ROLE, "1.0", 3), Identity(COORDINATOR, "", 3)
FIRST, SECOND, THIRD = (Halt(epoch=epoch) for epoch in (1, 2, 3))
FORGED = encode(Stop(reason="made up")) + bytes(STAMP_BYTES)


@dataclass
class Relayed:
    """A worker and its launcher, and the relay's sockets to them."""

    worker: Connection
    launcher: Connection
    to_worker: socket.socket
    to_launcher: socket.socket

    def intercepted(self, message: Message) -> bytes:
        """What the launcher says, on its way to the worker."""
        self.launcher.send(message)
        size = len(encode(message)) + STAMP_BYTES
        data = self.to_launcher.recv(size, socket.MSG_WAITALL)
        assert len(data) == size
        return data

    def worker_hears(self, data: bytes) -> list[Message]:
        self.to_worker.sendall(data)
        return self.worker.read_within(LIMIT_S)


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    sockets = [*socket_pair(), *socket_pair()]
    worker, to_worker, to_launcher, launcher = sockets
    calling = Background(call, worker, SECRET, ME, COORDINATOR, LIMIT_S)
    answering = Background(answer, launcher, SECRET, RUN, LIMIT_S)
    pass_on_handshake(to_worker, to_launcher)
    (found, stamps), (caller, their_stamps) = calling.result(), answering.result()
    assert (found, caller) == (RUN, ME)  # so far, nobody notices
    yield Relayed(
        Connection(worker, stamps), Connection(launcher, their_stamps), to_worker, to_launcher
    )
    for sock in sockets:
        sock.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), timeout=LIMIT_S)
        return one, listener.accept()[0]


def test_s1_what_a_relay_puts_in_is_refused_and_not_acted_upon(relayed):
    assert relayed.worker_hears(relayed.intercepted(FIRST)) == [FIRST]
    with pytest.raises(ProtocolError, match="wrong stamp"):
        relayed.worker_hears(FORGED)


def test_s1_what_a_relay_puts_in_first_is_refused(relayed):
    with pytest.raises(ProtocolError, match="wrong stamp"):
        relayed.worker_hears(FORGED)


@pytest.mark.parametrize("how", ["repeated", "moved", "left out", "changed", "reflected"])
def test_s1_true_messages_are_refused_anywhere_but_in_their_place(relayed, how):
    first, second, third = map(relayed.intercepted, (FIRST, SECOND, THIRD))
    assert relayed.worker_hears(first) == [FIRST]
    if how == "reflected":
        relayed.worker.send(SECOND)
        second = relayed.to_worker.recv(len(second), socket.MSG_WAITALL)
    wrong = {
        "repeated": first,
        "moved": third + second,
        "left out": third,
        "changed": second.replace(b'"epoch":2', b'"epoch":9'),
        "reflected": second,
    }[how]
    assert how == "reflected" or wrong != second
    with pytest.raises(ProtocolError, match="wrong stamp"):
        relayed.worker_hears(wrong)


def test_s1_the_launcher_takes_no_word_from_a_relay_either(relayed):
    beat = encode(
        Heartbeat(
            worker="1.0",
            epoch=1,
            step=1,
            attempt=0,
            done=3,
            operation="F",
            number=7,
            microbatch=2,
            busy_s=0.1,
            longest={},
        )
    )
    relayed.to_launcher.sendall(beat + bytes(STAMP_BYTES))
    with pytest.raises(ProtocolError, match="wrong stamp"):
        relayed.launcher.read_within(LIMIT_S)
