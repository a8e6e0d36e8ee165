"""A real coordinator behind simulated connections: hears, does what it wants done, may die.

Follows ``control/io/server.py``. When it dies at a stimulus, only a part of what that one led to is
done. Another one takes over with what is in the journal and on disk.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.auth.handshake import AGENT, WORKER_ROLE, Identity
from holdfast.cluster import WorkerId, parse_worker
from holdfast.control import effects as e
from holdfast.control.coordinator import Coordinator
from holdfast.control.io.agents.agent_connections import Agents
from holdfast.control.io.entry.rights import refusal, sent_away
from holdfast.control.io.in_order import InOrder
from holdfast.control.io.succession.signs import Signs
from holdfast.errors import ConfigError, Implausible, ProtocolError
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.simulator.messages.machine_side import OF_MACHINES, MachineSide
from holdfast.simulator.messages.network import ControlLine
from holdfast.simulator.messages.shelf import Shelf
from holdfast.simulator.messages.virtual_time import VirtualTime

TICK_S = 0.1
_SEAL_S = 0.8


class HostSurroundings(Protocol):
    time: VirtualTime
    shelf: Shelf
    order: messages.StartWorkers

    def emitted(self, host: "CoordinatorHost", event: events.Event) -> None: ...

    def fenced(
        self, worker: WorkerId, line: ControlLine | None, host: "CoordinatorHost"
    ) -> None: ...

    def done(self, host: "CoordinatorHost", effect: e.Effect) -> None: ...

    def stimulated(self, host: "CoordinatorHost", found: list[e.Effect]) -> list[e.Effect] | None:
        """What is to be done of it; None: all. Less: it dies then."""
        ...

    def settled(self, host: "CoordinatorHost") -> None:
        """All of it is done."""
        ...

    def violated(self, what: str) -> None: ...

    def leads(self, generation: int) -> bool: ...


class CoordinatorHost:
    def __init__(
        self,
        around: HostSurroundings,
        coordinator: Coordinator,
        generation: int,
        machine: str,
        most_agents: int,
    ) -> None:
        self.around, self.coordinator, self.generation = around, coordinator, generation
        self.machine, self.is_alive, self.is_paused = machine, True, False
        self.loading: dict[WorkerId, ControlLine] = {}
        self.here: dict[WorkerId, ControlLine] = {}
        self.lines: dict[ControlLine, None] = {}
        self.heard_s: dict[WorkerId, float] = {}
        self.agents: Any = Agents(most_agents)  # its keys are connections of any kind
        self.machines = MachineSide(self)
        self._signs = Signs(coordinator, lambda now_s: around.leads(generation))
        self._effects = InOrder(self._do)
        self._later: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._start_s = around.time.now_s

    # --- its process ---

    def start(self) -> None:
        self.around.time.after(TICK_S, self._tick)

    def die(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self._effects.stop()
        self.coordinator.close()
        for line in list(self.lines):
            line.hang_up()

    def pause(self) -> None:
        self.is_paused = True

    def go_on(self) -> None:
        self.is_paused = False
        later, self._later = self._later, []
        for act, given in later:
            act(*given)

    def _put_off(self, act: Callable[..., None], *given: Any) -> bool:
        if self.is_paused:
            self._later.append((act, given))
        return self.is_paused or not self.is_alive

    @property
    def now_s(self) -> float:
        return self.around.time.now_s

    def _tick(self) -> None:
        if self._put_off(self._tick):
            return
        self.around.time.after(TICK_S, self._tick)
        if self.coordinator.over:
            return
        self.apply(self._signs.due(list(self.here), self.now_s))
        self.stimulate(lambda: self.coordinator.tick(self.now_s))
        config = self.coordinator.run.config
        if self.coordinator.is_gathering:
            self._start_s = self.now_s
        elif (
            self.coordinator.starting and self.now_s - self._start_s > config.workers.start_limit_s
        ):
            why = ConfigError("workers.start_limit_s reached")
            self.stimulate(lambda: self.coordinator.fail(why, self.now_s))

    def stimulate(self, act: Callable[[], list[e.Effect]]) -> None:
        if not self.is_alive:
            return
        found = act()
        part = self.around.stimulated(self, found)
        if part is None:
            self.apply(found)
            if self.is_alive:  # else another one leads, and nothing of it is done
                self.around.settled(self)
        else:
            self.apply(part)
            self.die()

    # --- who comes ---

    def admit(self, line: ControlLine, generation: int) -> None:
        """``generation``: of the coordinator that it belongs to; 0: it does not know."""
        if not self.is_alive:
            line.hang_up()
        if self._put_off(self.admit, line, generation):
            return
        self.lines[line] = None
        known = generation or (self.generation if line.role == "worker" else 0)
        role = AGENT if line.role == "agent" else WORKER_ROLE
        peer = Identity(role, line.name, known)
        wants = self.agents.has_place
        if why := refusal(peer, self.generation, self._is_free, wants_agent=wants, launch=1):
            line.tell(sent_away(peer, self.generation, why))
            self.drop(line)
        elif role == AGENT:
            self.agents.admit(line, self.now_s)
        elif self._is_free(line.name):
            self.loading[parse_worker(line.name)] = line

    def _is_free(self, name: str) -> bool:
        return self.coordinator.accepts(name) and parse_worker(name) not in self.loading

    # --- what comes ---

    def hear(self, line: ControlLine, message: messages.Message) -> None:
        if line not in self.lines or self._put_off(self.hear, line, message):
            return
        try:
            if line.role == "agent":
                self.machines.hear(line, message)
            else:
                self._hear_worker(line, message)
        except Implausible as why:
            self.around.violated(f"{type(message).__name__} is taken for a lie: {why}")
        except ProtocolError:
            self.hung_up(line)

    def _hear_worker(self, line: ControlLine, message: messages.Message) -> None:
        worker = parse_worker(line.name)
        self.heard_s[worker] = self.now_s
        match message:
            case messages.Hello():
                if self.loading.get(worker) is not line:
                    raise ProtocolError("has no place to say hello in")
                self._came(worker, line)
            case messages.Reattach():
                is_new = self.loading.get(worker) is line
                answer = self._signs.answer(message, is_new=is_new)
                if answer is not None:
                    line.tell(answer)
                    if isinstance(answer, messages.Begone):
                        self.drop(line)
                    return
                self._came(worker, line)
            case _ if self.here.get(worker) is not line:
                raise ProtocolError("before its hello")
        self.stimulate(lambda: self.coordinator.handle(message, self.now_s))

    def _came(self, worker: WorkerId, line: ControlLine) -> None:
        self.loading.pop(worker, None)
        self.here[worker] = line

    def hung_up(self, line: ControlLine) -> None:
        if line not in self.lines or self._put_off(self.hung_up, line):
            return
        machine = self.agents.machine_of(line)
        worker = parse_worker(line.name) if line.role == "worker" else None
        is_worker = worker is not None and line in (self.here.get(worker), self.loading.get(worker))
        self.drop(line)
        now_s, closed = self.now_s, "closed by the other side"
        if machine:
            self.stimulate(lambda: self.coordinator.machines.lost(machine, closed, now_s))
        elif is_worker:
            self.stimulate(lambda: self.coordinator.lost_connection(line.name, now_s))

    def drop(self, line: ControlLine) -> None:
        self.lines.pop(line, None)
        line.hang_up()
        self.agents.drop(line)
        for known in (self.here, self.loading):
            for worker in [worker for worker, other in known.items() if other is line]:
                del known[worker]

    # --- what is to be done ---

    def apply(self, found: Sequence[e.Effect]) -> None:
        self._effects.apply(found)

    def _do(self, effect: e.Effect) -> None:
        if self._deposed(effect):
            return
        self.around.done(self, effect)
        match effect:
            case e.Send():
                if effect.to in self.here:
                    self.here[effect.to].tell(effect.message)
            case e.Fence():
                self._fence(effect.worker)
            case _ if isinstance(effect, OF_MACHINES):
                self.machines.do(effect)
            case _:
                self._perform(effect)

    def _deposed(self, effect: e.Effect) -> bool:
        asks = e.WriteDown | e.CheckLead | e.SealCheckpoint
        if isinstance(effect, asks) and not self.around.leads(self.generation):
            self.die()
            return True
        return False

    def _fence(self, worker: WorkerId) -> None:
        self.agents.fence(worker)
        line = self.here.get(worker) or self.loading.get(worker)
        self.around.fenced(worker, line, self)
        if line is not None:
            words = line.last_words() if self.here.get(worker) is line else []
            self.drop(line)
            for message in words:
                self._hear_last(message)

    def _hear_last(self, message: messages.Message) -> None:
        try:
            self.apply(self.coordinator.handle(message, self.now_s))
        except ProtocolError:
            return  # it is lost already

    def _perform(self, effect: e.Effect) -> None:
        shelf = self.around.shelf
        match effect:
            case e.Emit():
                self.around.emitted(self, effect.event)
            case e.WriteDown():
                shelf.write_down(json.dumps(effect.record))
            case e.SealCheckpoint():
                self._begin_seal(effect)
            case e.Discard():
                shelf.discard(effect.directory)
            case e.ClearLogs():
                shelf.clear_logs()
            case e.TrimLogs():
                shelf.trim_logs(map(str, effect.workers), effect.step)

    def _begin_seal(self, seal: e.SealCheckpoint) -> None:
        """In the run directory at once; far away it takes a while."""
        if not self.coordinator.run.config.checkpoint.dir:
            self._seal(seal)
        else:
            self.around.time.after(_SEAL_S, self._seal, seal)

    def _seal(self, seal: e.SealCheckpoint) -> None:
        """From a thread of its own: one that is not finished when the process dies is none."""
        if self._put_off(self._seal, seal):
            return
        shelf = self.around.shelf
        told: e.SealResult = seal
        if shelf.is_full:
            told = e.SealFailed(seal, "No space left on device")
        else:
            try:
                keep = self.coordinator.run.config.checkpoint.keep + seal.keeps_more
                shelf.seal(seal.step, [part.directory for part in seal.parts], keep)
            except KeyError as why:
                self.around.violated(f"checkpoint {seal.step} is sealed without its part {why}")
                return
        self.stimulate(lambda: self.coordinator.heard_of_seal(told, self.now_s))
