"""A worker's connection to the coordinator: whatever goes wrong aside ends it with a reason."""

import errno
import os
import socket
import threading
import time

import pytest

from helpers.live import wait_until
from helpers.scarce import refuse_threads
from helpers.stamps import stamps_of_both
from holdfast.cluster import WorkerId
from holdfast.errors import PeerLost
from holdfast.host import scarce
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.runtime.link.activity import Activity
from holdfast.runtime.link.control_link import ControlLink, Stopped
from holdfast.runtime.link.heartbeat_sender import HeartbeatSender
from holdfast.runtime.worker import process
from holdfast.runtime.worker.failures import worker_failed
from holdfast.runtime.worker.heartbeat import clock_told, heartbeat
from holdfast.transport.local.transport import LocalHub, LocalTransport

LIMIT_S = 30.0
ASIDE = messages.Sealed(step=3)


@pytest.fixture
def linked():
    made = []

    def make(on_aside, on_stopped=lambda: None):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            stamps, their_stamps = stamps_of_both()
            ours = Connection(socket.create_connection(listener.getsockname()), stamps)
            theirs = Connection(listener.accept()[0], their_stamps)
        transport = LocalTransport(WorkerId(0, 0), LocalHub())
        link = ControlLink(ours, transport, on_aside, on_stopped)
        link.start()
        made.append((link, theirs))
        return link, theirs

    yield make
    for link, theirs in made:
        link.close()
        theirs.close()


def broken(why: Exception):
    def raises(message):
        raise why

    return raises


@pytest.mark.parametrize("why", [ArithmeticError("one"), PeerLost("two", "0.1")])
def test_r9_an_exception_aside_ends_the_worker_with_its_reason(linked, why) -> None:
    link, theirs = linked(broken(why))
    theirs.send(ASIDE)
    with pytest.raises(Stopped, match=str(why)):
        link.next(LIMIT_S)
    with pytest.raises(Stopped, match=str(why)):
        link.check(0)
    assert link.failure is why
    assert not link.is_cut_off
    link.send(messages.Ready(worker="0.0"))  # it can still say so
    [told] = theirs.read_within(LIMIT_S)
    assert isinstance(told, messages.Ready)


def test_the_clock_is_told_while_the_worker_itself_is_busy(linked) -> None:
    answers = []
    link, theirs = linked(lambda ask: answers.append(clock_told(WorkerId(0, 0), ask)))
    before_s = time.monotonic()
    theirs.send(messages.ClockAsk(asked_s=17.25))
    wait_until(lambda: answers, "it tells its clock")
    (told,) = answers
    assert (told.worker, told.asked_s) == ("0.0", 17.25)
    assert before_s <= told.heard_s <= told.sent_s <= time.monotonic()
    link.check(0)  # it does not wait in the inbox, and ends nothing


def test_r9_the_reading_thread_outlives_what_went_wrong_aside(linked) -> None:
    stopped = threading.Event()
    _, theirs = linked(broken(ArithmeticError()), stopped.set)
    theirs.send(ASIDE)
    theirs.send(messages.Stop(reason="done"))
    assert stopped.wait(LIMIT_S)


def test_an_aside_that_finds_the_launcher_gone_cuts_the_worker_off(linked) -> None:
    link, theirs = linked(broken(PeerLost("gone", "")))
    theirs.send(ASIDE)
    with pytest.raises(Stopped):
        link.next(LIMIT_S)
    assert link.is_cut_off


def test_a_worker_that_cannot_end_is_ended(linked, monkeypatch) -> None:
    """Its own thread may be stuck in the user's code."""
    codes, ended = [], threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(process, "END_LIMIT_S", 0.01)
    _, theirs = linked(lambda message: None, process.end_soon)
    theirs.send(messages.Stop(reason="done"))
    assert ended.wait(LIMIT_S)
    assert codes == [1]


def test_r9_a_heart_whose_worker_gets_another_stage_goes_on_beating() -> None:
    class Training:
        ledger = type("Ledger", (), {"step": 2, "attempt": 0, "num_done": 1})
        activity = Activity()
        saves = type("Saves", (), {"saver": type("Saver", (), {"is_busy": False})})

    held = iter([Training()])
    beats, heart = [], HeartbeatSender(lambda beat: beats.append(beat))
    heart.start(0.01, lambda: heartbeat(WorkerId(0, 0), 1, next(held, None)))
    deadline_s = time.monotonic() + LIMIT_S
    while len(beats) < 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    heart.stop()
    assert [beat.step for beat in beats[:3]] == [2, 0, 0]


def test_a_worker_without_a_thread_to_hear_or_to_beat_waits_for_one(linked, monkeypatch) -> None:
    monkeypatch.setattr(scarce, "PAUSES_S", (0.0, 0.0))
    deaf = refuse_threads(monkeypatch, "control", 2)
    link, theirs = linked(lambda message: None)
    theirs.send(messages.Halt(epoch=3))
    assert link.next(LIMIT_S) == messages.Halt(epoch=3)
    silent = refuse_threads(monkeypatch, "heartbeats", 2)
    beaten = threading.Event()
    heart = HeartbeatSender(lambda message: beaten.set())
    heart.start(0.001, lambda: messages.Ready(worker="0.0"))
    assert beaten.wait(LIMIT_S)
    heart.stop()
    assert (deaf, silent) == (["control"] * 2, ["heartbeats"] * 2)


@pytest.mark.parametrize(
    ("why", "is_scarce"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (MemoryError(), True),
        (OSError(), False),
    ],
)
def test_a_worker_that_ends_says_whether_its_machine_is_out_of_something(why, is_scarce) -> None:
    failed = worker_failed(WorkerId(0, 0), why)
    assert (failed.lost, failed.scarce) == ("", is_scarce)
