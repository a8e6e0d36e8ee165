"""A worker whose agent gathers: it counts on the agent while that answers, and else on itself."""

import socket
import threading
from collections.abc import Iterator

import pytest

from helpers.live import wait_until
from helpers.stamps import stamps_of_both
from holdfast.cluster import WorkerId
from holdfast.errors import PeerLost
from holdfast.protocol import messages
from holdfast.protocol.connection import Connection
from holdfast.protocol.gathering import Word, beats_of, heartbeat_of, reports_of
from holdfast.protocol.relay import relay_end, relay_pair
from holdfast.runtime.link import control_link
from holdfast.runtime.link.control_link import ControlLink
from holdfast.transport.local.transport import LocalHub, LocalTransport

LIMIT_S = 30.0
READY = messages.Ready(worker="0.0")
CLOCK = messages.ClockTold(worker="0.0", asked_s=1.0, heard_s=1.0, sent_s=1.0)


def beat(step: int = 0) -> messages.Heartbeat:
    return messages.Heartbeat(
        worker="0.0", epoch=1, step=step, attempt=0, done=0, operation="", number=-1,
        microbatch=-1, busy_s=0.0, longest={},
    )  # fmt: skip


def report(step: int) -> messages.StepReport:
    return messages.StepReport(
        worker="0.0", step=step, losses=[], num_tokens=0, norm=1.0, clipped=False, skipped=False,
        taken_back=False, nonfinite=False, operations=[], transfers=[],
    )  # fmt: skip


class Linked:
    """A worker's link; its coordinator and its agent are scripted."""

    def __init__(self, successors: object = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            stamps, their_stamps = stamps_of_both()
            ours = Connection(socket.create_connection(listener.getsockname()), stamps)
            self.coordinator = Connection(listener.accept()[0], their_stamps)
        mine, theirs = relay_pair()
        self.agent = relay_end(mine)
        transport = LocalTransport(WorkerId(0, 0), LocalHub())
        self.aside: list[messages.Message] = []
        self.link = ControlLink(
            ours,
            transport,
            self.aside.append,
            successors=successors,  # type: ignore[arg-type]
            relay=theirs,
        )
        self.link.start()

    def by_agent(self, number: int) -> list[Word]:
        found: list[Word] = []
        while len(found) < number:
            heard = self.agent.read_within(LIMIT_S)
            assert heard, "the agent is told nothing"
            for one in heard:
                beats = beats_of(one)
                found += [Word(heartbeat_of(beat), 0, beat.row.epoch) for beat in beats]
                found += reports_of(one)
        return found

    def by_itself(self, number: int) -> list[messages.Message]:
        found: list[messages.Message] = []
        while len(found) < number:
            heard = self.coordinator.read_within(LIMIT_S)
            assert heard, "the coordinator is told nothing"
            found += heard
        return found

    def answered(self) -> None:
        """The agent is counted on."""
        self.link.send(beat())
        self.by_agent(1)
        assert self.by_itself(1) == [beat()]
        self.agent.send(messages.PassedOn())

    def close(self) -> None:
        self.link.close()
        self.coordinator.close()
        self.agent.close()


@pytest.fixture
def linked() -> Iterator[Linked]:
    made = Linked()
    yield made
    made.close()


def test_until_the_agent_has_answered_the_worker_speaks_for_itself_too(linked) -> None:
    linked.link.send(report(0))
    linked.link.send(beat())
    assert linked.by_itself(2) == [report(0), beat()]
    assert [word.message for word in linked.by_agent(1)] == [beat()]


def test_then_heartbeats_and_reports_go_by_the_agent_and_say_what_came_before_them(linked) -> None:
    linked.answered()
    linked.link.send(beat(1))
    linked.link.send(CLOCK)
    linked.link.send(report(1))
    found = linked.by_agent(2)
    assert [word.message for word in found] == [beat(1), report(1)]
    assert found[1].said == 2  # the heartbeat before the agent had answered, and the clock
    assert linked.by_itself(1) == [CLOCK]


def test_a_silent_agent_is_not_counted_on_and_reports_it_may_have_lost_are_told_again(
    linked,
) -> None:
    linked.answered()
    linked.link.send(beat(1))
    linked.link.send(report(1))
    for step in (2, 3):
        linked.link.send(beat(step))
    linked.link.send(beat(4))  # the fourth without an answer
    assert linked.by_itself(2) == [report(1), beat(4)]
    linked.link.send(report(2))
    assert linked.by_itself(1) == [report(2)]
    assert len(linked.by_agent(5)) == 5  # it is told in case that it wakes up
    linked.agent.send(messages.PassedOn())
    linked.link.send(beat(5))
    linked.link.send(report(3))
    assert [word.message for word in linked.by_agent(2)] == [beat(5), report(3)]


def test_an_agent_that_hangs_up_is_not_missed(linked) -> None:
    linked.answered()
    linked.link.send(beat(1))
    linked.link.send(report(1))
    linked.agent.close()
    linked.link.send(beat(2))
    assert linked.by_itself(2) == [report(1), beat(2)]


def test_reports_given_to_the_agent_are_told_again_before_what_must_come_after_them(linked) -> None:
    linked.answered()
    linked.link.send(beat(1))
    linked.link.send(report(1))
    linked.link.send(report(2))
    linked.link.send(READY)
    assert linked.by_itself(3) == [report(1), report(2), READY]
    linked.link.send(READY)  # once is enough
    assert linked.by_itself(1) == [READY]


def test_what_has_come_is_not_told_again(linked) -> None:
    linked.answered()
    linked.link.send(beat(1))
    linked.link.send(report(1))
    linked.link.send(report(2))
    linked.coordinator.send(messages.StillHere(next_step=0, heard=2))
    linked.coordinator.send(messages.Halt(epoch=1))
    linked.link.next(LIMIT_S)  # so the sign has been heard, too
    linked.link.send(READY)
    assert linked.by_itself(2) == [report(2), READY]


def renewals(heard: int, **changes) -> messages.Renewals:
    values = {"number": 4, "for_s": 2.0, "epoch": 0, "next_step": 0, "leads": True}
    values["answers"] = {"0.0": 3}
    return messages.Renewals(heard=heard, **(values | changes))


def test_what_the_agent_passes_on_renews_the_lease_and_says_what_has_come(linked) -> None:
    linked.answered()
    linked.link.send(beat(1))
    linked.link.send(report(1))
    linked.link.send(report(2))
    linked.agent.send(renewals(2))
    linked.link.send(beat(2))
    assert linked.aside == [messages.Renewal(number=4, answers=3, for_s=2.0)]
    linked.link.send(READY)
    assert linked.by_itself(2) == [report(2), READY]


class NobodyElse:
    """Looked for when the coordinator gives no sign."""

    limit_s = LIMIT_S

    def __init__(self) -> None:
        self.looked = threading.Event()
        self.elsewhere: list[bool] = []

    def look(self, *, is_alive: bool, elsewhere: bool) -> None:
        assert is_alive
        self.elsewhere.append(elsewhere)
        self.looked.set()


class Clock:
    """The module ``time`` of a link: tests move it, so no thread of theirs can be too slow."""

    now_s = 1000.0

    def __init__(self) -> None:
        self.num_looks = 0  # of the thread that reads

    def monotonic(self) -> float:
        self.num_looks += threading.current_thread().name == "control"
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(control_link, "time", made)
    monkeypatch.setattr(control_link, "SILENCE_S", 1.5)
    return made


def give_a_sign(linked: Linked) -> None:
    """And wait until it is taken, with whatever was said after it."""
    linked.coordinator.send(messages.StillHere(next_step=0, heard=0))
    linked.coordinator.send(messages.Halt(epoch=0))
    assert isinstance(linked.link.next(LIMIT_S), messages.Halt)


def test_it_is_a_sign_that_the_coordinator_lives(clock) -> None:
    others = NobodyElse()
    linked = Linked(others)
    try:
        give_a_sign(linked)
        for _ in range(4):
            clock.now_s += 1.0
            linked.agent.send(renewals(0))
            linked.link.send(beat())
        seen = clock.num_looks
        wait_until(lambda: clock.num_looks > seen + 1, "a look at the clock")
        assert not others.looked.is_set()
        clock.now_s += 2.0
        assert others.looked.wait(LIMIT_S), "without signs another one is looked for"
    finally:
        linked.close()


def test_one_that_does_not_know_whether_it_leads_is_looked_past(clock) -> None:
    """Leases are renewed as ever: it may be the only one."""
    others = NobodyElse()
    linked = Linked(others)
    renewed = messages.Renewal(number=4, answers=3, for_s=2.0)
    by_itself = messages.Renewal(number=5, answers=3, for_s=2.0)
    try:
        give_a_sign(linked)
        for number in range(1, 6):
            clock.now_s += 0.5
            linked.agent.send(renewals(0, leads=False))
            linked.link.send(beat())
            linked.coordinator.send(by_itself)
            wait_until(
                lambda num=number: linked.aside.count(by_itself) == num, "its own words to be heard"
            )
        assert others.looked.wait(LIMIT_S), "nobody is looked for"
        assert others.elsewhere[0], "one that talks is not asked who it is"
        assert renewed in linked.aside
    finally:
        linked.close()


def test_it_is_no_answer_of_the_agent(linked) -> None:
    linked.answered()
    for step in range(1, 4):
        linked.agent.send(renewals(0))
        linked.link.send(beat(step))
    linked.agent.send(renewals(0))
    linked.link.send(beat(4))  # the fourth that it has not passed on
    assert linked.by_itself(1) == [beat(4)]


def test_what_was_on_record_before_all_went_back_is_run_once_more(linked) -> None:
    linked.answered()
    linked.link.send(beat(1))
    linked.link.send(report(1))
    linked.agent.send(renewals(2, epoch=5))
    linked.link.send(beat(2))
    linked.link.send(READY)
    assert linked.by_itself(2) == [report(1), READY]


def test_from_a_halt_on_reports_go_by_the_workers_own_connection(linked) -> None:
    linked.answered()
    linked.link.send(beat(1))
    linked.coordinator.send(messages.Halt(epoch=2))
    assert isinstance(linked.link.next(LIMIT_S), messages.Halt)
    linked.link.send(report(1))
    assert linked.by_itself(1) == [report(1)]


def test_the_line_is_closed_with_the_link(linked) -> None:
    linked.link.close()
    wait_until(lambda: _is_closed(linked.agent), "the agent sees the end of the line")


def _is_closed(connection: Connection) -> bool:
    try:
        connection.read_within(0.1)
    except PeerLost:
        return True
    return False
