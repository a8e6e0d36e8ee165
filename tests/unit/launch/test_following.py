"""A cluster beside a run: who cannot come is told, and too few are a reason to give up."""

import queue
from pathlib import Path

import pytest

from helpers.live import wait_until
from holdfast.launch.clusters import MachineEnded
from holdfast.launch.following import followed

TICKET = Path("ticket")


class FakeCluster:
    def __init__(self, num_asked: int) -> None:
        self.num_asked, self.did = num_asked, []
        self.ends: queue.Queue[MachineEnded] = queue.Queue()

    def start(self, ticket: Path, machines: int) -> int:
        self.did.append(f"start {ticket} {machines}")
        return self.num_asked

    def poll(self) -> list[MachineEnded]:
        found = []
        while not self.ends.empty():
            found.append(self.ends.get())
        return found

    def stop(self) -> None:
        self.did.append("stop")


def heard(cluster, *ends, machines=3, needed=2):
    """What was complained of, and why it was given up, when all ends were polled."""
    complaints, reasons = [], []
    for end in ends:
        cluster.ends.put(end)
    with followed(
        cluster,
        TICKET,
        machines=machines,
        needed=needed,
        complain=complaints.append,
        give_up=reasons.append,
    ):
        wait_until(lambda: len(complaints) + len(reasons) == len(ends), "all ends", 10)
    return complaints, reasons


def never_came(machine):
    return MachineEnded(machine, "no key", was_up=False)


def test_a_machine_that_is_not_needed_is_only_complained_of():
    cluster = FakeCluster(3)
    assert heard(cluster, never_came("a")) == (["a: no key"], [])
    assert cluster.did == ["start ticket 3", "stop"]


def test_too_few_are_given_up_once_with_all_reasons():
    complaints, reasons = heard(FakeCluster(3), *map(never_came, "abc"))
    assert complaints == ["a: no key", "c: no key"]
    assert reasons == ["a: no key; b: no key"]


def test_those_that_were_there_are_a_matter_of_the_run():
    ends = [MachineEnded(name, "its agent ended", was_up=True) for name in "abc"]
    assert heard(FakeCluster(3), *ends)[1] == []


def test_the_same_machine_does_not_count_twice():
    other = MachineEnded("a", "no route", was_up=False)
    assert heard(FakeCluster(3), never_came("a"), other)[1] == []


def test_it_is_stopped_also_if_the_run_fails():
    cluster = FakeCluster(1)
    words = {"machines": 1, "needed": 1, "complain": print, "give_up": print}
    with pytest.raises(ZeroDivisionError), followed(cluster, TICKET, **words):
        raise ZeroDivisionError
    assert cluster.did[-1] == "stop"
