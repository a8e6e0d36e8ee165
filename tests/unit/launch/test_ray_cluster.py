"""Agents as actors, with a Ray of our own: names, lines, ends; and nothing of Ray unless asked."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import holdfast
from holdfast.errors import ConfigError
from holdfast.launch.clusters import MachineEnded
from holdfast.launch.kinds import open_cluster
from holdfast.launch.orders import AgentOrder, read_order
from holdfast.launch.ray.holder import AgentHolder
from holdfast.launch.ray.ray_cluster import RayCluster


class FakeRay:
    """What is asked of an actor is answered from a list."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self, num_nodes, answers):
        self._num_nodes, self._answers = num_nodes, answers
        self.did, self.orders = [], []
        place = SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, at: (group, at))
        self.util = SimpleNamespace(
            placement_group=self._group,
            remove_placement_group=lambda group: self.did.append("group removed"),
            scheduling_strategies=place,
        )

    def is_initialized(self):
        return True

    def nodes(self):
        return [{"Alive": True}] * self._num_nodes + [{"Alive": False}]

    def _group(self, bundles, strategy):
        self.did.append(f"{strategy} {bundles}")
        return "group"

    def remote(self, kind):
        return SimpleNamespace(options=self._options)

    def _options(self, scheduling_strategy, max_concurrency, num_cpus):
        return SimpleNamespace(remote=lambda: self._handle(scheduling_strategy[1]))

    def _handle(self, index):
        answers = iter(self._answers[index])

        def begin(order, suffix, version):
            self.orders.append((read_order(order), suffix, version))
            return next(answers)

        methods = {"begin": begin, "listen": lambda limit_s: next(answers, None)}
        methods["end"] = lambda: self.did.append(f"end {index}")
        remote = {name: SimpleNamespace(remote=method) for name, method in methods.items()}
        return SimpleNamespace(index=index, **remote)

    def wait(self, futures, timeout):
        return ([each for each in futures if each is not None], [])

    def get(self, future):
        if isinstance(future, Exception):
            raise future
        return future

    def kill(self, handle):
        self.did.append(f"kill {handle.index}")


@pytest.fixture
def ticket(tmp_path):
    path = tmp_path / "ticket"
    path.write_text("{}")
    return path


def polled(cluster):
    return [ended for _ in range(5) for ended in cluster.poll()]


def test_one_agent_a_node_with_its_lines_and_its_end(ticket):
    lines = []
    ray = FakeRay(2, [[("n1", ""), (["hello"], None), (["bye"], 3)], [("n2", ""), ([], 0)]])
    cluster = RayCluster(ray, 2, lines.append, "agent")
    assert cluster.start(ticket, 2) == 2
    assert polled(cluster) == [
        MachineEnded("n2", "its agent ended", was_up=True),
        MachineEnded("n1", "its agent ended with code 3", was_up=True),
    ]
    assert lines == ["n1 | hello", "n1 | bye"]
    assert ray.orders[0] == (AgentOrder("{}", slots=2), "", holdfast.__version__)
    cluster.stop()
    expected = ["STRICT_SPREAD [{'CPU': 2.0}, {'CPU': 2.0}]", "kill 1", "kill 0", "group removed"]
    assert ray.did == expected


def test_agents_end_with_the_program_whatever_the_ticket_says_of_standbys(ticket):
    ticket.write_text('{"more": ["h:1"]}')
    ray = FakeRay(1, [[("n1", "")]])
    RayCluster(ray, 1, print, "agent").start(ticket, 1)
    assert not ray.orders[0][0].outlives


def test_several_share_a_node_if_there_are_few(ticket):
    ray = FakeRay(1, [[("n1-0", "")], [("n1-1", "")]])
    RayCluster(ray, 1, print, "agent").start(ticket, 2)
    assert ray.did[0].startswith("SPREAD ")
    assert [suffix for _, suffix, _ in ray.orders] == ["-0", "-1"]


def test_a_node_that_cannot_be_used_and_an_actor_that_is_lost_are_told(ticket):
    lost = FakeRay.exceptions.RayError("The actor died.\nmore")
    ray = FakeRay(2, [[("n1", "has holdfast 0.0.1")], [("n2", ""), lost]])
    cluster = RayCluster(ray, 1, print, "agent")
    cluster.start(ticket, 2)
    assert polled(cluster) == [
        MachineEnded("n1", "has holdfast 0.0.1", was_up=False),
        MachineEnded("n2", "Ray has lost its actor: The actor died.", was_up=True),
    ]


def test_a_holder_keeps_an_agent_and_refuses_another_version(tmp_path, monkeypatch):
    keeper = tmp_path / "keeper"
    keeper.write_text("#!/bin/sh\nread order; echo got $order; read word; echo $word; exit 4\n")
    keeper.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(keeper))
    holder = AgentHolder()
    name, why = holder.begin(AgentOrder("{}").encode(), "-7", "0.0.0")
    assert name.endswith("-7")
    assert why.startswith(f"has holdfast {holdfast.__version__}; here is 0.0.0")
    assert holder.begin(AgentOrder("{}").encode(), "-7", holdfast.__version__) == (name, "")
    [line], code = holder.listen(20)
    assert f'"name": "{name}"' in line
    assert code is None
    holder.end()
    said = []
    while code is None:
        lines, code = holder.listen(20)
        said += lines
    assert (said, code) == (["stop"], 4)


def test_without_ray_that_is_said_and_without_asking_it_is_not_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray is not installed here: pip install 'holdfast\[ray"):
        open_cluster("ray", print)
    code = "import sys, holdfast.launch.kinds; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
