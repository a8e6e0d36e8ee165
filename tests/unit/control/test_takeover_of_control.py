"""The coordinator may die at any message and timer: a successor goes on in the same step."""

import json
from dataclasses import replace

import pytest

from helpers.harness.coordinator_world import SomePlan, emitted
from helpers.harness.mortal_world import MortalWorld, reattach
from helpers.wide import every
from holdfast.control.effects import Fence
from holdfast.control.io.succession.run_journal import RunFacts, RunJournal, left_behind
from holdfast.control.io.succession.signs import Signs
from holdfast.control.journal.file_journal import FileJournal
from holdfast.control.state.lifecycle import RunPhase
from holdfast.observability import events
from holdfast.protocol import messages

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


# --- it dies when all is done ---


def test_a_finished_run_stays_finished_and_whoever_does_not_know_it_is_told():
    successor = undisturbed().successor()
    signs = Signs(successor)
    assert successor.phase is RunPhase.FINISHED
    for name in ("0.0", "0.1", "1.0", "1.1"):
        assert signs.awaited
        answer = signs.answer(reattach(name), is_new=False)
        assert isinstance(answer, messages.Stop)
        assert answer.is_over
    assert not signs.awaited


def test_a_finished_run_is_left_behind_until_everyone_was_told(tmp_path):
    journal = FileJournal(tmp_path, "a test")
    kept = RunJournal(journal, RunFacts(1, {}, "job", "0", "", []), print, waits=False)
    kept.lead(1)
    kept.write(json.loads(CALM.records[-1]))
    left = left_behind(journal)
    assert left is not None
    assert left.snapshot.phase == "FINISHED"
    kept.end()
    assert left_behind(journal) is None
    kept.close()


# --- it stands still itself ---


@pytest.mark.parametrize("looks_before", [False, True])
def test_a_pause_of_the_successor_is_nobodys_silence(looks_before):
    """Whatever it says first after it has taken over is said too late."""
    world = MortalWorld(2, 2, steps=STEPS)
    world.start()
    world.step(3)
    first = len(world.effects)
    world.take_over()
    if looks_before:
        world.take(world.run.tick(world.at_s))
    world.at_s += 30.0
    world.take(world.run.tick(world.at_s))
    assert not any(isinstance(effect, Fence) for effect in world.effects[first:])
    assert len(world.stages) == 4


def test_steps_that_are_told_at_once_say_nothing_of_how_long_steps_take():
    """Limits are taken from it: workers would be lost for a moment's silence."""
    world = MortalWorld(2, 2, steps=STEPS)
    world.start()
    world.step(6)
    del world.finished_steps[1:]  # nobody has written down that they are finished
    world.take_over()
    world.pump()
    world.step(3)
    assert world.finished_steps == list(range(9))
    assert min(world.run.run.times.steps_s) > 0.05


# --- whoever comes back under a name that is waited for ---


@pytest.mark.parametrize(
    ("epoch", "building", "answer"),
    [(0, 0, messages.SayHello), (1, 0, messages.Begone), (0, 1, messages.Begone)],
)
def test_only_one_that_was_never_given_work_is_taken_for_a_new_one(epoch, building, answer):
    """Found by the hunt: another would go on training what it was told before the partition."""
    world = MortalWorld(2, 2, steps=STEPS, faults=["join 1.0 @ 3"])
    world.start()
    world.die("1.0")
    world.pump()
    world.step(4)  # somebody is asked to come in its place
    signs = Signs(world.successor())
    told = replace(reattach("1.0", building), epoch=epoch)
    assert isinstance(signs.answer(told, is_new=True), answer)
