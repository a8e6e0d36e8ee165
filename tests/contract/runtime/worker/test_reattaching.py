"""A worker whose coordinator is gone finds another one, and tells it what it may not know."""

import contextlib
import socket
import threading

import pytest

from helpers.harness.coordinator_world import hello, report
from holdfast.auth.handshake import COORDINATOR, JOINER, WORKER_ROLE, Identity, answer
from holdfast.cluster import WorkerId
from holdfast.errors import HandshakeBroken
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.spec import ADDRESS_FILE, Access
from holdfast.protocol.successors import Successors
from holdfast.runtime.link.control_link import ControlLink, Stopped
from holdfast.runtime.link.retained import MOST_OTHERS, MOST_REPORTS, Retained
from holdfast.transport.local.transport import LocalHub, LocalTransport

LIMIT_S = 30.0
SECRET = bytes(range(32))
ASSIGN = messages.Assign(
    stage=0,
    cut=[1],
    checkpoint="",
    first_step=0,
    beat_s=1.0,
    wait_s=9.0,
    faults=[],
    part="stage-0",
    log=None,
)


class Door:
    """A coordinator of some generation; whoever only asks who it is gets its answer."""

    def __init__(self, generation: int, port: int = 0) -> None:
        self._me = Identity(COORDINATOR, "", generation)
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(LIMIT_S)
        self.port = self._listener.getsockname()[1]
        self._open: list[Connection] = []

    def let_in(self) -> Connection:
        while True:
            sock = self._listener.accept()[0]
            try:
                found, stamps = answer(sock, SECRET, self._me, LIMIT_S)
            except HandshakeBroken:  # it asks again if we are slow
                sock.close()
                continue
            if found.role == WORKER_ROLE:
                self._open.append(Connection(sock, stamps))
                return self._open[-1]
            assert (found.role, found.generation) == (JOINER, 0)
            sock.close()

    def answer_all(self) -> None:
        """Until it is closed; nobody comes in."""
        with contextlib.suppress(OSError):
            self.let_in()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()


@pytest.fixture
def linked(tmp_path):
    """A link to a coordinator of generation 1, its other side, and where that one listens."""
    door = Door(1)
    access = Access("127.0.0.1", door.port, SECRET, 1)
    made = []

    def make(limit_s: float = LIMIT_S):
        theirs = []
        accepting = threading.Thread(target=lambda: theirs.append(door.let_in()))
        accepting.start()
        ours, _ = connect(access, WORKER_ROLE, "0.0", LIMIT_S)
        accepting.join()
        successors = Successors(access, WORKER_ROLE, "0.0", str(tmp_path), limit_s, LIMIT_S)
        transport = LocalTransport(WorkerId(0, 0), LocalHub())
        link = ControlLink(ours, transport, lambda message: None, successors=successors)
        link.start()
        made.append(link)
        return link, theirs[0], door

    yield make
    for link in made:
        link.close()
    door.close()


def test_it_goes_over_to_a_coordinator_of_a_higher_generation_with_all_that_is_unknown(linked):
    link, theirs, door = linked()
    link.send(hello("0.0"))
    theirs.send(ASSIGN)
    assert link.next(LIMIT_S) == ASSIGN
    for step in range(3):
        link.send(report("0.0", step))
    theirs.send(messages.StillHere(next_step=1, heard=3))
    theirs.send(messages.Halt(epoch=4))
    assert link.next(LIMIT_S) == messages.Halt(epoch=4)
    door.close()
    theirs.close()
    link.send(report("0.0", 3))  # nobody hears it
    later = Door(2, door.port)
    there = later.let_in()
    told = there.read_within(LIMIT_S)
    while len(told) < 4:
        told += there.read_within(LIMIT_S)
    assert told[0] == messages.Reattach(
        worker="0.0", pid=hello("0.0").pid, host="h", port=1, epoch=4, building=1
    )
    assert [one.step for one in told[1:]] == [1, 2, 3]
    link.send(messages.Ready(worker="0.0"))
    assert there.read_within(LIMIT_S) == [messages.Ready(worker="0.0")]
    there.send(messages.Begone(reason="its place is gone"))
    with pytest.raises(Stopped):
        link.next(LIMIT_S)
    assert link.is_cut_off
    later.close()


def test_one_that_its_coordinator_hung_up_on_is_given_up_and_looks_for_nobody(linked):
    link, theirs, door = linked()
    probed = threading.Thread(target=door.answer_all)
    probed.start()
    theirs.close()
    with pytest.raises(Stopped, match="given this process up"):
        link.next(LIMIT_S)
    assert link.is_cut_off
    door.close()
    probed.join()


def test_when_nobody_takes_over_in_time_it_ends(linked):
    link, theirs, door = linked(limit_s=0.5)
    door.close()
    theirs.close()
    with pytest.raises(Stopped, match="no coordinator has taken over"):
        link.next(LIMIT_S)
    assert link.is_cut_off


def test_another_address_is_found_in_the_run_directory(linked, tmp_path):
    link, theirs, door = linked()
    link.send(hello("0.0"))
    later = Door(2)
    (tmp_path / ADDRESS_FILE).write_text(f"127.0.0.1:{later.port}\n")
    door.close()
    theirs.close()
    [told] = later.let_in().read_within(LIMIT_S)
    assert isinstance(told, messages.Reattach)
    later.close()


def test_what_was_told_of_steps_that_are_run_once_more_is_void():
    kept = Retained()
    for step in (8, 9, 10):
        kept.note(report("0.0", step))
        kept.passed_on(step)
    kept.note(report("0.0", 9))
    assert [one.step for one in kept.all()] == [8, 9]
    assert [one.step for one in kept.take_unsure()] == [8]


def test_who_comes_to_a_standby_knows_where_the_run_was():
    """Where one has died another may stand by later."""
    first = Access("a", 1, SECRET, 0, more=("b:2", "c:3"))
    assert [str(place) for place in first.places()] == ["a:1", "b:2", "c:3"]
    there = first.places()[1]
    assert {str(place) for place in there.places()} == {"a:1", "b:2", "c:3"}


def test_what_is_kept_is_bounded_and_without_times_of_operations():
    kept = Retained()
    for step in range(MOST_REPORTS + 5):
        kept.note(report("0.0", step))
    for step in range(MOST_OTHERS + 5):
        kept.note(messages.PartFailed(worker="0.0", step=step, reason="full"))
    kept.note(messages.Ready(worker="0.0"))
    assert len(kept.all()) == MOST_REPORTS + MOST_OTHERS
    kept.acknowledged(MOST_REPORTS, 0)
    assert [one.step for one in kept.all()[MOST_OTHERS:]] == [MOST_REPORTS + n for n in range(5)]
