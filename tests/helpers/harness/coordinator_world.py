"""A coordinator among scripted workers: they answer as real ones do, unless a test silences them.

Every effect is checked on its way: nobody who is fenced gets a message, the epoch only rises.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from helpers.harness.coordinator_pace import Pace
from holdfast.baselines.registry import policies_of
from holdfast.cluster import WorkerId, parse_worker
from holdfast.config import config_from
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import (
    Effect,
    Emit,
    Fence,
    LookAtWorker,
    SealCheckpoint,
    SealFailed,
    Send,
    StartWorker,
)
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import JOINING, MISSING, WorkerPhase
from holdfast.errors import EpochPast, WaitTimeout
from holdfast.faults.fault import parse_fault
from holdfast.planner.problem import Problem
from holdfast.protocol import messages
from holdfast.protocol.records import LayerSize, MicrobatchLoss
from holdfast.runtime.step.schedule_switch import Lanes
from holdfast.schedule.cut import stage_ranges
from holdfast.schedule.operation import Kind, Op
from holdfast.schedule.schedule import Schedule, loads

NUM_LAYERS = 6
TORCH = {"torch": "2"}
TRAITS = {"len(Job.data)": "90", "Job.clip_norm": "None"}
AT_ONCE_S = -1.0  # whoever would have to wait for the word of an offer does not


@dataclass
class SomePlan:
    problem: Problem
    period_s: float
    reason: str = "because"
    turn: int = 0  # who of a stage's holders is first

    def schedule(self) -> Schedule:
        """All forwards, then all backwards; a stage's holders take turns."""
        stages = {member.worker: member.stage for member in self.problem.members}
        lanes: dict[WorkerId, list[Op]] = {worker: [] for worker in stages}
        for kind in (Kind.F, Kind.BW):
            for stage in range(self.problem.shape.stages):
                holders = sorted(w for w, held in stages.items() if held == stage)
                for number in range(self.problem.shape.microbatches):
                    turn = (number + self.turn) % len(holders)
                    lanes[holders[turn]].append(Op(stage, kind, number))
        for worker, stage in stages.items():
            lanes[worker].append(Op(stage, Kind.R))
        return Schedule(self.problem.shape, lanes)


@dataclass
class ScriptedPlanner:
    """Plans at once; finds something better only when a test says so."""

    asked: list[Problem] = field(default_factory=list)
    found: SomePlan | None = None
    prepared: Problem | None = None
    stopped: bool = False

    def plan_now(self, problem: Problem) -> SomePlan:
        self.asked.append(problem)
        return SomePlan(problem, 1.0)

    def refine_in_background(self, problem: Problem) -> None:
        assert problem in self.asked

    def prepare(self, problem: Problem) -> None:
        self.prepared = problem

    def better(self) -> SomePlan | None:
        found, self.found = self.found, None
        return found

    def stop(self, timeout_s: float) -> None:
        self.stopped = True


def hello(worker: str, **changes: Any) -> messages.Hello:
    values = {
        "worker": worker,
        "pid": pid_of(worker),
        "fingerprint": TORCH,
        "traits": TRAITS,
        "num_layers": NUM_LAYERS,
        "layer_hashes": [f"layer {number}" for number in range(NUM_LAYERS)],
        "cut": [3],
        "host": "h",
        "port": 1,
        "device_index": 0,
        "device_bytes": 0,
    }
    return messages.Hello(**(values | changes))


def layer_costs(worker: str, **changes: Any) -> messages.LayerCosts:
    """All alike, 1 MiB kept of each."""
    values = {
        "worker": worker,
        "forward_s": [0.01] * NUM_LAYERS,
        "backward_s": [0.02] * NUM_LAYERS,
        "sizes": [LayerSize(0, 0, 0, 0, 1 << 20)] * NUM_LAYERS,
    }
    return messages.LayerCosts(**(values | changes))


def pid_of(worker: str) -> int:
    pipeline, stage = parse_worker(worker)
    return 1000 + 100 * pipeline + stage


def report(worker: str, step: int, losses: Iterable[Any] = (), **changes: Any):
    values = {
        "worker": worker,
        "step": step,
        "losses": [MicrobatchLoss(*pair) for pair in losses],
        "num_tokens": 10,
        "norm": 1.0,
        "clipped": False,
        "skipped": False,
        "taken_back": False,
        "nonfinite": False,
        "operations": [],
        "transfers": [],
    }
    return messages.StepReport(**(values | changes))


def sent(effects: Iterable[Effect], kind: type) -> dict[str, Any]:
    """The last message of the kind to each worker."""
    return {
        str(e.to): e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)
    }


def emitted(effects: Iterable[Effect], kind: type) -> list[Any]:
    return [e.event for e in effects if isinstance(e, Emit) and isinstance(e.event, kind)]


@dataclass(eq=False)
class Actor:
    """A worker as the coordinator sees it. ``mute``: it lives, beats, and answers nothing."""

    name: str
    stage: int = -1
    reduced: int = 0
    epoch: int = 0
    end_step: int = 0
    runs: bool = False  # has a Proceed and no Halt since
    source: "Actor | None" = None
    has_finished: bool = False
    mute: bool = False
    silent: bool = False
    saving: bool = False  # it writes a part of a checkpoint
    held: bool = False  # silent, but its agent sees that the process runs
    operation: str = ""  # that it is busy with
    number: int = -1
    since_s: float = 0.0
    longest: dict[str, float] = field(default_factory=dict)
    inbox: list[Any] = field(default_factory=list)
    lanes: Lanes = field(default_factory=lambda: Lanes(lambda: None))


class World:
    """``pace``: reports tell of operations that take so long."""

    def __init__(
        self, pipelines: int = 2, stages: int = 2, *, faults: Iterable[str] = (), **more: Any
    ) -> None:
        count = more.pop("microbatches", 2 * pipelines)
        shape = {"pipelines": pipelines, "stages": stages, "microbatches": count}
        train = {"steps": more.pop("steps", 20)}
        given = more.pop("given", {})
        self.pace: Pace | None = more.pop("pace", None)
        self.planner = more.pop("planner", None) or ScriptedPlanner()
        settings = {"parallel": shape, "train": train, **more}
        config = config_from(settings)
        self.run = Coordinator(
            config,
            "runs/x",
            given.pop("resume", None),
            policies=policies_of(config),
            planner=self.planner,
            faults=[parse_fault(text) for text in faults],
            **given,
        )
        self.at_s = 0.0
        self.actors: dict[str, Actor] = {}
        self.effects: list[Effect] = []
        self.ran: dict[tuple[int, int], Schedule] = {}  # epoch and step -> lanes of all
        self.seal_error = ""  # why nothing can be sealed; empty: it can
        self._fenced: set[str] = set()
        self._epoch = 0

    # --- doing ---

    def start(self) -> "World":
        for worker in self.run.workers:
            self.come(str(worker))
        self.pump()
        assert self.run.phase is RunPhase.TRAINING
        return self

    def come(self, name: str, **changes: Any) -> list[Effect]:
        """A worker of this name says hello."""
        self.actors[name] = Actor(name)
        self._fenced.discard(name)
        stages = self.run.run.shape.stages
        cut = {"cut": [NUM_LAYERS // stages * stage for stage in range(1, stages)]}
        return self.take(self.run.handle(hello(name, **(cut | changes)), self.at_s))

    def handle(self, message: messages.Message) -> list[Effect]:
        return self.take(self.run.handle(message, self.at_s))

    def take(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            self._check(effect)
            if isinstance(effect, Send) and str(effect.to) in self.actors:
                self.actors[str(effect.to)].inbox.append(effect.message)
        self.effects += effects
        for look in [effect for effect in effects if isinstance(effect, LookAtWorker)]:
            effects = [*effects, *self._look_at(str(look.worker))]
        self.check_members()
        for seal in [effect for effect in effects if isinstance(effect, SealCheckpoint)]:
            effects = [*effects, *self._perform(seal)]
        return effects

    def _look_at(self, name: str) -> list[Effect]:
        """As the agent does: it says nothing of a process that is stopped."""
        if name not in self.actors or not self.actors[name].held:
            return []
        return self.handle(messages.WorkerRuns(worker=name, pid=pid_of(name)))

    def _perform(self, seal: SealCheckpoint) -> list[Effect]:
        if self.seal_error:
            return self.take(self.run.heard_of_seal(SealFailed(seal, self.seal_error), self.at_s))
        return self.take(self.run.heard_of_seal(seal, self.at_s))

    def part(self, name: str, stage: int, step: int, **changes: Any) -> list[Effect]:
        """A worker has written its part; the others of its stage say what they have."""
        for actor in self.live():
            if actor.stage == stage and actor.name != name:
                self.handle(state_hashes(self, actor.name, stage, step))
        return self.handle(part(self, name, stage, step, **changes))

    def pump(self) -> list[Effect]:
        """Until nobody has anything to answer; returns all that happened."""
        first = len(self.effects)
        while actor := next((a for a in self.actors.values() if a.inbox and not a.mute), None):
            self._answer(actor, actor.inbox.pop(0))
        return self.effects[first:]

    def step(self, num_steps: int = 1) -> list[Effect]:
        """Everyone who runs does a step, and who copies follows."""
        first = len(self.effects)
        for _ in range(num_steps):
            self.at_s += self.step_s
            for actor in self.live():
                self.run_step(actor)
            for actor in self.live():
                self.follow(actor)
            self.pump()
            self.finish_each()
            self.pump()
            self.tick()
            self.pump()
        return self.effects[first:]

    @property
    def step_s(self) -> float:
        """What a step with the lanes of now takes, more or less."""
        if self.pace is None or not self.run.run.plan.is_made:
            return 0.1
        return self.pace.step_s(self.run.run.plan.steady.schedule)

    def run_step(self, actor: Actor) -> None:
        """Unless it has to wait for the word of an offer."""
        if not actor.runs or actor.mute or actor.reduced >= actor.end_step:
            return
        try:
            schedule = actor.lanes.of(actor.reduced, AT_ONCE_S).schedule
        except WaitTimeout:
            return
        same = self.ran.setdefault((actor.epoch, actor.reduced), schedule)
        assert same == schedule, f"{actor.name} runs other lanes in step {actor.reduced}"
        numbers = range(self.run.run.shape.microbatches)
        losses = [(m, 1.0) for m in numbers] if self._is_last(actor) else []
        more: dict[str, Any] = {}
        if self.pace is not None:
            lane = schedule.lanes[parse_worker(actor.name)]
            more["operations"] = self.pace.operations(actor.name, lane)
            more["transfers"] = self.pace.transfers(actor.name, schedule)
        actor.reduced += 1
        self.handle(report(actor.name, actor.reduced - 1, losses, **more))

    def finish(self) -> list[Effect]:
        first = len(self.effects)
        for _ in range(200):
            if self.run.over:
                break
            self.step()
        assert self.run.over
        return self.effects[first:]

    def tick(self, after_s: float = 0.0) -> list[Effect]:
        """Time passes in small bits; all but the silent beat."""
        first, until_s = len(self.effects), self.at_s + after_s
        while True:
            self.at_s = min(until_s, self.at_s + 0.2)
            for actor in self.live():
                if not (actor.silent or actor.held or self.run.over):
                    self.beat(actor.name)
            self.take(self.run.tick(self.at_s))
            if self.at_s >= until_s:
                return self.effects[first:]

    def beat(self, name: str, done: int = 0) -> list[Effect]:
        actor = self.actors[name]
        beat = messages.Heartbeat(
            worker=name,
            epoch=actor.epoch,
            step=actor.reduced,
            attempt=0,
            done=done,
            operation=actor.operation,
            number=actor.number,
            microbatch=0,
            busy_s=self.at_s - actor.since_s,
            longest=dict(actor.longest),
            saving=actor.saving,
        )
        return self.handle(beat)

    def die(self, name: str, *, how: str = "signal SIGKILL", code: int = -9) -> list[Effect]:
        """The connection closes, then the agent says how the process has ended."""
        del self.actors[name]
        effects = self.take(self.run.lost_connection(name, self.at_s))
        exited = messages.WorkerExited(worker=name, pid=pid_of(name), how=how, code=code)
        return effects + self.handle(exited)

    def tell(self, name: str, **changes: Any) -> list[Effect]:
        return self.handle(self.told(self.actors[name], self.run.run.epoch, **changes))

    # --- asking ---

    def live(self) -> list[Actor]:
        return [self.actors[name] for name in sorted(self.actors)]

    @property
    def stages(self) -> dict[str, int]:
        return {str(worker): stage for worker, stage in sorted(self.run.run.stages.items())}

    def phase(self, name: str) -> WorkerPhase:
        return self.run.run.membership.phase(parse_worker(name))

    @property
    def last_proceed(self) -> messages.Proceed:
        return [
            e.message
            for e in self.effects
            if isinstance(e, Send) and isinstance(e.message, messages.Proceed)
        ][-1]

    def check_members(self) -> None:
        """Members, joiners and the missing are all there are; who is a member holds a stage."""
        run, membership = self.run.run, self.run.run.membership
        if self.run.over:
            return
        parts = [membership.members, membership.all_in(*JOINING), membership.all_in(*MISSING)]
        everyone = [worker for part in parts for worker in part]
        assert len(everyone) == len(set(everyone)) == run.shape.pipelines * run.shape.stages
        assert sorted(run.stages) == membership.members

    # --- inside ---

    def _check(self, effect: Effect) -> None:
        if isinstance(effect, Fence):
            self._fenced.add(str(effect.worker))
        if isinstance(effect, StartWorker):
            assert self.actors.pop(str(effect.worker), None) is None or (
                str(effect.worker) in self._fenced
            )
        if isinstance(effect, Send):
            assert str(effect.to) not in self._fenced, f"{effect.message} to a lost worker"
            epoch = getattr(effect.message, "epoch", self._epoch)
            assert epoch >= self._epoch, "the epoch only rises"
            self._epoch = epoch
            if isinstance(effect.message, messages.Proceed):
                members = {parse_worker(name) for name in effect.message.stages}
                assert set(loads(effect.message.schedule).lanes) == members
                assert set(effect.message.addresses) == set(effect.message.stages)
            if isinstance(effect.message, messages.Offer):
                lanes = loads(effect.message.schedule).lanes
                assert {w: lane[-1].stage for w, lane in lanes.items()} == self.run.run.stages

    @property
    def _commits(self) -> bool:
        return self.run.run.config.recovery.mode == "commit"

    def _is_last(self, actor: Actor) -> bool:
        return actor.stage == self.run.run.shape.last_stage

    def told(self, actor: Actor, epoch: int, **changes: Any) -> messages.Inventory:
        values: dict[str, Any] = {
            "worker": actor.name,
            "epoch": epoch,
            "reduced": actor.reduced,
            "oldest": max(0, actor.reduced - 1),
            "attempt": 0,
            "progress": {},
            "kept": [],
            "verdicts": {},
            "kept_bytes": 7,
            "done": 0,
            "saving": 0,
            "commits": [max(0, actor.reduced - 1), actor.reduced] if self._commits else [],
        }
        return messages.Inventory(**(values | changes))

    def _answer(self, actor: Actor, message: messages.Message) -> None:
        match message:
            case messages.Assign():
                actor.stage, actor.reduced = message.stage, message.first_step
                actor.runs, actor.source = False, None
                self.handle(messages.Ready(worker=actor.name))
            case messages.MeasureLayers():
                self.handle(layer_costs(actor.name))
            case messages.Halt():
                actor.runs = actor.has_finished = False
                self.handle(self.told(actor, message.epoch))
            case messages.Restore():
                actor.reduced = message.version
            case messages.Proceed():
                actor.epoch, actor.end_step, actor.runs = message.epoch, message.end_step, True
                actor.source = None
                actor.lanes.start(message.epoch, message.schedule, message.first_step)
                assert message.stages[actor.name] == actor.stage
                if actor.reduced < actor.end_step:
                    self.handle(
                        messages.Resumed(worker=actor.name, epoch=actor.epoch, at_s=self.at_s)
                    )
                self.finish_each()
            case messages.CopyState():
                actor.source, actor.epoch = self.actors.get(message.source), message.epoch
            case messages.Stop():
                self.actors.pop(actor.name, None)
            case _:
                self._take_aside(actor, message)

    def _take_aside(self, actor: Actor, message: messages.Message) -> None:
        """What does not stop a worker."""
        match message:
            case messages.Offer() | messages.Adopt():
                self._change_lanes(actor, message)
            case messages.Probe() if self.pace is not None:
                if message.compute:
                    self.handle(self.pace.benchmark(actor.name, message.step))
                self.pace.probes += [(actor.name, to) for to, _ in message.links]

    def _change_lanes(self, actor: Actor, order: messages.Offer | messages.Adopt) -> None:
        try:
            if isinstance(order, messages.Adopt):
                actor.lanes.adopt(order.epoch, order.number, order.first_step)
                return
            step = actor.lanes.offer(order.epoch, order.number, order.schedule)
        except EpochPast:
            return
        self.handle(
            messages.Offered(worker=actor.name, epoch=order.epoch, number=order.number, step=step)
        )

    def follow(self, actor: Actor) -> None:
        source = actor.source
        if source in self.actors.values() and not actor.mute:
            assert source.stage == actor.stage
            actor.reduced = source.reduced
            self.handle(
                messages.Copied(
                    worker=actor.name, source=source.name, version=actor.reduced, num_bytes=64
                )
            )

    def finish_each(self) -> None:
        for actor in self.live():
            if actor.runs and actor.reduced == actor.end_step and not actor.has_finished:
                actor.has_finished = True
                self.handle(finished(actor.name, actor.stage))


def finished(name: str, stage: int, **changes: Any) -> messages.Finished:
    values = {
        "worker": name,
        "digests": {str(stage): f"digest {stage}"},
        "peak_memory_bytes": 1,
        "kept_bytes": 5,
        "log_bytes": 0,
        "old_bytes": 0,
    }
    return messages.Finished(**(values | changes))


def seals(effects: Iterable[Effect]) -> list[int]:
    return [effect.step for effect in effects if isinstance(effect, SealCheckpoint)]


def layers_of(world: World, stage: int) -> list[int]:
    return list(stage_ranges(world.run.run.plan.cut.layers, NUM_LAYERS)[stage])


def hashes_of(world: World, stage: int, step: int) -> dict[str, str]:
    return {str(layer): f"layer {layer} of {step}" for layer in layers_of(world, stage)}


def part(
    world: World, worker: str, stage: int, step: int, **changes: Any
) -> messages.CheckpointPart:
    """In the directory that the worker was given last."""
    owner = (parse_worker(worker), stage)
    given = [
        directory for directory, whose in world.run.run.assignments.parts.items() if whose == owner
    ]
    values: dict[str, Any] = {
        "worker": worker,
        "step": step,
        "directory": given[-1] if given else "stage-0.00000000",
        "layers": layers_of(world, stage),
        "digests": {},
        "sizes": {},
        "hashes": hashes_of(world, stage, step),
        "state": {},
        "took_s": 0.1,
        "copy_s": 0.0,
    }
    return messages.CheckpointPart(**(values | changes))


def state_hashes(
    world: World, worker: str, stage: int, step: int, **others: str
) -> messages.StateHashes:
    hashes = hashes_of(world, stage, step) | others
    return messages.StateHashes(worker=worker, step=step, hashes=hashes)


def something_happens(world: World, dice: random.Random) -> None:
    act = dice.choice(["step"] * 4 + ["die", "freeze", "join", "mute", "pump", "start"])
    names, missing = sorted(world.actors), world.run.run.membership.missing
    awaited = world.run.run.membership.all_in(WorkerPhase.STARTING)
    match act:
        case "step":
            world.step()
        case "die" if len(names) > 2:
            world.die(dice.choice(names))
        case "join" if missing:
            world.come(str(dice.choice(missing)))
        case "start" if awaited:
            world.come(str(dice.choice(awaited)))
        case "freeze" if len(names) > 2:
            frozen = world.actors[dice.choice(names)]
            frozen.silent = frozen.mute = True
            world.tick(dice.choice([1.0, 11.0]))
        case "mute" if names:
            world.actors[dice.choice(names)].mute = dice.random() < 0.5
        case _:
            world.pump()


def much_happens(world: World, dice: random.Random) -> None:
    """And then nothing more, until the run is over."""
    for _ in range(60):
        if not world.run.over:
            something_happens(world, dice)
    for actor in world.live():
        actor.mute = actor.silent
    world.pump()
    world.tick(11.0)
    for _ in range(200):
        for worker in world.run.run.membership.all_in(WorkerPhase.STARTING):
            world.come(str(worker))
        if not world.run.over:
            world.step()
    assert world.run.over
