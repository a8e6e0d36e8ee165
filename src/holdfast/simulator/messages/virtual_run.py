"""A whole simulated run: machines, workers, network, disk, and coordinators one after the other."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.baselines.registry import policies_of
from holdfast.cluster import WorkerId
from holdfast.control import effects as e
from holdfast.control.coordinator import Coordinator
from holdfast.control.takeover.remembering import Former
from holdfast.control.takeover.snapshot import from_record
from holdfast.errors import HoldfastError
from holdfast.faults.fault import parse_fault
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.simulator.messages.coordinator_host import CoordinatorHost
from holdfast.simulator.messages.machinery import SimulatedMachines
from holdfast.simulator.messages.network import ControlLine
from holdfast.simulator.messages.prompt_planner import PromptPlanner, SearchingPlanner
from holdfast.simulator.messages.reference import UndisturbedRun
from holdfast.simulator.messages.scenario import Scenario
from holdfast.simulator.messages.worker.simulated_worker import SimulatedWorker

_SHA = "0" * 64
_RUN_DIR = "runs/x"
_LAYERS_A_STAGE = 2


class Violation(Exception):
    """Something has happened that must not."""


class VirtualRun(SimulatedMachines):
    """``watch`` is told of every effect, event and stimulus: it looks for mistakes."""

    def __init__(self, scenario: Scenario, watch: "Watch | None" = None) -> None:
        super().__init__(scenario)
        self.reference = UndisturbedRun(scenario.shape, scenario.verdicts())
        self.num_layers = _LAYERS_A_STAGE * scenario.shape.stages
        self.watch = watch or Watch()
        self.hosts: list[CoordinatorHost] = []
        self.events: list[events.Event] = []
        self.num_stimuli, self.is_over = 0, False
        self.crashes: dict[int, Callable[[], None]] = {}  # stimulus -> what is done then
        self._log = hashlib.sha256()
        self._awaited: dict[str, dict[int, list[Callable[[], None]]]] = {}
        self._noted: Counter[str] = Counter()
        self.order = messages.StartWorkers(
            workers=[],
            job="job.py",
            job_sha256=_SHA,
            run_dir=_RUN_DIR,
            resumed="",
            config=self.config,
            launch=1,
        )
        self._take_lead(None)
        slots = scenario.machines or (scenario.shape.pipelines * scenario.shape.stages + 2,)
        for number, room in enumerate(slots):
            self.machine_comes(f"m{number}", room)

    # --- coordinators ---

    @property
    def leader(self) -> CoordinatorHost:
        return self.hosts[-1]

    def leads(self, generation: int) -> bool:
        return generation == self.leader.generation

    def _take_lead(self, former: Former | None) -> None:
        scenario, config = self.scenario, self.config
        coordinator = Coordinator(
            config,
            _RUN_DIR,
            None,
            policies=policies_of(config),
            planner=self._planner(),
            faults=[parse_fault(text) for text in scenario.faults],
            address="m0:1",
            now=self.time.read,
            run_id="ab",
            journalled=True,
            former=former,
        )
        most = max(1, len(scenario.machines)) + 2
        host = CoordinatorHost(self, coordinator, len(self.hosts) + 1, scenario.home, most)
        self.hosts.append(host)
        self.watch.leads(self, host)
        host.start()

    def _planner(self) -> PromptPlanner | SearchingPlanner:
        trial_s = self.measured_s("trial")
        if trial_s:
            return SearchingPlanner(self.time, trial_s)
        return PromptPlanner(self.time, self.scenario.refined_s)

    def take_over(self) -> None:
        """By whoever finds the journal of a run that was not ended."""
        if not self.shelf.journal or self.is_over:
            return
        snapshot = from_record(json.loads(self.shelf.journal[-1]))
        if snapshot.phase == "FAILED":
            return
        reached = snapshot.next_step if not self.events else self._steps_finished()
        self._take_lead(Former(snapshot, reached, self.shelf.newest, self.time.now_s))

    def _steps_finished(self) -> int:
        reached = 0
        for event in self.events:
            if isinstance(event, events.StepFinished):
                reached = event.step + 1
            elif isinstance(event, events.WentBack):
                reached = event.to_step
        return reached

    @property
    def failure(self) -> HoldfastError | None:
        return self.leader.coordinator.failure

    # --- what hosts ask ---

    def emitted(self, host: CoordinatorHost, event: events.Event) -> None:
        """One that was taken over from writes where nobody reads."""
        if not self.leads(host.generation):
            return
        self.events.append(event)
        self.note(type(event).__name__, getattr(event, "worker", ""))
        self.watch.emitted(self, event)

    def done(self, host: CoordinatorHost, effect: e.Effect) -> None:
        if isinstance(effect, e.Send):
            epoch = getattr(effect.message, "epoch", "")
            self.note(type(effect.message).__name__, str(effect.to), str(epoch))
        else:
            self.note(type(effect).__name__)
        self.watch.done(self, host, effect)

    def stimulated(self, host: CoordinatorHost, found: list[e.Effect]) -> list[e.Effect] | None:
        self.num_stimuli += 1
        self.watch.stimulated(self, host)
        crash = self.crashes.pop(self.num_stimuli, None)
        if crash is None or not self.shelf.journal or host.coordinator.starting:
            return None
        crash()
        return found[: self.dice.randint(0, len(found))]

    def settled(self, host: CoordinatorHost) -> None:
        self.is_over = self.is_over or (host.is_alive and host.coordinator.over)
        self.watch.settled(self, host)

    def fenced(self, worker: WorkerId, line: ControlLine | None, host: CoordinatorHost) -> None:
        """One of whom nothing was heard for too long has no lease any more: it commits nothing."""
        silent_s = self.time.now_s - host.heard_s.get(worker, self.time.now_s)
        if not self.config.machines.count or line is None:
            return
        limit_s = host.coordinator.run.timeouts.heartbeat_timeout_s
        process = self.process_behind(line)
        if process is not None and silent_s > limit_s:
            process.cut_off_s = self.time.now_s

    def violated(self, what: str) -> None:
        raise Violation(what)

    # --- what workers and agents ask ---

    def connected(self, near: Any, role: str, above: int) -> tuple[ControlLine | None, int]:
        """The newest coordinator that can be reached."""
        for host in reversed(self.hosts):
            is_there = host.is_alive and not host.is_paused
            if is_there and not self.network.is_cut(near.machine, host.machine):
                if host.generation <= above:
                    return None, host.generation
                line = ControlLine(self.network, near, near.machine, role, near.name)
                line.connect(host, host.machine, above)
                return line, host.generation
        return None, 0

    def attached(self, pid: int, generation: int) -> None:
        self.watch.attached(pid, generation)

    def committed(self, worker: SimulatedWorker, step: int) -> None:
        self.note("commit", worker.name, str(step))
        self.watch.committed(self, worker, step)

    # --- the log of all that happens ---

    def note(self, *words: str) -> None:
        self._log.update(f"{self.time.now_s:.6f} {' '.join(words)}\n".encode())
        self.watch.noted(self.time.now_s, words)
        if self._awaited:
            self._count(words[0])
            self._count(":".join(words[:2]))

    def when(self, name: str, count: int, act: Callable[[], None]) -> None:
        """As soon as so many of this name were noted."""
        self._awaited.setdefault(name, {}).setdefault(count, []).append(act)

    def _count(self, name: str) -> None:
        if name not in self._awaited:
            return
        self._noted[name] += 1
        for act in self._awaited[name].pop(self._noted[name], ()):
            act()

    @property
    def fingerprint(self) -> str:
        """Of all that has happened so far."""
        return self._log.hexdigest()

    def run(self, until_s: float) -> None:
        self.time.run(until_s, lambda: self.is_over)


class Watch:
    """Looks at a world while it runs. This one sees nothing."""

    def leads(self, world: VirtualRun, host: CoordinatorHost) -> None: ...

    def done(self, world: VirtualRun, host: CoordinatorHost, effect: e.Effect) -> None: ...

    def stimulated(self, world: VirtualRun, host: CoordinatorHost) -> None: ...

    def settled(self, world: VirtualRun, host: CoordinatorHost) -> None: ...

    def emitted(self, world: VirtualRun, event: events.Event) -> None: ...

    def attached(self, pid: int, generation: int) -> None: ...

    def committed(self, world: VirtualRun, worker: SimulatedWorker, step: int) -> None: ...

    def noted(self, at_s: float, words: tuple[str, ...]) -> None: ...
