"""A link that is cut without a word is noticed; a peer that only takes its time is not."""

import socket
import struct
from collections.abc import Iterator

import pytest

from holdfast.transport.tcp import sockets
from holdfast.transport.tcp.sockets import Acknowledgements


class Clock:
    at_s = 50.0

    def __call__(self) -> float:
        return self.at_s


class Told(socket.socket):
    """What the kernel would tell of a connection."""

    again, probes = 0, 0

    def getsockopt(self, *_: int) -> bytes:  # type: ignore[override]
        return struct.pack("8B", 1, 0, self.again, self.probes, 0, 0, 0, 0)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sockets, "monotonic", made)
    return made


@pytest.fixture
def told() -> Iterator[Told]:
    with Told() as made:
        yield made


@pytest.mark.parametrize("what", ["again", "probes"])
def test_what_is_sent_again_for_too_long_without_an_answer_breaks_the_connection(clock, told, what):
    acknowledged = Acknowledgements(told, 3.0)
    setattr(told, what, 1)
    acknowledged.look()
    clock.at_s += 3.0
    acknowledged.look()
    clock.at_s += 0.1
    with pytest.raises(ConnectionError, match="nothing was acknowledged for 3 s"):
        acknowledged.look()


def test_an_answer_begins_anew(clock, told):
    acknowledged = Acknowledgements(told, 3.0)
    for _ in range(5):
        told.again = 1
        acknowledged.look()
        clock.at_s += 2.0
        told.again = 0
        acknowledged.look()
        clock.at_s += 2.0


def fill(connection: socket.socket) -> None:
    """Until nothing is taken for a while."""
    while True:
        connection.send(bytes(1 << 20))


def test_a_peer_that_does_not_read_is_not_silent():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as ours,
        listener.accept()[0],
    ):
        acknowledged = Acknowledgements(ours, 0.5)
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                fill(ours)
            acknowledged.look()
