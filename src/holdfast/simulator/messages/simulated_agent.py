"""The agent of one simulated machine: starts workers, tells of their ends, looks at them.

Follows ``control/io/agents/agent.py`` and ``agent_line.py``.
"""

from typing import Protocol

from holdfast.protocol import messages
from holdfast.protocol.successors import PAUSE_S, SILENCE_S
from holdfast.simulator.messages.network import ControlLine
from holdfast.simulator.messages.virtual_time import VirtualTime
from holdfast.simulator.messages.worker.process import KILLED
from holdfast.simulator.messages.worker.simulated_worker import SimulatedWorker

BEAT_S = 0.2
_GRACE_S = 1.0
_FORK_S = 0.02


class AgentSurroundings(Protocol):
    time: VirtualTime

    def connected(
        self, near: "SimulatedAgent", role: str, above: int
    ) -> tuple[ControlLine | None, int]: ...

    def new_process(self, name: str, machine: str) -> SimulatedWorker: ...

    def attached(self, pid: int, generation: int) -> None: ...

    def may_reach(self, machine: str, other: str) -> bool: ...


class SimulatedAgent:
    def __init__(
        self, around: AgentSurroundings, machine: str, slots: int, orphan_limit_s: float
    ) -> None:
        self.machine, self.name, self.slots, self._around = machine, "", slots, around
        self.pid = -1 - sum(machine.encode())
        self.processes: dict[int, SimulatedWorker] = {}
        self.is_alive = True
        self._line: ControlLine | None = None
        self._generation, self._limit_s, self._lost_s = 0, orphan_limit_s, 0.0
        self._sign_s: float | None = None
        self._unsaid: list[messages.Message] = []

    def start(self) -> None:
        if self.is_alive and self._line is None:
            self._look()
            self._beat()

    # --- its line ---

    def _say(self, message: messages.Message) -> None:
        if self._line is not None:
            self._line.say(message)
        elif isinstance(message, messages.WorkerExited):
            started = messages.WorkerStarted(worker=message.worker, pid=message.pid)
            self._unsaid += [started, message]

    def _look(self) -> None:
        if self._line is not None or not self.is_alive:
            return
        time = self._around.time
        if self._generation and time.now_s - self._lost_s > self._limit_s:
            self.end()
            return
        line, generation = self._around.connected(self, "agent", self._generation)
        if line is not None:
            self._attach(line, generation)
        elif generation and generation == self._generation:
            self.end()  # it lives, and has given this one up
        else:
            time.after(PAUSE_S, self._look)

    def _attach(self, line: ControlLine, generation: int) -> None:
        self._line, self._generation, self._sign_s = line, generation, None
        self._around.attached(self.pid, generation)
        line.say(self._hello())
        for process in self.processes.values():
            line.say(messages.WorkerStarted(worker=process.name, pid=process.pid))
        unsaid, self._unsaid = self._unsaid, []
        for message in unsaid:
            line.say(message)

    def _hello(self) -> messages.AgentHello:
        return messages.AgentHello(
            machine=self.machine,
            slots=self.slots,
            memory_bytes=0,
            devices=["cpu"],
            pid=1,
            fingerprint={},
        )

    def hung_up(self, line: ControlLine) -> None:
        if line is self._line and self.is_alive:
            self._line, self._lost_s = None, self._around.time.now_s
            self._look()

    def _beat(self) -> None:
        if not self.is_alive:
            return
        self._say(messages.AgentBeat())
        now_s = self._around.time.now_s
        if self._line is not None and self._sign_s is not None and now_s - self._sign_s > SILENCE_S:
            line, generation = self._around.connected(self, "agent", self._generation)
            if line is not None:
                self._line.leave()
                self._attach(line, generation)
        self._around.time.after(BEAT_S, self._beat)

    # --- what it is told ---

    def hear(self, line: ControlLine, message: messages.Message) -> None:
        if line is not self._line or not self.is_alive:
            return
        match message:
            case messages.StartWorkers():
                for name in message.workers:
                    self._start(name)
            case messages.LookAt():
                process = self.processes.get(message.pid)
                if process is not None and not process.is_stopped:
                    told = messages.WorkerRuns(worker=process.name, pid=process.pid)
                    self._say(told)
            case messages.EndWorker():
                self._around.time.after(_GRACE_S, self._kill, message.pid)
            case messages.TryLinks():
                reach, names = self._around.may_reach, sorted(message.addresses)
                unreached = [name for name in names if not reach(self.machine, name)]
                self._say(messages.LinksTried(unreached=unreached))
            case messages.StillHere():
                self._sign_s = self._around.time.now_s
            case messages.Stop() | messages.Begone() | messages.AgentRefused():
                self.end()

    def _start(self, name: str) -> None:
        for process in list(self.processes.values()):
            if process.name == name:
                self._kill(process.pid)
        process = self._around.new_process(name, self.machine)
        self.processes[process.pid] = process
        self._say(messages.WorkerStarted(worker=name, pid=process.pid))
        self._around.time.after(_FORK_S, process.start)

    def _kill(self, pid: int) -> None:
        if pid in self.processes:
            self.processes[pid].end(KILLED)

    def exited(self, process: SimulatedWorker, code: int) -> None:
        if self.processes.pop(process.pid, None) is None or not self.is_alive:
            return
        how = f"exit code {code}" if code >= 0 else "signal SIGKILL"
        self._say(messages.WorkerExited(worker=process.name, pid=process.pid, how=how, code=code))

    def end(self) -> None:
        """With all its workers."""
        self.is_alive = False
        for process in list(self.processes.values()):
            process.end(KILLED)
        self.processes.clear()
        if self._line is not None:
            self._line.leave()

    def lose_power(self) -> None:
        """The machine is gone, without a word."""
        self.is_alive = False
        for process in self.processes.values():
            process.lose_power()
        self.processes.clear()
        if self._line is not None:
            self._line.lose_power()
