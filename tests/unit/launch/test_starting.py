"""A cluster beside a run: who cannot come is told, and too few are a reason to end."""

import queue
from pathlib import Path

from helpers.live import wait_until
from holdfast.launch import starting
from holdfast.launch.clusters import MachineEnded
from holdfast.launch.starting import ClusterAgents

TICKET = Path("ticket")


class FakeCluster:
    def __init__(self, num_asked: int) -> None:
        self.num_asked, self.did = num_asked, []
        self.ends: queue.Queue[MachineEnded] = queue.Queue()
        self.num_polled = 0
        self.fails: list[Exception] = []

    def start(self, ticket: Path, machines: int) -> int:
        self.did.append(f"start {ticket} {machines}")
        return self.num_asked

    def poll(self) -> list[MachineEnded]:
        if self.fails:
            raise self.fails.pop(0)
        found = []
        while not self.ends.empty():
            found.append(self.ends.get())
        self.num_polled += 1
        return found

    def stop(self) -> None:
        self.did.append("stop")


def heard(cluster, *ends):
    """What was complained of, and why it ended; 2 of 3 machines are needed."""
    complaints = []
    agents = ClusterAgents(cluster, TICKET, machines=3, needed=2, complain=complaints.append)
    assert agents.ended() is None
    for end in ends:
        cluster.ends.put(end)
    for _ in range(2):  # workers that come later
        agents.start(None, None)
    wait_until(lambda: cluster.num_polled > 1, "two polls", 60)
    agents.stop()
    return complaints, agents.ended()


def never_came(machine):
    return MachineEnded(machine, "no key", was_up=False)


def was_there(machine):
    return MachineEnded(machine, "its agent ended", was_up=True)


def test_a_machine_that_is_not_needed_is_only_complained_of():
    cluster = FakeCluster(3)
    assert heard(cluster, never_came("a")) == (["a: no key"], None)
    assert cluster.did == ["start ticket 3", "stop"]


def test_too_few_are_a_reason_to_end_that_names_each():
    assert heard(FakeCluster(3), *map(never_came, "ab")) == (["a: no key"], "a: no key; b: no key")


def test_those_that_were_there_are_a_matter_of_the_run():
    assert heard(FakeCluster(3), *map(was_there, "abc"))[1] is None


def test_the_same_machine_does_not_count_twice():
    other = MachineEnded("a", "no route", was_up=False)
    assert heard(FakeCluster(3), never_came("a"), other)[1] is None


def test_spares_may_all_stay_away():
    assert heard(FakeCluster(5), *map(never_came, "abc"))[1] is None


def test_a_launcher_that_has_ended_brings_nobody_any_more():
    ended = MachineEnded("srun", "all agents ended", was_up=True, is_last=True)
    assert heard(FakeCluster(3), ended) == ([], "srun: all agents ended")


def test_listening_goes_on_whatever_goes_wrong_and_is_complained_of_once():
    cluster = FakeCluster(3)
    cluster.fails = [OSError(24, "Too many open files")] * 3
    line = (
        "the machines cannot be listened to (OSError: [Errno 24] Too many open files); trying again"
    )
    assert heard(cluster, never_came("a")) == ([line, "a: no key"], None)


def test_if_nobody_can_be_heard_for_long_the_run_is_told(monkeypatch):
    monkeypatch.setattr(starting, "PAUSE_S", 0.001)
    cluster, complaints = FakeCluster(3), []
    cluster.fails = [ValueError("no such thing")] * (starting.MOST_DEAF + 1)
    agents = ClusterAgents(cluster, TICKET, machines=3, needed=2, complain=complaints.append)
    agents.start(None, None)
    wait_until(lambda: agents.ended() is not None, "the reason", 10)
    agents.stop()
    line = "the machines cannot be listened to (ValueError: no such thing)"
    assert agents.ended() == f"{line}; start the run again"
    assert complaints == [f"{line}; trying again"]


def test_one_that_was_never_started_need_not_be_stopped():
    cluster = FakeCluster(1)
    ClusterAgents(cluster, TICKET, machines=1, needed=1, complain=print).stop()
    assert cluster.did == []
