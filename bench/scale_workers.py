"""Simulated machines of bench/scale.py: dozens in one process, each with its agent and its workers,
and with a connection of its own for each of them.

They compute nothing, but say all that agents and workers say, at the times they would: hello,
heartbeats and reports by the agents, what workers have when they are halted. What takes long to
write is written before it is due, and what comes to many is read once: the coordinator is measured,
not these.
"""

import heapq
import itertools
import os
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from typing import Any

from holdfast.auth.handshake import AGENT, WORKER_ROLE
from holdfast.cluster import WorkerId, parse_worker
from holdfast.errors import PeerLost
from holdfast.protocol import codec, messages
from holdfast.protocol.connection import connect
from holdfast.protocol.gathering import gathered_beat, gathered_report, together
from holdfast.protocol.records import LayerSize
from holdfast.protocol.report_limits import (
    tells_operations,
    told_operations,
)
from holdfast.protocol.spec import Access
from holdfast.schedule.operation import Op, Shape
from holdfast.schedule.schedule import loads
from scale_words import (
    LAYERS_A_STAGE,
    Agent,
    Worker,
    agent_hello,
    heartbeat,
    hello_of,
    inventory_of,
    report,
)

HALTED_AT = 0.5  # of a step
_CONNECT_LIMIT_S = 120.0
_SPREAD_S = 0.1  # in which the reports of a step are made
_FIRST_PID = 1000
_NUM_KNOWN = 8  # messages that are looked into once
# Messages that workers do not tell reports again for, as in runtime/link.
_IN_ANY_ORDER = (messages.ClockTold, messages.PeerGone, messages.Probed)


class Machines:
    """Some machines; a bench's process tells them by ``pipe`` what is to happen."""

    def __init__(
        self, pipe: Pipe, access: Access, shape: Shape, numbers: Sequence[int], step_s: float
    ) -> None:
        self._pipe, self._access, self._shape, self._numbers = pipe, access, shape, numbers
        self._step_s = step_s
        self._agents: dict[int, Agent] = {}
        self._workers: dict[WorkerId, Worker] = {}
        self._pids = itertools.count(_FIRST_PID)
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = itertools.count()
        self._random = random.Random(numbers[0])
        self._epoch = 0
        self._beat_s = 0.2
        self._heard = 0  # step: reports of all before it have come
        self._zero_s: float | None = None  # when step 0 began, or would have
        self._frozen_in: int | None = None  # step
        self._proceeded_s: dict[int, float] = {}  # epoch -> when the last Proceed of it came
        self._schedule_text = ""  # not read yet
        self._lanes: Mapping[WorkerId, Sequence[Op]] = {}
        self._unwritten: deque[Worker] = deque()
        self._is_over = False

    # --- the loop ---

    def run(self) -> None:
        for number in self._numbers:
            self._come(number)
        while not self._is_over:
            idle_s = self._due[0][0] - time.monotonic() if self._due else 0.1
            if idle_s > 0.001 and self._write_one():
                idle_s = 0.0
            for key, _ in self._selector.select(min(0.1, max(0.0, idle_s))):
                if key.fileobj is self._pipe:
                    self._obey(*self._pipe.recv())
                elif isinstance(key.fileobj, Agent):
                    self._read_agent(key.fileobj)
                elif isinstance(key.fileobj, Worker) and key.fileobj.name in self._workers:
                    self._read(key.fileobj)
                self._act()  # while much is to be read nobody may fall silent
            self._act()

    def _act(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            at_s, _, act = heapq.heappop(self._due)
            act(at_s)

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._count), act))

    def _come(self, number: int) -> None:
        connection, _ = connect(self._access, AGENT, "", _CONNECT_LIMIT_S)
        agent = self._agents[number] = Agent(number, connection)
        self._selector.register(agent, selectors.EVENT_READ)
        connection.send(agent_hello(number, self._shape))
        beat_s = time.monotonic() + self._random.random() * self._beat_s
        self._at(beat_s, lambda at_s: self._pass_on(agent, at_s))

    def _start(self, agent: Agent, name: WorkerId) -> None:
        pid = next(self._pids)
        agent.connection.send(messages.WorkerStarted(worker=str(name), pid=pid))
        connection, _ = connect(self._access, WORKER_ROLE, str(name), _CONNECT_LIMIT_S)
        worker = Worker(name, agent, connection, pid, stage=name.stage)
        self._workers[name] = agent.workers[name] = worker
        self._selector.register(worker, selectors.EVENT_READ)
        self._say(worker, hello_of(worker, self._shape))

    def _say(self, worker: Worker, message: messages.Message) -> None:
        self._send(worker, codec.encode(message), tells=not isinstance(message, _IN_ANY_ORDER))

    def _send(self, worker: Worker, data: bytes, *, tells: bool = True) -> None:
        """``tells``: also what its agent may not have passed on."""
        if tells and worker.unsure and worker.report is not None:
            unsure, worker.unsure = worker.unsure, []
            for step in (one for one in unsure if one >= self._heard):
                again = replace(worker.report, step=step, operations=[], transfers=[])
                self._send(worker, codec.encode(again))
        worker.num_said += 1
        try:
            worker.connection.send_encoded(data)
        except PeerLost:
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        if self._workers.pop(worker.name, None) is not None:
            del worker.agent.workers[worker.name]
            self._selector.unregister(worker)
            worker.connection.close()

    def _go(self, agent: Agent) -> None:
        for worker in list(agent.workers.values()):
            self._drop(worker)
        if self._agents.pop(agent.number, None) is not None:
            self._selector.unregister(agent)
            agent.connection.close()

    # --- what the bench says ---

    def _obey(self, order: str, *what: Any) -> None:
        match order:
            case "begin":
                self._zero_s = what[0]
                for worker in self._workers.values():
                    self._plan_report(worker, 0)
            case "freeze":
                self._frozen_in = what[0]
                self._at(self._time_of(what[0] + HALTED_AT), lambda at_s: self._freeze(what[0]))
            case "where":
                self._pipe.send(self._machine_of(what[0]))
            case "kill":
                self._kill(what)
            case "kill machine":
                self._kill_machine(*what)
            case "resumed":
                self._pipe.send(self._proceeded_s.get(what[0], 0.0))
            case "end":
                self._is_over = True

    def _machine_of(self, worker: WorkerId) -> tuple[int, list[WorkerId]]:
        """And who else is there; -1: on none of this process."""
        found = self._workers.get(worker)
        return (-1, []) if found is None else (found.agent.number, list(found.agent.workers))

    def _freeze(self, step: int) -> None:
        """All stand still; what they will tell when they are halted is written now."""
        for worker in self._workers.values():
            told = inventory_of(worker, self._shape, self._epoch + 1, step)
            worker.inventory = (told.epoch, codec.encode(told))
        self._pipe.send("frozen")

    def _kill(self, victims: Sequence[WorkerId]) -> None:
        for worker in [self._workers[name] for name in victims if name in self._workers]:
            self._drop(worker)
            ended = messages.WorkerExited(
                worker=str(worker.name), pid=worker.pid, how="signal SIGKILL", code=-9
            )
            worker.agent.connection.send(ended)
        self._miss(victims)

    def _kill_machine(self, number: int, victims: Sequence[WorkerId]) -> None:
        if number in self._agents:
            self._go(self._agents[number])
        self._miss(victims)

    def _miss(self, victims: Iterable[WorkerId]) -> None:
        """Whoever talked to them finds a broken connection."""
        for name in victims:
            for other in (WorkerId(name.pipeline, name.stage + by) for by in (-1, 1)):
                if other in self._workers:
                    gone = messages.PeerGone(worker=str(other), epoch=self._epoch, lost=str(name))
                    self._say(self._workers[other], gone)

    # --- what the coordinator says ---

    def _read_agent(self, agent: Agent) -> None:
        if agent.number not in self._agents:
            return
        try:
            heard = agent.connection.read()
        except PeerLost:
            return self._go(agent)
        for message in heard:
            match message:
                case messages.StartWorkers():
                    for name in message.workers:
                        self._start(agent, parse_worker(name))
                case messages.Renewals():
                    self._heard = max(self._heard, message.heard)
                    for name in message.answers:
                        if (worker := agent.workers.get(parse_worker(name))) is not None:
                            worker.renewed = message.number
                case messages.Stop():
                    return self._go(agent)

    def _read(self, worker: Worker) -> None:
        try:
            heard = worker.connection.read()
        except PeerLost:
            self._drop(worker)
            return
        for message in heard:
            if isinstance(message, messages.Renewal):
                worker.renewed = message.number
            else:
                self._hear(worker, message)

    def _hear(self, worker: Worker, message: messages.Message) -> None:
        name = str(worker.name)
        match message:
            case messages.MeasureLayers():
                costs_s = [0.01] * (LAYERS_A_STAGE * self._shape.stages)
                sizes = [LayerSize(0, 0, 0, 0, 0)] * len(costs_s)
                told = messages.LayerCosts(
                    worker=name, forward_s=costs_s, backward_s=costs_s, sizes=sizes
                )
                self._say(worker, told)
            case messages.Assign():
                self._beat_s, worker.stage, worker.beats = message.beat_s, message.stage, True
                self._say(worker, messages.Ready(worker=name))
            case messages.Proceed():
                self._proceed(worker, message)
            case messages.Halt():
                self._halted(worker, message)
            case messages.Probe(compute=True):
                probed = messages.Probed(worker=name, step=message.step, wall_s=0.01, cpu_s=0.01)
                self._say(worker, probed)
            case messages.ClockAsk():
                now_s = time.monotonic()
                asked_s = message.asked_s
                self._say(
                    worker,
                    messages.ClockTold(worker=name, asked_s=asked_s, heard_s=now_s, sent_s=now_s),
                )
            case messages.Offer():
                offered = messages.Offered(
                    worker=name,
                    epoch=message.epoch,
                    number=message.number,
                    step=self._step(time.monotonic()),
                )
                self._say(worker, offered)
            case messages.StillHere():
                self._heard = max(self._heard, message.heard)
            case messages.Stop():
                self._drop(worker)

    def _halted(self, worker: Worker, halt: messages.Halt) -> None:
        if halt.epoch == worker.inventory[0]:
            self._send(worker, worker.inventory[1])
            return
        if self._frozen_in is None:
            self._frozen_in = self._step(time.monotonic())
        self._say(worker, inventory_of(worker, self._shape, halt.epoch, self._frozen_in))

    def _proceed(self, worker: Worker, proceed: messages.Proceed) -> None:
        now_s = time.monotonic()
        self._proceeded_s[proceed.epoch] = now_s
        resumed = messages.Resumed(worker=str(worker.name), epoch=proceed.epoch, at_s=now_s)
        self._say(worker, resumed)
        if proceed.epoch == self._epoch:
            return  # another worker of this process has heard it
        self._epoch = proceed.epoch
        if self._frozen_in is not None:  # half of the step is left
            self._zero_s = now_s - (self._frozen_in + HALTED_AT) * self._step_s
            self._frozen_in = None
        self._schedule_text = proceed.schedule

    def _write_one(self) -> bool:
        """What will be needed; False: all is written."""
        if self._schedule_text:
            self._lanes, self._schedule_text = loads(self._schedule_text).lanes, ""
            self._unwritten = deque(self._workers.values())
        elif self._unwritten:
            worker = self._unwritten.popleft()
            lane = self._lanes.get(worker.name, ())
            if lane != worker.lane:
                worker.lane = lane
                worker.report = report(worker, self._shape, 0)
            if not self._unwritten and self._zero_s is None:
                self._pipe.send("ready")
        else:
            return False
        return True

    # --- what they say by themselves ---

    def _time_of(self, step: float) -> float:
        assert self._zero_s is not None
        return self._zero_s + step * self._step_s

    def _step(self, now_s: float) -> int:
        if self._zero_s is None:
            return 0
        if self._frozen_in is not None:
            now_s = min(now_s, self._time_of(self._frozen_in + HALTED_AT))
        return max(0, int((now_s - self._zero_s) / self._step_s))

    def _pass_on(self, agent: Agent, at_s: float) -> None:
        """Heartbeats of all workers of a machine, and the reports that are there."""
        if agent.number not in self._agents:
            return
        step = self._step(at_s)
        beats = [
            gathered_beat(heartbeat(worker, self._epoch, step))
            for worker in agent.workers.values()
            if worker.beats
        ]
        told, agent.told = [*beats, *agent.told], []
        try:
            thin = agent.thinning.thinned(together(told), self._beat_s) if told else None
            agent.connection.send(thin or messages.AgentBeat())
        except PeerLost:
            return self._go(agent)
        self._at(at_s + self._beat_s, lambda at_s: self._pass_on(agent, at_s))

    def _plan_report(self, worker: Worker, step: int) -> None:
        end_s = self._time_of(step + 1) + self._random.random() * _SPREAD_S
        self._at(end_s, lambda at_s: self._report(worker, step))

    def _report(self, worker: Worker, step: int) -> None:
        if worker.name not in self._workers or worker.report is None:
            return
        if self._step(time.monotonic()) <= step:  # all have stood still meanwhile
            self._at(time.monotonic() + self._step_s / 10, lambda at_s: self._report(worker, step))
            return
        turn = (worker.name, step, len(self._lanes))
        told = replace(
            worker.report,
            step=step,
            operations=told_operations(*turn, worker.report.operations),
            transfers=worker.report.transfers if tells_operations(*turn) else [],
        )
        worker.agent.told.append(gathered_report(told, self._epoch, worker.num_said))
        worker.unsure = [*(one for one in worker.unsure if one >= self._heard), step]
        self._plan_report(worker, step + 1)


# --- a process ---


def read_once() -> None:
    """A message that comes to all workers of this process is looked into once."""
    known: dict[bytes, messages.Message] = {}  # the newest; others come between them
    look_into = codec.decode

    def decode(body: bytes) -> messages.Message:
        key = bytes(body)
        if key not in known:
            if len(known) >= _NUM_KNOWN:
                del known[next(iter(known))]
            known[key] = look_into(body)
        return known[key]

    codec.decode = decode  # type: ignore[assignment]


def simulate(pipe: Pipe, shape: Shape, numbers: Sequence[int], step_s: float) -> None:
    """The whole life of a process of them; it begins with where the coordinator is."""
    read_once()
    access: Access = pipe.recv()
    Machines(pipe, access, shape, numbers, step_s).run()
    os._exit(0)  # thousands of connections are closed by the system
