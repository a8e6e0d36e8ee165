"""A simulated process: what it waits for, what it is sent by others, and how it ends.

Its life is a generator that yields its waits; whatever ends one is an event in virtual time.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import RunConfig
from holdfast.errors import EpochPast
from holdfast.protocol import messages
from holdfast.protocol.records import Address
from holdfast.protocol.successors import PAUSE_S
from holdfast.runtime.link.lease import Lease
from holdfast.schedule.operation import Op
from holdfast.simulator.messages.network import ControlLine, VirtualNetwork
from holdfast.simulator.messages.reference import UndisturbedRun
from holdfast.simulator.messages.shelf import Shelf
from holdfast.simulator.messages.virtual_time import VirtualTime
from holdfast.simulator.messages.worker import waiting as w
from holdfast.simulator.messages.worker.tensor_box import TensorBox, Wanted
from holdfast.simulator.messages.worker.worker_link import WorkerLink

_RECONNECT_S = 10.0
KILLED = -9  # exit code


class Surroundings(Protocol):
    """What a worker has around it."""

    time: VirtualTime
    network: VirtualNetwork
    shelf: Shelf
    reference: UndisturbedRun
    config: RunConfig
    num_layers: int
    slowness: Mapping[str, float]

    def violated(self, what: str) -> None: ...

    def connected(self, near: Any, role: str, above: int) -> tuple[ControlLine | None, int]: ...

    def process_at(self, host: str, port: int) -> "SimulatedProcess | None": ...

    def operation_s(self, op: Op) -> float: ...

    def measured_s(self, name: str) -> float: ...

    def probe_s(self, step: int) -> float: ...

    def load_s(self) -> float: ...

    def build_s(self) -> float: ...

    def write_s(self) -> float: ...

    def copying_s(self, name: Wanted) -> float: ...

    def ended(self, worker: Any, code: int) -> None: ...

    def attached(self, pid: int, generation: int) -> None: ...

    def committed(self, worker: Any, step: int) -> None: ...


class SimulatedProcess:
    def __init__(self, around: Surroundings, name: str, pid: int, machine: str) -> None:
        self.name, self.pid, self.machine, self.port = name, pid, machine, 1024 + pid % 60000
        self.around, self.box = around, TensorBox()
        self.id: WorkerId = parse_worker(name)
        config, time = around.config, around.time
        limit_s = config.workers.orphan_limit_s
        self.link = WorkerLink(self, time, limit_s, self.put_off, self._note_attached)
        self.lease = Lease(is_needed=config.machines.count > 0, now=time.read)
        self.epoch = 0
        self.peers: dict[str, SimulatedProcess] = {}
        self.is_alive, self.is_stopped = True, False
        self.cut_off_s: float | None = None  # fenced while nothing was heard of it
        self._life, self._born_s = self.live(), time.now_s
        self._want: w.Wait | None = None
        self._since_s, self._serial = 0.0, 0
        self._later: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def now_s(self) -> float:
        return self.around.time.now_s

    def live(self) -> w.WaitsOf[None]:
        """All that its own thread does."""
        raise NotImplementedError

    def aside(self, message: messages.Message) -> None:
        """What does not wait for its own thread."""
        raise NotImplementedError

    def is_there(self, wait: w.Wait) -> bool:
        """Of waits that only a worker knows."""
        raise NotImplementedError

    # --- the process ---

    def start(self) -> None:
        """It knocks for as long as a start may take: a coordinator may be about to take over."""
        if not self.is_alive or self.put_off(self.start):
            return
        if self.link.open():
            self._go(None)
        elif self.now_s - self._born_s > self.around.config.workers.start_limit_s:
            self.end(1)
        else:
            self.around.time.after(PAUSE_S, self.start)

    def put_off(self, act: Callable[..., None], *given: Any) -> bool:
        """Of a process that stands still, or is gone, nothing is done now."""
        if self.is_stopped:
            self._later.append((act, given))
        return self.is_stopped or not self.is_alive

    def stop_process(self) -> None:
        self.is_stopped = True

    def wake_process(self) -> None:
        self.is_stopped = False
        later, self._later = self._later, []
        for act, given in later:
            act(*given)

    def lose_power(self) -> None:
        self.is_alive = False
        self.link.lose_power()

    def end(self, code: int) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        death_s = self.around.measured_s("death") if code == KILLED else 0.0
        if death_s:
            self.around.time.after(death_s, self._ended, code)
        else:
            self._ended(code)

    def _ended(self, code: int) -> None:
        """Others can see it now."""
        self.link.close()
        self.around.ended(self, code)

    def _note_attached(self, name: str, generation: int) -> None:
        self.around.attached(self.pid, generation)

    def connected(self, above: int) -> tuple[ControlLine | None, int]:
        return self.around.connected(self, "worker", above)

    def hear(self, line: ControlLine, message: messages.Message) -> None:
        self.link.hear(line, message)

    def hung_up(self, line: ControlLine) -> None:
        self.link.hung_up(line)

    # --- its own thread ---

    def _go(self, value: Any, error: Exception | None = None) -> None:
        """Until it has to wait."""
        while self.is_alive:
            try:
                want = self._life.send(value) if error is None else self._life.throw(error)
            except w.ProcessKilled:
                self.end(KILLED)
                return
            except StopIteration:
                self.end(0)
                return
            self._serial += 1
            self._want, self._since_s, error, value = want, self.now_s, None, None
            if want[0] == w.SLEEP:
                self.around.time.after(want[1], self._woken, self._serial)
                return
            if self.put_off(self.look_again):
                return
            if self._is_interrupted():
                error = EpochPast("")
                continue
            found = self._found(want)
            if found is None:
                return
            value = found[0]

    def _woken(self, serial: int) -> None:
        if serial == self._serial and not self.put_off(self._woken, serial):
            self._want = None
            self._go(None)

    def _is_interrupted(self) -> bool:
        want = self._want
        return (
            want is not None and want[0] in w.INTERRUPTED and self.epoch < self.link.halted_before
        )

    def _found(self, want: w.Wait) -> tuple[Any] | None:
        """What it waits for, if it is there."""
        kind, what = want
        if kind == w.ANY:
            for number, one in enumerate(what):
                if one in self.box:
                    return (number,)
        elif kind == w.INBOX:
            if self.link.inbox:
                return (self.link.inbox.popleft(),)
        elif (kind == w.LEASE and self.lease.is_valid) or self.is_there(want):
            return (None,)
        return None

    def look_again(self) -> None:
        """Something may be there that it waits for."""
        want = self._want
        if want is None or want[0] == w.SLEEP or self.is_stopped or not self.is_alive:
            return
        if self._is_interrupted():
            self._want = None
            self._go(None, EpochPast(""))
        elif (found := self._found(want)) is not None:
            self._want = None
            self._go(found[0])

    def has_word(self) -> None:
        if self._want is not None and self._want[0] == w.INBOX:
            self.look_again()

    def check(self) -> None:
        if self.epoch < self.link.halted_before:
            raise EpochPast("")

    # --- tensors ---

    def connect(self, addresses: Mapping[str, Address]) -> None:
        for name, at in addresses.items():
            peer = self.around.process_at(at.host, at.port)
            if name != self.name:
                if peer is not None:
                    self.peers[name] = peer
                else:
                    self.peers.pop(name, None)

    def send_tensor(self, to: WorkerId, name: Wanted, value: Any) -> None:
        peer = self.peers.get(str(to))
        if peer is not None and not self.put_off(self._pass_to, peer, self.epoch, name, value):
            self._pass_to(peer, self.epoch, name, value)

    def _pass_to(self, peer: "SimulatedProcess", epoch: int, name: Wanted, value: Any) -> None:
        network = self.around.network
        if network.is_cut(self.machine, peer.machine):
            network.when_mended(lambda: self._pass_to(peer, epoch, name, value))
            limit_s = self.around.config.workers.heartbeat_timeout_s or _RECONNECT_S
            network.time.after(min(limit_s, _RECONNECT_S), self.unreached, peer, epoch)
            return
        at_s = network.arrival_s(self.pid, peer.pid, self.around.copying_s(name))
        network.time.at(at_s, peer.came, epoch, name, value)

    def came(self, epoch: int, name: Wanted, value: Any) -> None:
        if self.is_alive and self.box.put(epoch, name, value):
            want = self._want
            if want is not None and want[0] == w.ANY and name in want[1]:
                self.look_again()

    def unreached(self, peer: "SimulatedProcess", epoch: int) -> None:
        """The connection to another worker was broken for too long."""
        if self.peers.get(peer.name) is not peer or self.put_off(self.unreached, peer, epoch):
            return
        is_cut = self.around.network.is_cut(self.machine, peer.machine)
        if peer.is_alive and not is_cut:
            return
        self.link.send(self._gone(peer.name))
        want = self._want
        if want is not None and want[0] == w.ANY and any(o.source == peer.name for o in want[1]):
            self._want = None
            self._go(None, w.PeerAway(""))

    def _gone(self, lost: str) -> messages.PeerGone:
        return messages.PeerGone(worker=self.name, epoch=self.epoch, lost=lost)
