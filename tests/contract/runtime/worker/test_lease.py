"""A worker that has lost the coordinator commits and writes nothing after its lease."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import EpochPast
from holdfast.protocol.messages import Renewal
from holdfast.runtime.link.control_link import Stopped
from holdfast.runtime.link.lease import Lease

LEASE_S = 3.0


@dataclass
class Clock:
    at_s: float = 100.0

    def __call__(self) -> float:
        return self.at_s


def leased(clock: Callable[[], float]) -> Lease:
    return Lease(is_needed=True, now=clock)


def renewal(number: int, answers: int) -> Renewal:
    return Renewal(number=number, answers=answers, for_s=LEASE_S)


def test_without_a_lease_nothing_ever_ends() -> None:
    clock = Clock()
    lease = Lease(is_needed=False, now=clock)
    clock.at_s = 1e9
    lease.wait(lambda: pytest.fail("nothing to wait for"))


def test_nobody_commits_before_the_coordinator_has_answered() -> None:
    lease = leased(Clock())
    assert not lease.is_valid
    assert lease.told() == 0
    lease.renew(renewal(1, answers=0))
    assert lease.is_valid


def test_it_counts_from_when_the_answered_heartbeat_was_sent() -> None:
    clock = Clock()
    lease = leased(clock)
    lease.told()
    clock.at_s += 2.0  # on the way
    lease.renew(renewal(1, answers=0))
    clock.at_s += 0.999
    assert lease.is_valid
    clock.at_s += 0.001
    assert not lease.is_valid


def test_of_heartbeats_that_tell_the_same_the_first_may_have_been_answered() -> None:
    clock = Clock()
    lease = leased(clock)
    lease.told()
    clock.at_s += 2.5
    assert lease.told() == 0
    lease.renew(renewal(1, answers=0))
    clock.at_s += 0.5
    assert not lease.is_valid


def test_an_answer_that_was_held_up_for_longer_than_the_lease_gives_nothing() -> None:
    clock = Clock()
    lease = leased(clock)
    lease.told()
    clock.at_s += LEASE_S
    lease.renew(renewal(1, answers=0))
    assert not lease.is_valid


def test_another_coordinator_counts_anew_and_what_the_last_one_heard_does_not_count() -> None:
    clock = Clock()
    lease = leased(clock)
    for number in range(1, 6):
        assert lease.told() == number - 1
        lease.renew(renewal(number, answers=number - 1))
        clock.at_s += 1.0
    clock.at_s += 100.0
    assert lease.told() == 5
    lease.renew(renewal(1, answers=7))  # to another worker of this name
    assert not lease.is_valid
    assert lease.told() == 1
    lease.renew(renewal(2, answers=1))
    assert lease.is_valid


@dataclass
class OneWay:
    """Messages under way, in order: each arrives after a time of its own, or never."""

    under_way: list[tuple[float, Renewal | int]] = field(default_factory=list)

    def send(self, at_s: float, message: Renewal | int) -> None:
        before_s = self.under_way[-1][0] if self.under_way else 0.0
        self.under_way.append((max(at_s, before_s), message))

    def come(self, now_s: float) -> list[Renewal | int]:
        here = [message for at_s, message in self.under_way if at_s <= now_s]
        self.under_way = [one for one in self.under_way if one[0] > now_s]
        return here


@given(
    delays=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=40),
    cut_s=st.floats(0.0, 12.0),
    drift=st.floats(0.995, 1.005),
)
def test_by_when_it_is_lost_it_has_stopped_whatever_the_network_does(delays, cut_s, drift) -> None:
    """The coordinator loses a worker that it has not heard for LEASE_S / 0.98."""
    clock, forth, back = Clock(0.0), OneWay(), OneWay()
    lease = leased(lambda: clock.at_s * drift)
    heard_s, number, answers = -math.inf, 0, -1
    for turn in range(200):
        now_s = clock.at_s = turn * 0.1
        delay_s = delays[turn % len(delays)]
        if turn % 3 == 0 and now_s < cut_s:
            forth.send(now_s + delay_s, lease.told())
        for told in forth.come(now_s):
            heard_s, answers = now_s, int(told)
        if turn % 10 == 0 and answers >= 0 and now_s < cut_s:
            number += 1
            back.send(now_s + delay_s, renewal(number, answers))
        for message in back.come(now_s):
            lease.renew(message)
        if now_s - heard_s > LEASE_S / 0.98:
            assert not lease.is_valid


def test_a_renewal_ends_the_wait() -> None:
    clock = Clock()
    lease = leased(clock)
    lease.told()
    waits = threading.Event()
    waiting = threading.Thread(target=lambda: lease.wait(waits.set))
    waiting.start()
    assert waits.wait(20)
    assert waiting.is_alive()
    lease.renew(renewal(1, answers=0))
    waiting.join(20)
    assert not waiting.is_alive()


@pytest.mark.parametrize("why", [EpochPast("over"), Stopped("the run is over")])
def test_whoever_is_to_stop_does_not_wait_for_a_lease(why) -> None:
    def check() -> None:
        raise why

    with pytest.raises(type(why)):
        leased(Clock()).wait(check)
