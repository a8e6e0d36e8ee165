"""The commands of stories: a coordinator among scripted workers, each told to do something.

Workers answer by themselves, unless they are mute. Steps count from 0, as in the code.
"""

import shlex
from collections.abc import Callable
from typing import Any

from helpers.harness.coordinator_pace import Pace
from helpers.harness.coordinator_world import (
    AT_ONCE_S,
    Actor,
    ScriptedPlanner,
    SomePlan,
    World,
    pid_of,
    report,
)
from helpers.stories import BadStory
from helpers.story_lines import lines_of
from holdfast.cluster import parse_worker
from holdfast.config import parse_assignment, set_value
from holdfast.control.effects import Effect, Fence, Send
from holdfast.errors import Implausible
from holdfast.planner.planning import first_plan
from holdfast.planner.problem import Problem
from holdfast.planner.remainder.facts import PROGRESS_AFTER
from holdfast.protocol import messages
from holdfast.protocol.records import KeptRow, VerdictRow
from holdfast.schedule.operation import Kind, Op

FULL = "No space left on device"
_GOOD = VerdictRow(1.0, None, False)


class PromptPlanner(ScriptedPlanner):
    """The real first plan, at once; nothing better is ever found."""

    def plan_now(self, problem: Problem) -> SomePlan:
        self.asked.append(problem)
        return first_plan(problem)


class StoryWorld(World):
    """Writes down what happens. Its workers replay, and may be in the middle of a step."""

    def __init__(self, *shape: int, **more: Any) -> None:
        super().__init__(*shape, **more)
        self.happened: list[Effect | messages.Message | str] = []
        self.log_ends = 0  # nothing was logged from this step on, if that is not 0
        self._done: dict[str, tuple[int, list[Op]]] = {}  # worker -> step, what it has done of it

    def handle(self, message: messages.Message) -> list[Effect]:
        self.happened.append(message)
        return super().handle(message)

    def take(self, effects: list[Effect]) -> list[Effect]:
        self.happened += [effect for effect in effects if not self._is_first_probe(effect)]
        for effect in effects:
            if isinstance(effect, Fence):
                self.actors.pop(str(effect.worker), None)
        return super().take(effects)

    def _is_first_probe(self, effect: Effect) -> bool:
        """All are measured when a run begins: no news where nobody is ever slow."""
        is_probe = isinstance(effect, Send) and isinstance(effect.message, messages.Probe)
        return is_probe and self.pace is None

    def has_done(self, name: str, num_operations: int) -> list[Op]:
        """A worker has done so many operations of its lane; its heartbeat tells of them."""
        actor = self.actors[name]
        schedule = actor.lanes.of(actor.reduced, AT_ONCE_S).schedule
        done = list(schedule.lanes[parse_worker(name)][:num_operations])
        self._done[name] = (actor.reduced, done)
        self.beat(name, done=len(done))
        return done

    def told(self, actor: Actor, epoch: int, **changes: Any) -> messages.Inventory:
        heard = {actor.reduced - 1: _GOOD} if actor.reduced > 0 else {}
        more = {"verdicts": heard} | self._half_done(actor) | changes
        return super().told(actor, epoch, **more)

    def _half_done(self, actor: Actor) -> dict[str, Any]:
        step, ops = self._done.get(actor.name, (-1, []))
        if step != actor.reduced:
            return {}
        sent_on = [op for op in ops if op.kind is Kind.F and not self._is_last(actor)]
        sent_back = [op for op in ops if op.kind in (Kind.B, Kind.BW) and op.stage > 0]
        kept = KeptRow(step, [op.microbatch for op in sent_on], [op.microbatch for op in sent_back])
        return {
            "progress": {
                op.microbatch: PROGRESS_AFTER[op.kind] for op in ops if op.kind is not Kind.R
            },
            "kept": [kept],
            "done": len(ops),
        }

    def _answer(self, actor: Actor, message: messages.Message) -> None:
        if not isinstance(message, messages.Replay):
            super()._answer(actor, message)
        elif 0 < self.log_ends < message.version:
            reason = f"the log ends before step {self.log_ends}"
            says = {"worker": actor.name, "epoch": message.epoch, "reached": self.log_ends}
            self.handle(messages.ReplayFailed(**says, reason=reason))
        else:
            says = {"worker": actor.name, "epoch": message.epoch, "took_s": 0.5, "losses": []}
            self.handle(messages.Replayed(**says, num_operations=6, num_bytes=100))


class Story:
    """Every public method is a command; what it is given are the words of the line."""

    def __init__(self) -> None:
        self._world: StoryWorld | None = None

    def do(self, line: str) -> list[str]:
        name, *words = shlex.split(line)
        act: Callable[..., None] | None = getattr(self, name, None)
        if act is None or name.startswith("_") or name == "do":
            raise BadStory(f"{line!r}: no such command")
        if self._world is not None:
            self._world.happened.clear()
        act(*words)
        self._there.pump()
        return lines_of(self._there.happened)

    @property
    def _there(self) -> StoryWorld:
        if self._world is None:
            raise BadStory("a story begins with start, or with open")
        return self._world

    def _actor(self, name: str) -> Actor:
        if name not in self._there.actors:
            raise BadStory(f"there is no worker {name}")
        return self._there.actors[name]

    # --- the run ---

    def open(self, shape: str, *words: str) -> None:
        """``2x2``, then settings as ``key=value``; ``paced``: reports tell of operations."""
        pipelines, stages = map(int, shape.split("x"))
        more: dict[str, Any] = {}
        if "paced" in words:
            more |= {"pace": Pace(), "planner": PromptPlanner(), "microbatches": 4 * pipelines}
        for word in words:
            key, _, value = word.partition("=")
            if key == "fault":
                more["faults"] = [*more.get("faults", ()), value]
            elif key in ("steps", "microbatches"):
                more[key] = int(value)
            elif word != "paced":
                set_value(more, *parse_assignment(word))
        self._world = StoryWorld(pipelines, stages, **more)

    def start(self, shape: str, *words: str) -> None:
        """Opened, and in the first step. ``by-agent``: an agent has started the workers."""
        self.open(shape, *(word for word in words if word != "by-agent"))
        self._there.start()
        for name in self._there.stages if "by-agent" in words else ():
            self._there.handle(messages.WorkerStarted(worker=name, pid=pid_of(name)))
        self._there.happened.clear()
        self.members()

    def members(self) -> None:
        world = self._there
        held = " ".join(f"{name}:{stage}" for name, stage in world.stages.items())
        phase = world.run.phase.name.lower()
        self._say(f"{phase}; members and their stages: {held or 'none'}")

    def interrupt(self) -> None:
        self._there.take(self._there.run.interrupt(self._there.at_s))

    # --- time ---

    def step(self, number: str = "1") -> None:
        self._there.step(int(number))

    def reduce(self, *names: str) -> None:
        """These end the running step; the others have not come so far."""
        for name in names:
            self._there.run_step(self._actor(name))

    def ran(self, name: str, number: str) -> None:
        """A worker has done so many operations of the running step."""
        self._actor(name)
        ops = " ".join(map(str, self._there.has_done(name, int(number))))
        self._say(f"{name} has done {ops}")

    def finish(self) -> None:
        self._there.finish()

    def tick(self, seconds: str) -> None:
        self._there.tick(float(seconds.removesuffix("s")))

    def nan(self, number: str = "1") -> None:
        """So many steps that all leave out."""
        world = self._there
        for _ in range(int(number)):
            for actor in world.live():
                losses = [(m, 1.0) for m in range(4)] if actor.stage == 1 else []
                actor.reduced += 1
                bad = {"skipped": True, "nonfinite": actor.stage == 1}
                world.handle(report(actor.name, actor.reduced - 1, losses, **bad))
            world.pump()

    # --- workers ---

    def join(self, name: str) -> None:
        """Its process says hello."""
        self._there.come(name)

    def kill(self, *names: str) -> None:
        for name in names:
            self._actor(name)
            self._there.die(name)

    def mute(self, name: str) -> None:
        """It lives, its heartbeats come, and it answers nothing."""
        self._actor(name).mute = True

    def unmute(self, name: str) -> None:
        self._actor(name).mute = False

    def freeze(self, name: str) -> None:
        """The process is stopped: nothing comes from it."""
        self._actor(name).mute = self._actor(name).silent = True

    def stick(self, name: str, operation: str) -> None:
        """It stays in an operation, and its heartbeats say so."""
        actor = self._actor(name)
        actor.operation, actor.number, actor.since_s = operation, 3, self._there.at_s
        actor.mute = True

    def usual(self, operation: str, seconds: str) -> None:
        """How long the longest operation of a kind takes, on all workers."""
        for actor in self._there.live():
            actor.longest = {operation: float(seconds.removesuffix("s"))}

    def slow(self, name: str, factor: str) -> None:
        """Operations take so many times as long; ``x1``: as before."""
        pace = self._there.pace
        if pace is None:
            raise BadStory("nobody can be slow: start with the word paced")
        pace.slow[name] = float(factor.removeprefix("x"))

    def lie(self, name: str, step: str) -> None:
        """It reports a step that cannot be; whoever talks to it hangs up, as the server does."""
        world = self._there
        try:
            world.handle(report(name, int(step)))
        except Implausible as why:
            self._say(f"refused: {why}")
            del world.actors[name]
            world.take(world.run.lost_connection(name, world.at_s))

    # --- what is on disk ---

    def checkpoint(self, *words: str) -> None:
        """Each stage writes its part; ``fails 1.0``: but for the part of this worker."""
        world, failing = self._there, words[1] if words[:1] == ("fails",) else ""
        step = max(actor.reduced for actor in world.live())
        writers = {stage: name for name, stage in sorted(world.stages.items(), reverse=True)}
        if failing:
            writers[world.stages[failing]] = failing
        for stage, name in sorted(writers.items()):
            if name == failing:
                world.handle(messages.PartFailed(worker=name, step=step, reason=FULL))
            else:
                world.part(name, stage, step)

    def log(self, _ends: str, _before: str, step: str) -> None:
        """``log ends before 5``: so far a stage can be replayed."""
        self._there.log_ends = int(step)

    def _say(self, line: str) -> None:
        self._there.happened.append(line)
