"""What agents are told of processes whose place somebody else has: on which machine, and which."""

from helpers.agents import agent_hello
from helpers.harness.coordinator_world import pid_of
from helpers.harness.machine_world import MachineWorld
from holdfast.bundle.serving import BundleServer
from holdfast.cluster import parse_worker
from holdfast.config import RunConfig
from holdfast.control.effects import StartWorker
from holdfast.control.io.agents.agent_connections import Agents
from holdfast.control.io.agents.machine_desk import Line, MachineDesk
from holdfast.protocol import messages

ORDER = messages.StartWorkers(
    workers=[], job="/job.py", config=RunConfig(), job_sha256="5a" * 32, run_dir="/run", resumed=""
)


class Desk:
    """Of a run that trains on three machines; agents are what was sent to each."""

    def __init__(self) -> None:
        self.world = MachineWorld({"a": 2, "b": 2, "c": 2})
        self.sent: list[tuple[str, messages.Message]] = []
        agents = self.agents = Agents(8)
        line = Line(
            send=lambda to, message: self.sent.append((to, message)),
            drop=lambda connection: None,
            apply=lambda effects: None,
            log=lambda who, reason: None,
            pass_on=lambda connection, gathered: None,
        )
        bundle = BundleServer(None)
        self._desk = MachineDesk(self.world.run, agents, ORDER, lambda order: None, bundle, line)
        for name in "abc":
            agents.admit(name, 0.0)
            agents.check(name, agent_hello(machine=name), 0.0)
            agents.name(name, name)
        for worker, name in self.world.seats().items():
            assert not self.hears(name, messages.WorkerStarted(worker=worker, pid=pid_of(worker)))

    def hears(self, machine: str, message: messages.Message) -> bool:
        return self._desk.hear(machine, message)

    def starts(self, worker: str, machine: str) -> None:
        """As the coordinator has it started there."""
        self.world.run.run.machines.seat(parse_worker(worker), machine)
        self._desk.do(StartWorker(parse_worker(worker), machine), None)

    def ended(self) -> list[tuple[str, str, int]]:
        found = [(to, word) for to, word in self.sent if isinstance(word, messages.EndWorker)]
        return [(to, word.worker, word.pid) for to, word in found]


def test_a_process_whose_worker_is_started_elsewhere_is_to_end_there():
    desk = Desk()
    before = desk.world.seats()["1.1"]
    other = next(name for name in "abc" if name != before)
    desk.starts("1.1", other)
    assert desk.ended() == [(before, "1.1", pid_of("1.1"))]
    assert [to for to, word in desk.sent if isinstance(word, messages.StartWorkers)] == [other]


def test_on_its_own_machine_it_is_ended_by_the_order_itself():
    desk = Desk()
    desk.starts("1.1", desk.world.seats()["1.1"])
    assert not desk.ended()


def test_an_agent_that_tells_a_successor_of_a_process_of_the_past_is_to_end_it():
    desk = Desk()
    seat = desk.world.seats()["1.1"]
    other = next(name for name in "abc" if name != seat)
    assert desk.hears(other, messages.WorkerStarted(worker="1.1", pid=7))
    assert desk.ended() == [(other, "1.1", 7)]
    assert "1.1" not in desk.agents.workers_of(other)  # nor does it speak for it
    assert "1.1" in desk.agents.workers_of(seat)


def test_an_agent_that_could_not_start_a_worker_is_too_late_if_another_one_was_told_to():
    desk = Desk()
    seat = desk.world.seats()["1.1"]
    other = next(name for name in "abc" if name != seat)
    failed = messages.WorkerNotStarted(worker="1.1", reason="no memory")
    assert desk.hears(other, failed)  # dealt with
    assert not desk.hears(seat, failed)


def test_its_end_is_no_news_of_the_one_that_trains_whatever_its_number():
    desk = Desk()
    seat, pid = desk.world.seats()["1.1"], pid_of("1.1")
    other = next(name for name in "abc" if name != seat)
    desk.hears(other, messages.WorkerStarted(worker="1.1", pid=pid))
    exited = messages.WorkerExited(worker="1.1", pid=pid, how="signal SIGKILL", code=-9)
    assert desk.hears(other, exited)  # dealt with
    desk.hears(seat, messages.WorkerStarted(worker="1.1", pid=pid))
    assert not desk.hears(seat, exited)  # for the coordinator to judge
