"""Runs whose lanes change all the time, whether anybody is slow or not; and runs with slow ones.

Who decides that lanes change is replaced here; how they change is the real thing.
"""

import random
from collections.abc import Sequence

from helpers.seed import SEED
from helpers.sweeps.chaos import Layout, Story
from holdfast.cluster import parse_worker
from holdfast.control.agenda import Agenda
from holdfast.control.join.moving import MoveOrder
from holdfast.detection.diagnosis import Health
from holdfast.faults.fault import FaultKind, parse_fault
from holdfast.observability.events import Diagnosed, MitigationChosen, PlanSwitched, WorkerLost

SPEEDS = (0.2, 0.4, 0.7, 1.0)
EMULATED = "device.emulate=F=4ms,B=4ms,W=4ms"


class Restless:
    """Whenever nothing else is under way, everyone is offered lanes for speeds drawn at random."""

    def __init__(self) -> None:
        self.dice = random.Random(SEED)
        self.num_offers = 0

    def watch(self, monkeypatch) -> None:
        monkeypatch.setattr(Agenda, "mitigate", lambda agenda, at_s: self._offer(agenda, at_s))

    def seed(self, text: str) -> None:
        self.dice, self.num_offers = random.Random(text), 0

    def _offer(self, agenda, at_s):
        run, parts, plans = agenda.run, agenda.parts, agenda.parts.plans
        if parts.joining.under_way or parts.moving.under_way or not run.times.steps_s:
            return []  # before the first step is done, some may not have begun it
        speeds = {worker: self.dice.choice(SPEEDS) for worker in run.stages}
        steady = plans.planned(plans.problem(run.stages, health=Health(speeds, {})))
        self.num_offers += 1
        return parts.switching.begin(steady, "restless", at_s)


class Swapping:
    """Whenever nothing else is under way, some workers of different stages change places."""

    def __init__(self) -> None:
        self.dice = random.Random(SEED)

    def watch(self, monkeypatch) -> None:
        monkeypatch.setattr(Agenda, "mitigate", lambda agenda, at_s: self._swap(agenda, at_s))

    def _swap(self, agenda, at_s):
        run, moving = agenda.run, agenda.parts.moving
        if agenda.parts.joining.under_way or moving.is_wanted or not run.times.steps_s:
            return []
        leaving = sorted(run.stages)
        self.dice.shuffle(leaving)
        leaving = leaving[: self.dice.choice((2, 2, 3))]
        stages = [run.stages[worker] for worker in leaving]
        if len(set(stages)) < 2:
            return []
        pairs = zip(leaving, [*stages[1:], stages[0]], strict=True)
        moving.order(MoveOrder(w, stage, "swapped") for w, stage in pairs if run.stages[w] != stage)
        return agenda.move(at_s)


def switches(story: Story, cause: str = "") -> list[PlanSwitched]:
    found = [event for event in story.outcome.events if isinstance(event, PlanSwitched)]
    return [event for event in found if cause in event.cause]


def diagnosed(story: Story) -> set[str]:
    return {event.subject for event in story.outcome.events if isinstance(event, Diagnosed)}


def actions(story: Story) -> list[str]:
    chosen = [event for event in story.outcome.events if isinstance(event, MitigationChosen)]
    return [event.action for event in chosen]


def assert_happened(story: Story) -> None:
    """Whoever dies with messages on the way to it may not be heard: then only the loss is told."""
    faults = [parse_fault(text) for text in story.faults]
    lost = {event.worker for event in story.outcome.events if isinstance(event, WorkerLost)}
    killed = {str(fault.worker) for fault in faults if fault.kind is FaultKind.KILL}
    assert killed <= lost, str(story)
    lasting = {str(fault) for fault in faults if fault.lasting is not None}
    assert lasting <= set(story.fired), str(story)


def draw_kills(dice: random.Random, layout: Layout, steps: Sequence[int], points: Sequence[str]):
    """A kill in each of the steps; every stage keeps a holder."""
    stages = [parse_worker(worker).stage for worker in layout.workers]
    left = {stage: stages.count(stage) for stage in set(stages)}
    alive, faults = list(layout.workers), []
    for step in steps:
        able = [worker for worker in alive if left[parse_worker(worker).stage] > 1]
        if able:
            victim = dice.choice(able)
            alive.remove(victim)
            left[parse_worker(victim).stage] -= 1
            faults.append(f"kill {victim} @ {step}.{dice.choice(points)}".removesuffix(".begin"))
    return faults
