"""A coordinator among scripted workers that dies at a given stimulus, and its successor.

Of what the last stimulus led to only a part is done; what was on its way to a worker may be lost.
The successor knows what was written down, what is on disk, and what workers tell it.
"""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from helpers.harness.coordinator_world import NUM_LAYERS, Actor, pid_of
from helpers.story_world import StoryWorld
from holdfast.baselines.registry import policies_of
from holdfast.cluster import parse_worker
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Effect, Emit, SealCheckpoint, WriteDown
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.control.takeover.remembering import Former
from holdfast.control.takeover.snapshot import from_record
from holdfast.faults.fault import parse_fault
from holdfast.observability import events
from holdfast.protocol import messages

TOLD_AGAIN = (
    messages.StepReport,
    messages.CheckpointPart,
    messages.PartFailed,
    messages.StateHashes,
    messages.FaultReport,
    messages.LogVolume,
)


def reattach(name: str, building: int = 0) -> messages.Reattach:
    return messages.Reattach(
        worker=name, pid=pid_of(name), host="h", port=1, epoch=0, building=building
    )


class MortalWorld(StoryWorld):
    """``dies_at``: number of the stimulus that is its last; several: of its successors, too."""

    def __init__(
        self, *shape: int, dies_at: Sequence[int] = (), seed: int = 0, **more: Any
    ) -> None:
        self._faults = [parse_fault(text) for text in more.get("faults", ())]
        given = {"journalled": True, "run_id": "ab", **more.pop("given", {})}
        super().__init__(*shape, given=dict(given), **more)
        self._given = given
        self.dies_at, self.num_stimuli, self.num_died = dies_at, 0, 0
        self._dice = random.Random(f"{dies_at}-{seed}")
        self.records: list[str] = []
        self.finished_steps: list[int] = []
        self.sealed: int | None = None
        self._said: defaultdict[str, list[messages.Message]] = defaultdict(list)
        self._by_agent: list[messages.Message] = []  # that was told, and may not have been heard

    def handle(self, message: messages.Message) -> list[Effect]:
        if isinstance(message, TOLD_AGAIN):
            self._said[message.worker].append(message)
        if isinstance(message, messages.WorkerExited):
            self._by_agent.append(message)
        return super().handle(message)

    def come(self, name: str, **changes: Any) -> list[Effect]:
        self._said.pop(name, None)
        hashes = [f"{number:032x}" for number in range(NUM_LAYERS)]
        return super().come(name, **({"layer_hashes": hashes} | changes))

    def beat(self, name: str, done: int = 0) -> list[Effect]:
        """It may have had to begin anew since it was its turn."""
        return super().beat(name, done) if name in self.actors else []

    def take(self, effects: list[Effect]) -> list[Effect]:
        self.num_stimuli += 1
        is_last = self.num_stimuli in self.dies_at and not self.run.over
        if not is_last or self.run.starting or not self.records:
            return self._carry_out(effects)
        self.num_died += 1
        done = self._carry_out(effects[: self._dice.randint(0, len(effects))])
        self._by_agent = self._by_agent[-1:]
        return [*done, *self.take_over()]

    def _carry_out(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            match effect:
                case WriteDown():
                    self.records.append(json.dumps(effect.record))
                case SealCheckpoint():
                    self.sealed = effect.step
                case Emit(event=events.StepFinished(step=step)):
                    self.finished_steps.append(step)
        return super().take(effects)

    def take_over(self) -> list[Effect]:
        """Nobody hears of it but by coming back."""
        first = len(self.effects)
        self.run = self.successor()
        assert self.run.phase is RunPhase.REGAINING
        for actor in self.live():
            kept = self._dice.randint(0, len(actor.inbox))
            del actor.inbox[kept:]  # was on its way
        for message in self._by_agent:
            super().handle(message)
        actors = self.live()
        self._dice.shuffle(actors)
        for actor in actors:
            if not actor.silent and self.actors.get(actor.name) is actor:
                self._come_back(actor)
        return self.effects[first:]

    def successor(self) -> Coordinator:
        config = self.run.run.config
        return Coordinator(
            config,
            "runs/x",
            None,
            policies=policies_of(config),
            planner=self.planner,
            faults=self._faults,
            former=self._former(),
            **self._given,
        )

    def _former(self) -> Former:
        snapshot = from_record(json.loads(self.records[-1]))
        assert snapshot.phase != "FAILED"
        last = max(self.finished_steps, default=-1)
        return Former(snapshot, last + 1, self.sealed, self.at_s)

    def _come_back(self, actor: Actor) -> None:
        builds = sum(isinstance(message, messages.Assign) for message in actor.inbox)
        told = reattach(actor.name, builds)
        if self.run.regaining.awaits(told):
            super().handle(told)
            for message in list(self._said[actor.name]):
                super().handle(message)
            return
        phase = self.run.run.membership.phase(parse_worker(actor.name))
        del self.actors[actor.name]
        if phase in (WorkerPhase.STARTING, WorkerPhase.LOST, WorkerPhase.ABSENT):
            self.come(actor.name)  # as a joiner
