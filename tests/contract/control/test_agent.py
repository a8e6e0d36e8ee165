"""The agent: tells how each worker ended, and leaves none behind, however it is ended itself."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from helpers.agents import agent_hello
from helpers.live import process_state, wait_until
from holdfast.auth.handshake import AGENT as AGENT_ROLE
from holdfast.auth.handshake import COORDINATOR, Identity, answer
from holdfast.config import RunConfig, TrainConfig, WorkersConfig
from holdfast.errors import HandshakeBroken, PeerLost
from holdfast.protocol.connection import Connection
from holdfast.protocol.messages import (
    AgentBeat,
    AgentHello,
    EndWorker,
    LinksTried,
    LookAt,
    Message,
    ShowStack,
    StartWorkers,
    StillHere,
    Stop,
    TryLinks,
    WorkerExited,
    WorkerNotStarted,
    WorkerRuns,
    WorkerStarted,
)
from holdfast.protocol.records import Address

PLACES = {"job_sha256": "5a" * 32, "run_dir": "/runs/x", "resumed": ""}
LIMIT_S = 90.0  # no test waits this long unless it fails
# The number of a worker's pipeline says how it ends.
WELL, BADLY, KILLED, RAISING, STUBBORN, BUSY = (f"{pipeline}.0" for pipeline in range(6))
AGENT = """
import os, signal, sys, time
from holdfast.control.io.agents import agent, agent_line, worker_processes
from holdfast.protocol.connection import connect
from holdfast.protocol.messages import AgentHello
from holdfast.cli.terminal.complaints import say
from holdfast.protocol.spec import Access

def badly(spec):
    return 3

def killed(spec):
    os.kill(os.getpid(), signal.SIGKILL)

def raising(spec):
    raise ArithmeticError(f"worker {spec.worker} of launch {spec.access.generation} on {spec.job}")

def stubborn(spec):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)

class Scarce:
    def __init__(self, call, number):
        self.call, self.left = call, number

    def __call__(self, *words):
        self.left -= 1
        if self.left >= 0:
            print(f"refused {self.call.__name__}", file=sys.stderr, flush=True)
            raise OSError(11, "Resource temporarily unavailable")
        return self.call(*words)

ends = [lambda spec: 0, badly, killed, raising, stubborn, stubborn]
host, port = sys.argv[1], int(sys.argv[2])
worker_processes.STOP_GRACE_S = 0.2
agent_line.SILENCE_S = 0.3
worker_processes.START_PAUSES_S = (0.01, 0.01, 0.01)
if sys.argv[3]:
    setattr(os, sys.argv[3], Scarce(getattr(os, sys.argv[3]), int(sys.argv[4])))
access = Access(host, port, bytes(range(32)), 3)
what = {"memory_bytes": 0, "devices": ["cpu"], "fingerprint": {}}
hello = AgentHello(machine="m0", slots=8, pid=os.getpid(), **what)
made = agent.Agent(
    connect(access, "agent", "", 60.0)[0],
    access,
    hello,
    lambda config: print(f"prepared for {config.train.steps} steps", flush=True),
    lambda spec: ends[spec.worker.pipeline](spec),
    say,
)
sys.exit(made.run())
"""


class Launcher:
    """The agent's other side, by hand."""

    def __init__(self, scarce: str = "", number: int = 0) -> None:
        """``scarce``: a call of the agent to the system that fails so many times."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(LIMIT_S)
            self.place = host, port = listener.getsockname()
            self.agent = subprocess.Popen(
                [sys.executable, "-c", AGENT, host, str(port), scarce, str(number)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            sock = listener.accept()[0]
        me = Identity(COORDINATOR, "", 3)
        found, stamps = answer(sock, bytes(range(32)), me, LIMIT_S)
        assert found == Identity(AGENT_ROLE, "", 3)
        self.connection = Connection(sock, stamps)
        self._unread: list[Message] = []

    def hear(self) -> Message:
        deadline_s = time.monotonic() + LIMIT_S
        while not self._unread:
            assert time.monotonic() < deadline_s, "the agent says nothing"
            heard = self.connection.read()
            self._unread += [word for word in heard if not isinstance(word, AgentBeat)]
        return self._unread.pop(0)

    def come_back(self, generation: int) -> None:
        """Another coordinator, in the same place: it is asked who it is, and then called."""
        with socket.create_server(self.place) as listener:
            listener.settimeout(LIMIT_S)
            found = None
            while found is None or found.role != AGENT_ROLE:
                sock = listener.accept()[0]
                me = Identity(COORDINATOR, "", generation)
                with contextlib.suppress(HandshakeBroken):  # it asks again if we are slow
                    found, stamps = answer(sock, bytes(range(32)), me, LIMIT_S)
                if found is None or found.role != AGENT_ROLE:
                    sock.close()
        assert found.generation == 3  # that it was started by
        self.connection = Connection(sock, stamps)
        self._unread = []

    def is_asked(self, generation: int) -> None:
        """Who it is, by an agent that looks for another coordinator."""
        with socket.create_server(self.place) as listener:
            listener.settimeout(LIMIT_S)
            me, found = Identity(COORDINATOR, "", generation), None
            while found is None:
                with listener.accept()[0] as sock, contextlib.suppress(HandshakeBroken):
                    found = answer(sock, bytes(range(32)), me, LIMIT_S)

    def start(self, *workers: str, orphan_limit_s: float = 600.0) -> dict[str, int]:
        """Process ids by worker."""
        assert isinstance(self.hear(), AgentHello)
        more = WorkersConfig(orphan_limit_s=orphan_limit_s)
        config = RunConfig(train=TrainConfig(steps=12), workers=more)
        self.connection.send(
            StartWorkers(workers=list(workers), job="/job.py", config=config, **PLACES)
        )
        return {worker: self._hear_start(worker) for worker in workers}

    def _hear_start(self, worker: str) -> int:
        message = self.hear()
        while isinstance(message, WorkerExited):  # of one that was quicker than the next start
            self._unread.append(message)
            message = self.hear()
        assert isinstance(message, WorkerStarted)
        assert message.worker == worker
        return message.pid

    def end(self) -> tuple[int, str, str]:
        """Exit code, output and error output."""
        out, err = self.agent.communicate(timeout=LIMIT_S)
        return self.agent.returncode, out, err

    def close(self) -> None:
        self.connection.close()
        if self.agent.poll() is None:
            self.agent.kill()
        self.agent.communicate(timeout=LIMIT_S)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.close()


@pytest.fixture
def scarce(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    made = Launcher(*request.param)
    yield made
    made.close()


def test_the_agent_proves_who_it_is_and_names_its_process(launcher):
    assert launcher.hear() == agent_hello(launcher.agent.pid)


@pytest.mark.parametrize(
    ("worker", "how", "code"),
    [
        (WELL, "exit code 0", 0),
        (BADLY, "exit code 3", 3),
        (KILLED, "signal SIGKILL", -9),
        (RAISING, "exit code 1", 1),
    ],
)
def test_the_end_of_a_worker_is_told_and_no_zombie_is_left(launcher, worker, how, code):
    pid = launcher.start(worker)[worker]
    assert launcher.hear() == WorkerExited(worker=worker, pid=pid, how=how, code=code)
    assert process_state(pid) == ""
    assert launcher.agent.poll() is None


def test_a_worker_that_raises_says_why(launcher):
    launcher.start(RAISING)
    assert isinstance(launcher.hear(), WorkerExited)
    launcher.connection.send(Stop(reason="done"))
    _, out, err = launcher.end()
    assert "ArithmeticError: worker 3.0 of launch 3 on /job.py" in err
    assert out == "prepared for 12 steps\n"  # once, and only in the agent


def test_several_workers_run_side_by_side_and_are_told_apart(launcher):
    workers = [STUBBORN, WELL, BADLY, KILLED]
    pids = launcher.start(*workers)
    ended = [launcher.hear() for _ in range(3)]
    assert {message.worker: (message.pid, message.how) for message in ended} == {
        WELL: (pids[WELL], "exit code 0"),
        BADLY: (pids[BADLY], "exit code 3"),
        KILLED: (pids[KILLED], "signal SIGKILL"),
    }
    assert process_state(pids[STUBBORN]) not in ("", "Z")
    assert len(set(pids.values())) == 4


def test_a_worker_killed_from_outside_is_told_at_once(launcher):
    pid = launcher.start(STUBBORN)[STUBBORN]
    os.kill(pid, signal.SIGKILL)
    expected = WorkerExited(worker=STUBBORN, pid=pid, how="signal SIGKILL", code=-9)
    assert launcher.hear() == expected


def test_a_process_that_is_looked_at_is_told_to_run_unless_it_is_stopped(launcher):
    pids = launcher.start(STUBBORN, BUSY)
    os.kill(pids[STUBBORN], signal.SIGSTOP)
    wait_until(lambda: process_state(pids[STUBBORN]) == "T", "it to stop")
    for pid in (pids[STUBBORN], launcher.agent.pid, pids[BUSY]):
        launcher.connection.send(LookAt(pid=pid))
    assert launcher.hear() == WorkerRuns(worker=BUSY, pid=pids[BUSY])
    os.kill(pids[STUBBORN], signal.SIGCONT)
    wait_until(lambda: process_state(pids[STUBBORN]) != "T", "it to go on")
    launcher.connection.send(LookAt(pid=pids[STUBBORN]))
    assert launcher.hear() == WorkerRuns(worker=STUBBORN, pid=pids[STUBBORN])


def test_it_tries_whether_members_on_other_machines_can_be_reached(launcher):
    launcher.hear()
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        addresses = {"a": Address(*there.getsockname()), "b": Address(*closed.getsockname())}
        launcher.connection.send(TryLinks(addresses=addresses))
        assert launcher.hear() == LinksTried(unreached=["b"])


def test_stop_ends_workers_that_do_not_end_by_themselves(launcher):
    pids = launcher.start(STUBBORN, BUSY)
    launcher.connection.send(Stop(reason="enough"))
    ended = [launcher.hear(), launcher.hear()]
    assert {message.worker: message.how for message in ended} == {
        STUBBORN: "signal SIGKILL",
        BUSY: "signal SIGKILL",
    }
    assert launcher.end()[0] == 0
    assert [process_state(pid) for pid in pids.values()] == ["", ""]


def test_an_agent_keeps_its_workers_for_a_launcher_that_takes_over(launcher):
    pids = launcher.start(STUBBORN, BUSY)
    launcher.connection.close()
    os.kill(pids[BUSY], signal.SIGKILL)
    launcher.come_back(generation=4)
    assert isinstance(launcher.hear(), AgentHello)
    told = [launcher.hear() for _ in range(3)]
    killed = WorkerExited(worker=BUSY, pid=pids[BUSY], how="signal SIGKILL", code=-9)
    assert WorkerStarted(worker=STUBBORN, pid=pids[STUBBORN]) in told
    assert [one for one in told if one.worker == BUSY] == [
        WorkerStarted(worker=BUSY, pid=pids[BUSY]),
        killed,
    ]
    launcher.connection.send(Stop(reason="the run is over"))
    assert launcher.end()[0] == 0
    assert process_state(pids[STUBBORN]) == ""


def test_an_agent_leaves_a_launcher_that_is_silent_for_one_that_has_taken_over(launcher):
    pids = launcher.start(BUSY)
    silent = launcher.connection  # stays open, as of a process that is suspended
    silent.send(StillHere(next_step=0, heard=0))
    launcher.come_back(generation=4)
    assert isinstance(launcher.hear(), AgentHello)
    assert launcher.hear() == WorkerStarted(worker=BUSY, pid=pids[BUSY])
    with contextlib.suppress(PeerLost):
        silent.send(Stop(reason="it has woken up"))  # nobody hears it any more
    launcher.connection.send(ShowStack(pid=0))
    assert process_state(pids[BUSY])
    launcher.connection.send(Stop(reason="the run is over"))
    assert launcher.end()[0] == 0
    silent.close()


@pytest.mark.parametrize("orphan_limit_s", [0.0, 0.5])
def test_losing_the_launcher_ends_the_workers_and_the_agent(launcher, orphan_limit_s):
    pids = launcher.start(STUBBORN, BUSY, orphan_limit_s=orphan_limit_s)
    launcher.connection.close()
    code, _, err = launcher.end()
    assert (code, err) == (1, "")
    assert [process_state(pid) for pid in pids.values()] == ["", ""]


def test_workers_end_with_an_agent_that_is_killed(launcher):
    pids = launcher.start(STUBBORN, BUSY)
    launcher.agent.kill()
    wait_until(
        lambda: all(process_state(pid) in ("", "Z") for pid in pids.values()), "the workers to end"
    )


def test_workers_may_be_ordered_later_and_nothing_is_prepared_twice(launcher):
    launcher.start(STUBBORN)
    config = RunConfig(train=TrainConfig(steps=12))
    launcher.connection.send(StartWorkers(workers=[BADLY], job="/job.py", config=config, **PLACES))
    started, ended = launcher.hear(), launcher.hear()
    assert isinstance(started, WorkerStarted)
    assert ended == WorkerExited(worker=BADLY, pid=started.pid, how="exit code 3", code=3)
    launcher.connection.send(Stop(reason="done"))
    code, out, _ = launcher.end()
    assert (code, out) == (0, "prepared for 12 steps\n")


def test_a_name_that_is_started_again_while_its_first_process_hangs_ends_that_one(launcher):
    pids = launcher.start(STUBBORN)
    config = RunConfig(train=TrainConfig(steps=12))
    launcher.connection.send(
        StartWorkers(workers=[STUBBORN], job="/job.py", config=config, **PLACES)
    )
    second = launcher.hear()
    assert second.pid != pids[STUBBORN]
    gone = WorkerExited(worker=STUBBORN, pid=pids[STUBBORN], how="signal SIGKILL", code=-9)
    assert launcher.hear() == gone
    launcher.connection.send(Stop(reason="done"))
    assert launcher.hear().pid == second.pid
    assert launcher.end()[0] == 0


def test_a_hung_process_whose_place_is_taken_elsewhere_is_ended_and_no_other(launcher):
    pids = launcher.start(STUBBORN, BUSY)
    os.kill(pids[STUBBORN], signal.SIGSTOP)
    launcher.connection.send(EndWorker(worker=BUSY, pid=pids[STUBBORN]))  # nobody's
    launcher.connection.send(EndWorker(worker=STUBBORN, pid=pids[STUBBORN]))
    gone = WorkerExited(worker=STUBBORN, pid=pids[STUBBORN], how="signal SIGKILL", code=-9)
    assert launcher.hear() == gone
    assert process_state(pids[BUSY]) not in ("", "Z")


def test_one_that_is_cut_off_and_finds_its_coordinator_again_ends_its_workers(launcher):
    """It was lost meanwhile with all that ran there; whatever it was to be told does not count."""
    pids = launcher.start(STUBBORN, BUSY)
    launcher.connection.close()
    launcher.is_asked(generation=3)
    assert launcher.end()[0] == 1
    assert [process_state(pid) for pid in pids.values()] == ["", ""]


def test_a_message_that_is_not_for_an_agent_is_ignored(launcher):
    pids = launcher.start(STUBBORN)
    launcher.connection.send(WorkerStarted(worker="9.9", pid=1))
    os.kill(pids[STUBBORN], signal.SIGKILL)
    assert isinstance(launcher.hear(), WorkerExited)
    launcher.connection.send(Stop(reason="done"))
    code, _, err = launcher.end()
    assert (code, err) == (0, "holdfast agent: ignored WorkerStarted\n")


@pytest.mark.parametrize("scarce", [("fork", 3), ("pidfd_open", 3)], indirect=True, ids=str)
def test_a_worker_for_which_there_is_no_process_or_descriptor_is_started_later(scarce):
    pids = scarce.start(STUBBORN)
    assert process_state(pids[STUBBORN]) not in ("", "Z")
    scarce.connection.send(Stop(reason="done"))
    assert scarce.hear().pid == pids[STUBBORN]
    code, _, err = scarce.end()
    assert code == 0
    assert err.count("refused") == 3


@pytest.mark.parametrize("scarce", [("fork", 4), ("pidfd_open", 4)], indirect=True, ids=str)
def test_a_worker_that_cannot_be_started_is_told_and_the_others_go_on(scarce):
    assert isinstance(scarce.hear(), AgentHello)
    order = {"job": "/job.py", "job_sha256": "5a" * 32, "config": RunConfig()}
    order |= {"run_dir": "/run", "resumed": ""}
    scarce.connection.send(StartWorkers(workers=[STUBBORN], **order))
    reason = "Resource temporarily unavailable"
    assert scarce.hear() == WorkerNotStarted(worker=STUBBORN, reason=reason)
    scarce.connection.send(StartWorkers(workers=[BUSY], **order))
    started = scarce.hear()
    assert (type(started), started.worker) == (WorkerStarted, BUSY)
    assert process_state(started.pid) not in ("", "Z")
    scarce.connection.send(Stop(reason="done"))
    assert scarce.end()[2].count("refused") == 4


def test_the_last_word_is_heard_although_a_beat_fails_first(launcher):
    """The run is over: whoever still beats must not take that for the death of the launcher."""
    launcher.start(STUBBORN)
    os.kill(launcher.agent.pid, signal.SIGSTOP)
    launcher.connection.send(Stop(reason="the run is over"))
    launcher.connection.close()
    os.kill(launcher.agent.pid, signal.SIGCONT)
    assert launcher.end()[0] == 0
