"""A run that is to end early: with a checkpoint of the last whole step, and the reason."""

import pytest

from helpers.harness.coordinator_world import World, emitted, report, sent
from holdfast.control.io.entry.rights import MAY_SAY
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.protocol import messages


def skipped_step(world, *, nonfinite=(), loss=1.0, loss_scale=1.0):
    """Everyone reports that it has left the step out."""
    for actor in world.live():
        losses = [(m, loss) for m in range(4)] if actor.stage == 1 else []
        bad = actor.stage in nonfinite
        actor.reduced += 1
        told = {"skipped": True, "nonfinite": bad, "loss_scale": loss_scale}
        world.handle(report(actor.name, actor.reduced - 1, losses, **told))
    world.pump()


@pytest.mark.parametrize(
    ("nonfinite", "loss", "where"),
    [
        ((0,), 1.0, "first in the gradient of stage 0, which begins with layer 0"),
        ((0, 1), 1.0, "first in the gradient of stage 1, which begins with layer 3"),
        ((0, 1), float("nan"), "first in the loss"),
        ((), 1.0, "first in the norm"),
    ],
)
def test_nan_in_so_many_steps_in_a_row_ends_the_run_with_a_checkpoint(nonfinite, loss, where):
    world = World(gradients={"nonfinite_limit": 3}).start()
    world.step(2)
    for _ in range(3):
        skipped_step(world, nonfinite=nonfinite, loss=loss)
    assert sent(world.effects, messages.Proceed)["0.0"].end_step == 5
    assert world.run.over
    text = str(world.run.failure)
    assert text.startswith("NaN or Inf in all of steps 3 to 5, " + where)
    assert "lower the learning rate" in text
    assert world.run.failure.exit_code == 1


def test_one_such_step_ends_the_run_with_a_checkpoint_if_the_user_wants_that():
    world = World(gradients={"nonfinite": "stop", "nonfinite_limit": 0}).start()
    world.step(2)
    skipped_step(world, nonfinite=(1,))
    assert sent(world.effects, messages.Proceed)["0.0"].end_step == 3
    text = str(world.run.failure)
    assert text.startswith("NaN or Inf in step 3, first in the gradient of stage 1")
    assert "(gradients.nonfinite=stop)" in text


def nan_loss(world):
    """The step counts, but its loss is not a number."""
    for actor in world.live():
        losses = [(m, float("nan")) for m in range(4)] if actor.stage == 1 else []
        actor.reduced += 1
        world.handle(report(actor.name, actor.reduced - 1, losses))
    world.pump()


def test_a_loss_that_is_not_finite_counts_though_the_gradients_are():
    world = World(gradients={"nonfinite_limit": 3}).start()
    world.step(2)
    nan_loss(world)
    skipped_step(world)
    assert not world.run.over
    nan_loss(world)
    assert str(world.run.failure).startswith(
        "NaN or Inf in all of steps 3 to 5, first in the loss (gradients.nonfinite_limit=3)"
    )


def test_a_run_without_one_finite_loss_is_an_error_though_it_trained():
    world = World(steps=3).start()
    for _ in range(3):
        nan_loss(world)
    world.finish_each()
    world.pump()
    assert "NaN or Inf in all of steps 1 to 3, first in the loss: no loss was a number" in str(
        world.run.failure
    )


def test_a_row_that_was_too_long_ends_the_run_though_a_good_step_is_counted_before_it_is_asked():
    world = World(2, 2, gradients={"nonfinite_limit": 1}).start()
    for name, stage in world.stages.items():
        if name != "1.0":
            losses = [(m, 1.0) for m in range(4)] if stage == 1 else []
            world.handle(report(name, 0, losses, skipped=True))
            world.handle(report(name, 1, losses))
    assert not world.run.run.ending.early_since_s
    world.die("1.0")
    assert world.run.run.ending.is_early


def test_a_good_step_between_makes_it_no_row():
    world = World(gradients={"nonfinite_limit": 2}).start()
    for _ in range(4):
        skipped_step(world)
        world.step()
    assert not world.run.over


def test_with_limit_0_it_goes_on_but_a_run_that_trained_nothing_is_an_error():
    world = World(steps=12, gradients={"nonfinite_limit": 0}).start()
    for _ in range(11):
        skipped_step(world)
    assert not world.run.over
    skipped_step(world)
    world.finish_each()
    world.pump()
    assert "NaN or Inf in all of steps 1 to 12" in str(world.run.failure)
    assert "nothing was trained" in str(world.run.failure)


def test_a_loss_scale_that_can_be_halved_makes_no_row():
    world = World(gradients={"nonfinite_limit": 2}).start()
    for scale in (16.0, 8.0, 4.0, 2.0, 1.0):
        skipped_step(world, loss_scale=scale)
    assert not world.run.over
    skipped_step(world, loss_scale=1.0)
    assert "NaN or Inf in all of steps 5 to 6" in str(world.run.failure)


def test_a_loss_that_is_not_finite_counts_whatever_the_loss_scale_is():
    world = World(gradients={"nonfinite_limit": 2}).start()
    for _ in range(2):
        skipped_step(world, loss=float("inf"), loss_scale=16.0)
    assert "NaN or Inf in all of steps 1 to 2, first in the loss" in str(world.run.failure)


def failed(world, step, *, code=2, epoch=None, worker="0.0"):
    return messages.JobFailed(
        worker=worker,
        epoch=world.run.run.epoch if epoch is None else epoch,
        step=step,
        exit_code=code,
        reason="the data set X raised OSError for sample 7",
        details="Traceback",
    )


def test_when_the_job_raises_the_step_before_is_saved_and_the_run_ends():
    world = World().start()
    world.step(3)
    for actor in world.live():  # nobody can go on without the one that has failed
        actor.runs = False
    world.handle(failed(world, 3))
    world.part("0.0", 0, 3)
    world.part("0.1", 1, 3)
    world.pump()
    assert sent(world.effects, messages.Proceed)["1.1"].end_step == 3
    assert world.run.over
    assert str(world.run.failure).startswith("the data set X raised OSError for sample 7; all")
    assert "holdfast.resume('runs/x')" in str(world.run.failure)
    assert world.run.details == "Traceback"


def test_before_the_first_finished_step_there_is_nothing_to_save():
    world = World().start()
    world.handle(failed(world, 0))
    assert isinstance(world.run.failure, ConfigError)


def test_word_of_an_epoch_that_is_over_does_not_count():
    world = World().start()
    world.step(2)
    world.handle(failed(world, 2, epoch=0))
    assert not world.run.run.ending.is_early


def test_if_somebody_is_past_the_step_the_last_checkpoint_is_all_there_is():
    world = World().start()
    world.step(3)
    world.part("0.0", 0, 1)
    world.part("0.1", 1, 1)
    world.handle(failed(world, 2))
    world.pump()
    assert "sample 7" in str(world.run.failure)
    assert not emitted(world.effects, events.RunFinished)


def test_an_interrupted_run_whose_last_step_fails_ends_before_it():
    world = World().start()
    world.step(3)
    for actor in world.live():
        actor.runs = False
    world.take(world.run.interrupt(world.at_s))
    world.pump()
    world.handle(failed(world, 3))
    world.pump()
    assert str(world.run.failure).startswith("interrupted; ")


def test_whatever_the_coordinator_understands_somebody_may_say():
    handled = set(World().run.understands)
    assert handled - {kind for kinds in MAY_SAY.values() for kind in kinds} == set()


# --- what is said at a fatal end ---


def saved_step_3(world):
    world.step(3)
    world.part("0.0", 0, 3)
    world.part("0.1", 1, 3)


def test_a_job_that_raises_right_after_a_checkpoint_says_how_to_go_on_from_it():
    world = World().start()
    saved_step_3(world)
    world.handle(failed(world, 3))
    assert isinstance(world.run.failure, ConfigError)
    assert str(world.run.failure) == (
        "the data set X raised OSError for sample 7; all workers were stopped. "
        "Go on from the last checkpoint with: holdfast.resume('runs/x')"
    )


def test_a_job_that_raises_before_any_checkpoint_says_only_what_it_raised():
    world = World().start()
    world.handle(failed(world, 0))
    assert str(world.run.failure) == "the data set X raised OSError for sample 7"


def worker_failed(worker="0.1", code=1):
    return messages.Failed(
        worker=worker, lost="", exit_code=code, reason="RuntimeError: step", details="Traceback"
    )


@pytest.mark.parametrize(("code", "who"), [(1, "worker 0.1: "), (2, "")])
def test_a_worker_that_fails_after_a_checkpoint_says_how_to_go_on_from_it(code, who):
    world = World().start()
    saved_step_3(world)
    world.step()
    world.handle(worker_failed(code=code))
    why = str(world.run.failure)
    assert why.startswith(f"{who}RuntimeError: step; all workers were stopped. Go on from the last")
    assert "holdfast.resume('runs/x')" in why
    assert world.run.failure.exit_code == code


def test_a_worker_that_fails_while_the_run_starts_gets_no_advice():
    world = World()
    world.come("0.0")
    world.handle(worker_failed("0.0", code=2))
    assert str(world.run.failure) == "RuntimeError: step"
