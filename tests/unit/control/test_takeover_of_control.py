"""The coordinator may die at any message and timer: a successor goes on in the same step."""

import pytest

from helpers.harness.coordinator_world import SomePlan, emitted
from helpers.harness.mortal_world import MortalWorld
from helpers.wide import every
from holdfast.control.state.lifecycle import RunPhase
from holdfast.observability import events

STEPS = 14


def lives_on(world: MortalWorld) -> None:
    """A checkpoint, a death, a join and a switch of lanes."""
    world.start()
    world.step(2)
    save(world)
    world.step()
    if "1.0" in world.actors:
        world.die("1.0")
    world.step(2)
    world.planner.found = SomePlan(world.planner.asked[-1], 0.5, "cleverer", 1)
    world.step(2)
    if "1.0" not in world.actors:
        world.come("1.0")
    world.pump()
    world.step(4)
    save(world)
    world.finish()


def save(world: MortalWorld) -> None:
    step = min(actor.reduced for actor in world.live())
    writers = {stage: name for name, stage in sorted(world.stages.items(), reverse=True)}
    for stage, name in sorted(writers.items()):
        world.part(name, stage, step)
    world.pump()


def undisturbed() -> MortalWorld:
    world = MortalWorld(2, 2, steps=STEPS)
    lives_on(world)
    return world


CALM = undisturbed()


def assert_well(world: MortalWorld) -> None:
    assert world.run.phase is RunPhase.FINISHED, world.run.failure
    assert sorted(set(world.finished_steps)) == world.finished_steps == list(range(STEPS))
    assert not emitted(world.effects, events.WentBack)
    assert not emitted(world.effects, events.RunFailed)


def test_the_calm_run_writes_down_little_and_has_all_that_is_to_be_survived():
    assert_well(CALM)
    assert CALM.num_stimuli > 150
    assert len(CALM.records) < CALM.num_stimuli / 4
    assert emitted(CALM.effects, events.WorkerJoined)
    assert emitted(CALM.effects, events.PlanSwitched)


@pytest.mark.parametrize("dies_at", every(12, range(9, CALM.num_stimuli - 1)))
def test_it_may_die_at_any_stimulus(dies_at):
    world = MortalWorld(2, 2, steps=STEPS, dies_at=[dies_at])
    lives_on(world)
    assert world.num_died == 1
    assert_well(world)
