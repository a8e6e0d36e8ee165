"""Simulated workers of bench/scale.py: hundreds in one process, each with a connection of its own.

They compute nothing, but say all that workers say, at the times they would: hello, heartbeats, a
report a step, what they have when they are halted. What takes long to write is written before it
is due, and what comes to many is read once: the coordinator is measured, not these.
"""

import heapq
import itertools
import os
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from typing import Any

import holdfast
from holdfast.auth.handshake import WORKER_ROLE
from holdfast.cluster import WorkerId
from holdfast.errors import PeerLost
from holdfast.protocol import codec, messages
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.records import KeptRow, MicrobatchLoss, OperationTime, Transfers, VerdictRow
from holdfast.protocol.report_limits import tells_losses, tells_operations, told_transfers
from holdfast.protocol.spec import Access
from holdfast.schedule.operation import Op, Shape
from holdfast.schedule.schedule import loads

STEP_S = 1.0
HALTED_AT = 0.5  # of a step
_LAYERS_A_STAGE = 4
_CONNECT_LIMIT_S = 120.0
_OP_S = 0.03
_SPREAD_S = 0.1  # in which the reports of a step come
_SOME_STEP = 999_999_999  # stands for any: reports of a worker differ by their step only


@dataclass(eq=False)
class Worker:
    name: WorkerId
    connection: Connection
    lane: Sequence[Op] = ()
    stage: int = 0
    beat: tuple[tuple[int, int], bytes] = ((-1, -1), b"")  # epoch, step and the message
    report: bytes = b""  # of any step
    short_report: bytes = b""  # likewise, without operations
    inventory: tuple[int, bytes] = (0, b"")  # epoch and the message

    def fileno(self) -> int:
        return self.connection.fileno()


class Workers:
    """Some machines' workers; a bench's process tells them by ``pipe`` what is to happen."""

    def __init__(self, pipe: Pipe, access: Access, shape: Shape, names: Sequence[WorkerId]) -> None:
        self._pipe, self._access, self._shape, self._names = pipe, access, shape, names
        self._workers: dict[WorkerId, Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = itertools.count()
        self._random = random.Random(str(names[0]))
        self._epoch = 0
        self._beat_s = 0.2
        self._zero_s: float | None = None  # when step 0 began, or would have
        self._frozen_in: int | None = None  # step
        self._proceeded_s: dict[int, float] = {}  # epoch -> when the last Proceed of it came
        self._schedule_text = ""  # not read yet
        self._lanes: Mapping[WorkerId, Sequence[Op]] = {}
        self._unwritten: deque[Worker] = deque()
        self._is_over = False

    # --- the loop ---

    def run(self) -> None:
        for name in self._names:
            self._connect(name)
        while not self._is_over:
            idle_s = self._due[0][0] - time.monotonic() if self._due else 0.1
            if idle_s > 0.001 and self._write_one():
                idle_s = 0.0
            for key, _ in self._selector.select(min(0.1, max(0.0, idle_s))):
                if key.fileobj is self._pipe:
                    self._obey(*self._pipe.recv())
                elif isinstance(key.fileobj, Worker) and key.fileobj.name in self._workers:
                    self._read(key.fileobj)
            self._act()

    def _act(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            at_s, _, act = heapq.heappop(self._due)
            act(at_s)

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._count), act))

    def _connect(self, name: WorkerId) -> None:
        connection, _ = connect(self._access, WORKER_ROLE, str(name), _CONNECT_LIMIT_S)
        worker = self._workers[name] = Worker(name, connection, stage=name.stage)
        self._selector.register(worker, selectors.EVENT_READ)
        self._say(worker, _hello(name, self._shape))

    def _say(self, worker: Worker, message: messages.Message) -> None:
        self._send(worker, codec.encode(message))

    def _send(self, worker: Worker, data: bytes) -> None:
        try:
            worker.connection.send_encoded(data)
        except PeerLost:
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        if self._workers.pop(worker.name, None) is not None:
            self._selector.unregister(worker)
            worker.connection.close()

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
            case "kill":
                self._kill(*what)
            case "resumed":
                self._pipe.send(self._proceeded_s.get(what[0], 0.0))
            case "end":
                self._is_over = True

    def _freeze(self, step: int) -> None:
        """All stand still; what they will tell when they are halted is written now."""
        for worker in self._workers.values():
            told = _inventory(worker, self._shape, self._epoch + 1, step)
            worker.inventory = (told.epoch, codec.encode(told))
        self._pipe.send("frozen")

    def _kill(self, *victims: WorkerId) -> None:
        for name in victims:
            if name in self._workers:
                self._drop(self._workers[name])
        for name in victims:  # whoever talked to it finds a broken connection
            for other in (WorkerId(name.pipeline, name.stage + by) for by in (-1, 1)):
                if other in self._workers:
                    gone = messages.PeerGone(worker=str(other), epoch=self._epoch, lost=str(name))
                    self._say(self._workers[other], gone)

    # --- what the coordinator says ---

    def _read(self, worker: Worker) -> None:
        try:
            heard = worker.connection.read()
        except PeerLost:
            self._drop(worker)
            return
        for message in heard:
            self._hear(worker, message)

    def _hear(self, worker: Worker, message: messages.Message) -> None:
        name = str(worker.name)
        match message:
            case messages.MeasureLayers():
                costs_s = [0.01] * (_LAYERS_A_STAGE * self._shape.stages)
                told = messages.LayerCosts(worker=name, forward_s=costs_s, backward_s=costs_s)
                self._say(worker, told)
            case messages.Assign():
                self._beat_s, worker.stage = message.beat_s, message.stage
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
            case messages.Stop():
                self._drop(worker)

    def _halted(self, worker: Worker, halt: messages.Halt) -> None:
        if halt.epoch == worker.inventory[0]:
            self._send(worker, worker.inventory[1])
            return
        if self._frozen_in is None:
            self._frozen_in = self._step(time.monotonic())
        self._say(worker, _inventory(worker, self._shape, halt.epoch, self._frozen_in))

    def _proceed(self, worker: Worker, proceed: messages.Proceed) -> None:
        now_s = time.monotonic()
        self._proceeded_s[proceed.epoch] = now_s
        resumed = messages.Resumed(worker=str(worker.name), epoch=proceed.epoch, at_s=now_s)
        self._say(worker, resumed)
        if proceed.epoch == self._epoch:
            return  # another worker of this process has heard it
        is_first, self._epoch = self._epoch == 0, proceed.epoch
        if self._frozen_in is not None:  # half of the step is left
            self._zero_s = now_s - (self._frozen_in + HALTED_AT) * STEP_S
            self._frozen_in = None
        self._schedule_text = proceed.schedule
        if is_first:
            for each in self._workers.values():
                beat_s = now_s + self._random.random() * self._beat_s
                self._at(beat_s, lambda at_s, each=each: self._beat(each, at_s))

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
                told = report(worker, self._shape, _SOME_STEP)
                worker.report = codec.encode(told)
                worker.short_report = codec.encode(replace(told, operations=[], transfers=[]))
            if not self._unwritten and self._zero_s is None:
                self._pipe.send("ready")
        else:
            return False
        return True

    # --- what they say by themselves ---

    def _time_of(self, step: float) -> float:
        assert self._zero_s is not None
        return self._zero_s + step * STEP_S

    def _step(self, now_s: float) -> int:
        if self._zero_s is None:
            return 0
        if self._frozen_in is not None:
            now_s = min(now_s, self._time_of(self._frozen_in + HALTED_AT))
        return max(0, int((now_s - self._zero_s) / STEP_S))

    def _beat(self, worker: Worker, at_s: float) -> None:
        if worker.name not in self._workers:
            return
        now = (self._epoch, self._step(at_s))
        if worker.beat[0] != now:
            worker.beat = (now, codec.encode(_heartbeat(worker, *now)))
        self._send(worker, worker.beat[1])
        self._at(at_s + self._beat_s, lambda at_s: self._beat(worker, at_s))

    def _plan_report(self, worker: Worker, step: int) -> None:
        end_s = self._time_of(step + 1) + self._random.random() * _SPREAD_S
        self._at(end_s, lambda at_s: self._report(worker, step))

    def _report(self, worker: Worker, step: int) -> None:
        if worker.name not in self._workers:
            return
        if self._step(time.monotonic()) <= step:  # all have stood still meanwhile
            self._at(time.monotonic() + STEP_S / 10, lambda at_s: self._report(worker, step))
            return
        is_full = tells_operations(worker.name, step, len(self._lanes))
        self._send(worker, of_step(worker.report if is_full else worker.short_report, step))
        self._plan_report(worker, step + 1)


def of_step(data: bytes, step: int) -> bytes:
    """The report with its step. As text, since to write it anew takes longer than to read it."""
    body = codec.body_of(data).replace(b":%d," % _SOME_STEP, b":%d," % step, 1)
    return len(body).to_bytes(4, "little") + body


# --- what they say ---


def host_of(worker: WorkerId) -> str:
    """A pipeline is a machine."""
    return f"10.0.{worker.pipeline // 250}.{worker.pipeline % 250 + 1}"


def _hello(name: WorkerId, shape: Shape) -> messages.Hello:
    num_layers = _LAYERS_A_STAGE * shape.stages
    return messages.Hello(
        worker=str(name),
        pid=1000 + name.pipeline * shape.stages + name.stage,
        fingerprint={"holdfast": holdfast.__version__, "torch": "2", "cpu": "AVX2"},
        traits={messages.SAMPLES: "100000", messages.MICROBATCH_SIZE: "4"},
        num_layers=num_layers,
        layer_hashes=[f"{layer:032x}" for layer in range(num_layers)],
        cut=[],
        host=host_of(name),
        port=20000 + name.stage,
    )


def _heartbeat(worker: Worker, epoch: int, step: int) -> messages.Heartbeat:
    return messages.Heartbeat(
        worker=str(worker.name),
        epoch=epoch,
        step=step,
        attempt=0,
        done=len(worker.lane) // 2,
        operation="F",
        number=step * 100 + 7,
        microbatch=0,
        busy_s=_OP_S / 2,
        longest={"F": _OP_S, "B": _OP_S, "W": _OP_S},
    )


def report(worker: Worker, shape: Shape, step: int) -> messages.StepReport:
    name, stage = worker.name, worker.stage
    began_s = time.monotonic()
    times = [
        OperationTime(str(op), began_s + i * _OP_S, began_s + (i + 0.98) * _OP_S, _OP_S, 65536)
        for i, op in enumerate(worker.lane)
    ]
    holders = (WorkerId(p, stage) for p in range(shape.pipelines) if p != name.pipeline)
    beside = (WorkerId(name.pipeline, s) for s in (stage - 1, stage + 1) if 0 <= s < shape.stages)
    of_last = [WorkerId(p, stage) for p in range(shape.pipelines)]
    tells = stage == shape.last_stage and tells_losses(name, of_last)
    losses = range(shape.microbatches if tells else 0)
    transfers = [
        *(Transfers(str(one), "pipeline", 8, 8 << 20, 0.0012345) for one in beside),
        *(Transfers(str(one), "reduction", 2, 1 << 20, 0.0012345) for one in holders),
    ]
    return messages.StepReport(
        worker=str(name),
        step=step,
        losses=[MicrobatchLoss(m, 2.5 + m % 17 / 7) for m in losses],
        num_tokens=shape.microbatches * 4096 if losses else 0,
        norm=1.2345678901,
        clipped=False,
        skipped=False,
        taken_back=False,
        nonfinite=False,
        operations=times,
        transfers=told_transfers(name, transfers),
    )


def _inventory(worker: Worker, shape: Shape, epoch: int, step: int) -> messages.Inventory:
    """In the middle of a step, and the same moment for all: of each pipeline's micro-batches the
    first two are through, the next two are forwarded, and the others are to come."""
    of_pipeline = shape.microbatches // shape.pipelines
    mine = sorted({op.microbatch for op in worker.lane if op.microbatch is not None})
    through = [m for m in mine if m % of_pipeline < 2]
    forwarded = [m for m in mine if m % of_pipeline < 4]
    activations = forwarded if worker.stage < shape.last_stage else []
    return messages.Inventory(
        worker=str(worker.name),
        epoch=epoch,
        reduced=step,
        oldest=step,
        attempt=0,
        progress={m: 3 if m in through else 1 for m in forwarded},
        kept=[KeptRow(step, activations, through if worker.stage else [])],
        verdicts={step - 1: VerdictRow(1.2345678901, None, False)} if step else {},
        kept_bytes=1 << 20,
        done=len(forwarded) + 2 * len(through),
        saving=0,
        commits=[],
    )


# --- a process ---


def read_once() -> None:
    """A message that comes to all workers of this process is looked into once."""
    last: tuple[bytes, messages.Message] | None = None
    look_into = codec.decode

    def decode(body: bytes) -> messages.Message:
        nonlocal last
        if last is None or last[0] != body:
            last = (bytes(body), look_into(body))
        return last[1]

    codec.decode = decode  # type: ignore[assignment]


def simulate(pipe: Pipe, shape: Shape, names: Sequence[WorkerId]) -> None:
    """The whole life of a process of them; it begins with where the coordinator is."""
    read_once()
    access: Access = pipe.recv()
    Workers(pipe, access, shape, names).run()
    os._exit(0)  # thousands of connections are closed by the system
