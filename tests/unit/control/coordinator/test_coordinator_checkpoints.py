"""Parts that cannot be written, replicas that differ, directories that nobody was given."""

from dataclasses import replace

import pytest

from helpers.harness.coordinator_world import World, emitted, part, seals, sent, state_hashes
from holdfast.control.effects import Discard
from holdfast.control.state.lifecycle import RunPhase
from holdfast.observability import events
from holdfast.protocol import messages

FULL = "No space left on device"


def failed(world: World, worker: str, step: int):
    return world.handle(messages.PartFailed(worker=worker, step=step, reason=FULL))


def in_step_10(pipelines: int = 2, **more) -> World:
    world = World(pipelines, 2, **more).start()
    world.step(10)
    return world


# --- names ---


@pytest.mark.parametrize(
    "directory", ["/etc", "../../x", "stage-0", "stage-0.00000000", "", "stage-1.0a1b2c3d"]
)
def test_s3_only_the_directory_that_a_worker_was_given_counts(directory) -> None:
    world = in_step_10()
    world.part("0.1", 1, 10)
    assert seals(world.part("0.0", 0, 10, directory=directory)) == []
    assert seals(world.part("0.0", 0, 10)) == [10]


def test_s3_nor_does_that_of_another_worker_or_other_layers() -> None:
    world = in_step_10()
    world.part("0.1", 1, 10)
    other = part(world, "1.0", 0, 10).directory
    assert seals(world.part("0.0", 0, 10, directory=other)) == []
    assert seals(world.part("0.0", 0, 10, layers=[0, 1, 2, 3])) == []
    assert seals(world.part("0.0", 0, 10)) == [10]


def test_s3_every_assignment_has_a_directory_of_its_own() -> None:
    world = in_step_10()
    assert len(world.run.run.assignments.parts) == 4
    assert {stage for _, stage in world.run.run.assignments.parts.values()} == {0, 1}


# --- replicas ---


def test_r7_a_checkpoint_is_sealed_when_every_holder_has_said_what_it_has() -> None:
    world = in_step_10()
    world.part("0.1", 1, 10)
    assert seals(world.handle(part(world, "0.0", 0, 10))) == []
    assert seals(world.handle(state_hashes(world, "1.0", 0, 10))) == [10]


def test_r7_nobody_waits_for_one_that_is_past_it_or_gone() -> None:
    world = in_step_10()
    world.part("0.1", 1, 10)
    world.handle(part(world, "0.0", 0, 10))
    assert seals(world.step()) == [10]  # 1.0 has come later, and has begun with that step
    world.part("0.1", 1, 11)
    world.handle(part(world, "0.0", 0, 11))
    assert seals([*world.die("1.0"), *world.pump()]) == [11]


def test_r7_replicas_that_differ_end_the_run_and_nothing_is_sealed() -> None:
    world = in_step_10(3)
    for name in ("0.1", "1.1", "2.1"):
        world.handle(state_hashes(world, name, 1, 10))
    world.handle(state_hashes(world, "1.0", 0, 10, **{"2": "another"}))
    world.handle(state_hashes(world, "2.0", 0, 10))
    assert world.run.phase is RunPhase.FAILED
    why = str(world.run.failure)
    assert "after step 10 layer 2 of stage 0 differs between workers 1.0 and 2.0" in why
    assert "it was not saved" in why
    assert seals([*world.part("0.0", 0, 10), *world.part("0.1", 1, 10)]) == []


def test_r7_so_does_a_replica_that_differs_from_what_is_written() -> None:
    world = in_step_10(3)
    world.handle(state_hashes(world, "1.0", 0, 10))
    world.handle(state_hashes(world, "2.0", 0, 10))
    values = part(world, "0.0", 0, 10)
    world.handle(replace(values, hashes={**values.hashes, "1": "another"}))
    assert "layer 1 of stage 0 differs between workers 0.0 and 1.0" in str(world.run.failure)


def test_r7_other_bits_of_another_version_are_no_difference() -> None:
    world = in_step_10()
    world.part("0.0", 0, 10)
    world.part("0.1", 1, 10)
    world.step()
    world.part("0.0", 0, 11)
    assert seals(world.part("0.1", 1, 11)) == [11]
    assert not world.run.over


# --- parts that cannot be written ---


def test_r6_a_part_that_fails_is_asked_of_another_holder_a_little_later() -> None:
    world = in_step_10()
    world.part("0.1", 1, 10)
    effects = failed(world, "0.0", 10)
    (told,) = emitted(effects, events.CheckpointFailed)
    assert (told.step, told.worker, told.reason) == (10, "0.0", FULL)
    assert (told.next_writer, told.newest) == ("1.0", -1)
    orders = sent(effects, messages.SaveOnce)
    assert set(orders) == {"0.0", "0.1", "1.0", "1.1"}
    assert len(set(map(str, orders.values()))) == 1
    assert orders["0.0"].writers == {0: "1.0"}
    later = orders["0.0"].step
    assert later >= 12, "nobody has come so far yet"
    assert [e.directory for e in effects if isinstance(e, Discard)] == [
        "runs/x/checkpoints/step-00000010.partial"
    ]
    world.step(later - 10)
    world.part("0.1", 1, later)
    assert seals(world.part("1.0", 0, later)) == [later]
    assert not world.run.over


def test_r6_when_all_holders_fail_it_is_skipped_and_the_next_one_tried_by_the_first() -> None:
    world = in_step_10()
    failed(world, "0.0", 10)
    effects = failed(world, "1.0", 13)
    (told,) = emitted(effects, events.CheckpointFailed)
    assert (told.step, told.next_writer) == (13, "")
    assert not sent(effects, messages.SaveOnce)
    assert world.run.phase is RunPhase.TRAINING
    effects = failed(world, "0.0", 18)
    assert sent(effects, messages.SaveOnce)["1.0"].writers == {0: "1.0"}


def test_r6_two_stages_that_fail_at_once_are_saved_together_and_told_once() -> None:
    world = in_step_10()
    effects = [*failed(world, "0.0", 10), *failed(world, "0.1", 10)]
    assert len(emitted(effects, events.CheckpointFailed)) == 1
    assert sent(effects, messages.SaveOnce)["1.1"].writers == {0: "1.0", 1: "1.1"}


def at_the_end(**more) -> World:
    world = World(2, 2, steps=10, **more).start()
    world.step(9)
    for actor in world.live():
        world.run_step(actor)
    return world


def test_r6_the_last_part_is_written_by_another_holder_before_the_run_ends() -> None:
    world = at_the_end()
    world.part("0.1", 1, 10)
    effects = failed(world, "0.0", 10)
    world.step()
    assert world.run.phase is RunPhase.TRAINING
    assert sent(effects, messages.SaveOnce)["1.0"].step == 10
    assert not [effect for effect in effects if isinstance(effect, Discard)]
    assert seals(world.part("1.0", 0, 10)) == [10]
    assert world.run.phase is RunPhase.FINISHED


def test_r6_a_run_whose_last_checkpoint_cannot_be_written_ends_with_what_to_do() -> None:
    world = at_the_end()
    world.part("0.1", 1, 10)
    failed(world, "0.0", 10)
    world.step()
    failed(world, "1.0", 10)
    world.pump()
    assert world.run.phase is RunPhase.FAILED
    why = str(world.run.failure)
    assert f"the last checkpoint, of step 10, could not be written (worker 1.0: {FULL})" in why
    assert "Make room in runs/x" in why
    assert world.run.failure.exit_code == 1


def test_r6_without_a_checkpoint_at_the_end_an_earlier_failure_does_not_matter() -> None:
    world = World(2, 2, steps=10, checkpoint={"at_end": False}).start()
    world.step(5)
    failed(world, "0.0", 5)
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


# --- sealing ---


def test_r6_a_seal_that_fails_is_tried_again_and_nothing_is_trimmed_before() -> None:
    world = in_step_10(recovery={"log": "boundary"})
    world.seal_error = FULL
    world.part("0.1", 1, 10)
    effects = world.part("0.0", 0, 10)
    assert seals(effects) == [10]
    assert not sent(effects, messages.Sealed)
    assert world.run.run.saved.sealed is None
    world.seal_error = ""
    effects = world.tick(1.2)
    assert seals(effects) == [10]
    assert sent(effects, messages.Sealed)["1.0"].step == 10
    assert world.run.run.saved.sealed == 10


def test_r6_a_seal_that_fails_again_and_again_is_skipped_and_training_goes_on() -> None:
    world = in_step_10()
    world.seal_error = FULL
    world.part("0.1", 1, 10)
    world.part("0.0", 0, 10)
    effects = world.tick(20.0)
    (told,) = emitted(effects, events.CheckpointFailed)
    assert (told.step, told.worker, told.reason) == (10, "", FULL)
    assert world.run.phase is RunPhase.TRAINING
    assert world.run.run.saved.sealed is None
    world.seal_error = ""
    world.step()
    world.part("0.1", 1, 11)
    assert seals(world.part("0.0", 0, 11)) == [11]


def test_r6_the_run_does_not_end_before_its_last_checkpoint_is_sealed() -> None:
    world = at_the_end()
    world.seal_error = FULL
    world.part("0.1", 1, 10)
    world.part("0.0", 0, 10)
    world.step()
    assert world.run.phase is RunPhase.TRAINING
    world.seal_error = ""
    world.tick(1.2)
    assert world.run.phase is RunPhase.FINISHED
