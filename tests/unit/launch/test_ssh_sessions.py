"""A machine over ssh that ends again and again, with a clock and an ssh of our own."""

from itertools import pairwise

import pytest

import holdfast
from holdfast.launch.clusters import MachineEnded
from holdfast.launch.orders import AgentOrder
from holdfast.launch.ssh import ssh_cluster, words
from holdfast.launch.ssh.hosts_file import SshHost

REFUSED = ["holdfast agent: a with 2 slots", "error: machine a is in the run already"]


class World:
    """``tries``: of each ssh its lines, how long it lives and its exit code."""

    def __init__(self, monkeypatch, tries):
        self.now_s, self.started_s, self.lines = 0.0, [], []
        self._tries = iter(tries)
        monkeypatch.setattr(ssh_cluster.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(ssh_cluster, "Program", self._program)
        host = SshHost(address="a", name="a")
        self.session = ssh_cluster.SshSession(host, None, self.lines.append)
        self.session.start(AgentOrder("{}"))

    def _program(self, *_):
        self.started_s.append(self.now_s)
        return Ssh(self, *next(self._tries))

    def told(self, until_s):
        found = []
        while self.now_s < until_s:
            found.append(self.session.poll())
            self.now_s += 1.0
        return [each for each in found if each is not None]


class Ssh:
    def __init__(self, world, lines, lives_s, code):
        self._world, self._ends_s, self._code = world, world.now_s + lives_s, code
        up = [f"{words.MARK} {holdfast.__version__}"] if lines else []
        self._lines = [*up, *lines]

    def code(self):
        return self._code if self._world.now_s >= self._ends_s else None

    def lines(self):
        lines, self._lines = self._lines, []
        return lines

    def errors(self):
        return []

    def end(self, _):
        pass


def test_an_agent_that_is_refused_is_told_of_once_and_tried_ever_less_often(monkeypatch):
    """The one before it outlived its connection."""
    broken = (["holdfast agent: a with 2 slots"], 500.0, words.SSH_FAILED)
    world = World(monkeypatch, [broken, *[(REFUSED, 5.0, 2)] * 20])
    told = world.told(2500.0)
    assert [ended.reason for ended in told] == [
        "the connection of ssh ended",
        "its agent ended with code 2",
    ]
    assert world.lines == ["a | holdfast agent: a with 2 slots", *(f"a | {x}" for x in REFUSED)]
    pauses = [later - start for start, later in pairwise(world.started_s[1:])]
    assert pauses[:6] == pytest.approx([26, 46, 86, 166, 326, 326], abs=2)


def test_one_that_stays_again_begins_anew(monkeypatch):
    tries = [(REFUSED, 5.0, 2)] * 3 + [(["up"], 1000.0, 3)] + [(REFUSED, 5.0, 2)] * 3
    world = World(monkeypatch, tries)
    told = world.told(1260.0)
    reasons = ["its agent ended with code 2", "its agent ended with code 3"]
    assert [ended.reason for ended in told] == [*reasons, reasons[0]]
    assert world.lines == [*(f"a | {x}" for x in REFUSED), "a | up", *(f"a | {x}" for x in REFUSED)]
    assert world.started_s[4] - world.started_s[3] == pytest.approx(1020, abs=3)


def test_a_machine_that_is_not_reached_is_tried_as_often_as_ever(monkeypatch):
    world = World(monkeypatch, [([], 5.0, words.SSH_FAILED)] * 20)
    [ended] = world.told(260.0)
    why = "cannot be reached by ssh: it said nothing"
    assert ended == MachineEnded("a", why, was_up=False)
    assert len(world.started_s) == pytest.approx(10, abs=1)
