"""Too few are left: workers are started again. And what a loss means in the published modes."""

import random

import pytest

from helpers.harness.coordinator_world import World, emitted, much_happens, pid_of, sent
from holdfast.baselines.save_interval import interval
from holdfast.cluster import WorkerId, parse_worker
from holdfast.control.effects import Fence, StartWorker
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.errors import ConfigError, Implausible
from holdfast.observability import events
from holdfast.protocol import messages


def started(effects) -> list[str]:
    return [str(effect.worker) for effect in effects if isinstance(effect, StartWorker)]


def save(world: World, step: int) -> None:
    for stage in range(world.run.run.shape.stages):
        world.part(f"0.{stage}", stage, step)


def lose(world: World, name: str):
    """It dies, and all that follows from it happens, but for those who are to come."""
    effects = world.die(name)
    return [*effects, *world.pump(), *world.tick(0.4), *world.pump()]


# --- started again because too few are left ---


def test_a_lost_worker_is_started_again_when_nobody_else_can_hold_its_stage() -> None:
    world = World(1).start()
    world.step(5)
    save(world, 4)
    effects = lose(world, "0.1")
    assert started(effects) == ["0.1"]
    (back,) = emitted(effects, events.WentBack)
    assert back.to_step == 4
    assert "1 worker goes on, 1 started again" in back.reason
    assert world.run.phase is RunPhase.RETURNING
    assigned = sent(world.come("0.1"), messages.Assign)
    assert {n: (a.stage, a.first_step) for n, a in assigned.items()} == {"0.1": (1, 4)}
    world.pump()
    assert world.stages == {"0.0": 0, "0.1": 1}
    done = [e.step for e in emitted(world.finish(), events.StepFinished)]
    assert done == list(range(4, 20))


def test_the_survivors_build_while_the_new_one_starts() -> None:
    world = World(1, 3).start()
    assert set(sent(lose(world, "0.1"), messages.Assign)) == {"0.0", "0.2"}
    assert not sent(world.effects[-3:], messages.Proceed)
    world.come("0.1")
    assert set(sent(world.pump(), messages.Proceed)) == {"0.0", "0.1", "0.2"}


def test_when_nobody_is_left_a_worker_for_every_stage_is_started() -> None:
    world = World(2).start()
    for name in ("0.0", "0.1", "1.0", "1.1"):
        world.die(name)
    effects = world.tick(1.0)
    assert len(started(effects)) == 2
    for name in started(effects):
        world.come(name)
    world.pump()
    assert sorted(world.stages.values()) == [0, 1]
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_with_restarts_0_nobody_is_started_again() -> None:
    world = World(1, workers={"restarts": 0}).start()
    assert not started(lose(world, "0.1"))
    assert world.run.phase is RunPhase.FAILED
    assert "started again" not in str(world.run.failure)


def test_after_restarts_in_a_row_without_a_new_step_the_run_ends_and_says_so() -> None:
    world = World(1, workers={"restarts": 2}).start()
    world.step(3)
    for _ in range(2):
        assert started(lose(world, "0.1")) == ["0.1"]
        world.come("0.1")
        world.pump()
        world.step(2)  # these were finished before: they are nothing new
    assert started(lose(world, "0.1")) == []
    assert world.run.phase is RunPhase.FAILED
    why = str(world.run.failure)
    assert "1 live worker cannot hold 2 stages" in why
    assert "started again 2 times in a row (workers.restarts=2)" in why


def test_a_step_that_was_never_finished_before_makes_all_restarts_available_again() -> None:
    world = World(1, workers={"restarts": 1}).start()
    for num_steps in (2, 3, 4):  # each time from the beginning
        world.step(num_steps)
        assert started(lose(world, "0.1")) == ["0.1"]
        world.come("0.1")
        world.pump()
    assert world.run.phase is RunPhase.TRAINING


def test_one_that_ends_before_it_says_hello_is_started_once_more() -> None:
    world = World(1, workers={"restarts": 2}).start()
    lose(world, "0.1")
    exited = messages.WorkerExited(worker="0.1", pid=77, how="exit code 1")
    world.handle(messages.WorkerStarted(worker="0.1", pid=77))
    assert started(world.handle(exited)) == ["0.1"]
    world.handle(messages.WorkerStarted(worker="0.1", pid=78))
    world.handle(messages.WorkerExited(worker="0.1", pid=78, how="exit code 1"))
    assert world.run.phase is RunPhase.FAILED


def test_one_that_the_machine_has_no_room_for_is_tried_again_within_the_limit() -> None:
    world = World(1, workers={"restarts": 2}).start()
    lose(world, "0.1")
    refused = messages.WorkerNotStarted(worker="0.1", reason="Resource temporarily unavailable")
    assert started(world.handle(refused)) == ["0.1"]
    world.handle(refused)
    assert world.run.phase is RunPhase.FAILED
    assert "(workers.restarts=2) in vain" in str(world.run.failure)
    causes = [failed.reason for failed in emitted(world.effects, events.JoinFailed)]
    assert causes == ["could not be started: Resource temporarily unavailable"]  # then it ended


def test_two_that_are_started_together_count_as_one_time() -> None:
    world = World(1, 3, workers={"restarts": 1}).start()
    world.die("0.1")
    assert sorted(started(lose(world, "0.2"))) == ["0.1", "0.2"]
    for name in ("0.1", "0.2"):
        world.come(name)
    world.pump()
    assert world.stages == {"0.0": 0, "0.1": 1, "0.2": 2}


def test_a_death_while_too_few_build_is_made_up_for_as_well() -> None:
    world = World(1, 2).start()
    lose(world, "0.1")
    effects = world.die("0.0")
    assert started(effects) == ["0.0"]
    for name in ("0.0", "0.1"):
        world.come(name)
    world.pump()
    assert sorted(world.stages.values()) == [0, 1]
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_worker_that_comes_by_itself_is_used_before_another_is_started() -> None:
    world = World().start()
    for name in ("0.1", "1.0", "1.1"):
        world.die(name)
    world.come("1.1")
    effects = [*world.pump(), *world.tick(1.0), *world.pump()]
    assert started(effects) == []
    assert sorted(world.stages.values()) == [0, 1]


def test_a_worker_is_not_started_again_while_others_can_hold_its_stage() -> None:
    world = World().start()
    assert started(lose(world, "1.0")) == []


# --- mode global: a loss ends everyone ---

GLOBAL = {"recovery": {"mode": "global"}}
ALL = ["0.0", "0.1", "1.0", "1.1"]


def come_all(world: World, names=tuple(ALL)) -> None:
    for name in names:
        world.come(name)


@pytest.mark.parametrize("mode", ["global", "checkfreq"])
def test_a_loss_ends_all_workers_and_all_are_started_again(mode) -> None:
    world = World(recovery={"mode": mode}).start()
    world.step(5)
    save(world, 4)
    effects = world.die("1.0")
    stops = sent(effects, messages.Stop)
    assert set(stops) == {"0.0", "0.1", "1.1"}
    fenced = {str(effect.worker) for effect in effects if isinstance(effect, Fence)}
    assert fenced == set(ALL)
    assert not sent(effects, messages.Halt)
    world.pump()
    effects = world.tick(0.4)
    assert started(effects) == ALL
    (back,) = emitted(effects, events.WentBack)
    assert (back.to_step, back.lost_stage) == (4, 0)
    assert f"recovery.mode={mode}" in back.reason
    come_all(world)
    world.pump()
    assert world.stages == {"0.0": 0, "0.1": 1, "1.0": 0, "1.1": 1}
    proceed = world.last_proceed
    assert (proceed.first_step, proceed.running) == (4, [])
    done = [e.step for e in emitted(world.finish(), events.StepFinished)]
    assert done == list(range(4, 20))
    assert [e.cause for e in emitted(world.effects, events.Recovered)] == ["death"]


def test_what_the_ended_had_still_said_counts() -> None:
    """A part of a checkpoint that was on its way when its writer was ended."""
    world = World(**GLOBAL).start()
    world.step(5)
    world.part("0.0", 0, 4)
    del world.actors["1.0"]  # the first notice says how it has ended: nothing more is awaited
    exited = messages.WorkerExited(worker="1.0", pid=pid_of("1.0"), how="signal SIGKILL")
    assert not started(world.handle(exited))
    world.part("0.1", 1, 4)
    (back,) = emitted(world.tick(0.4), events.WentBack)
    assert back.to_step == 4


def test_the_last_word_of_the_ended_is_not_that_of_the_next_of_its_name() -> None:
    """Found by the hunt: that it had built what it was given ended the run."""
    world = World(**GLOBAL).start()
    world.die("1.0")
    world.pump()
    world.tick(0.4)
    come_all(world, ALL[:2])
    world.die("0.1")
    with pytest.raises(Implausible, match="it was given no stage to build"):
        world.handle(messages.Ready(worker="0.0"))
    assert world.run.failure is None


def test_training_waits_for_the_whole_crew() -> None:
    world = World(**GLOBAL).start()
    world.die("1.0")
    world.pump()
    world.tick(0.4)
    come_all(world, ALL[:3])
    assert not sent(world.pump(), messages.Proceed)
    world.come("1.1")
    assert set(sent(world.pump(), messages.Proceed)) == set(ALL)


def test_the_end_of_the_processes_that_were_ended_is_no_loss() -> None:
    world = World(**GLOBAL).start()
    world.die("1.0")
    world.pump()
    world.tick(0.4)
    for name in ("0.0", "0.1", "1.1"):
        world.handle(messages.WorkerExited(worker=name, pid=pid_of(name), how="exit code 0"))
    assert [world.phase(name) for name in ALL] == [WorkerPhase.STARTING] * 4
    assert [e.worker for e in emitted(world.effects, events.WorkerLost)] == ["1.0"]


def test_one_that_does_not_start_ends_the_others_and_all_start_once_more() -> None:
    world = World(**GLOBAL, workers={"restarts": 2}).start()
    world.die("1.0")
    world.pump()
    world.tick(0.4)
    come_all(world, ALL[:3])
    world.pump()
    world.handle(messages.WorkerStarted(worker="1.1", pid=88))
    effects = world.handle(messages.WorkerExited(worker="1.1", pid=88, how="exit code 1"))
    assert set(sent(effects, messages.Stop)) >= {"0.0", "0.1", "1.0"}
    assert started(effects) == ALL
    come_all(world)
    world.pump()
    assert len(world.stages) == 4


def test_a_crew_that_never_gets_further_is_given_up() -> None:
    world = World(**GLOBAL, workers={"restarts": 2}).start()
    for _ in range(2):
        world.die("1.0")
        world.pump()
        assert started(world.tick(0.4)) == ALL
        come_all(world)
        world.pump()
    world.die("1.0")
    world.pump()
    world.tick(0.4)
    assert world.run.phase is RunPhase.FAILED
    assert "started again 2 times in a row" in str(world.run.failure)


@pytest.mark.parametrize("mode", ["global", "checkfreq"])
def test_modes_that_start_everyone_again_need_restarts(mode) -> None:
    with pytest.raises(ConfigError, match=r"workers\.restarts=0: must be at least 1"):
        World(recovery={"mode": mode}, workers={"restarts": 0})


def test_who_is_frozen_when_all_end_is_replaced_and_its_end_later_is_no_news() -> None:
    world = World(**GLOBAL).start()
    world.actors["1.0"].silent = world.actors["1.0"].mute = True
    world.tick(10.5)
    world.pump()
    world.tick(0.4)
    come_all(world)
    world.pump()
    assert len(world.stages) == 4
    world.handle(messages.WorkerExited(worker="1.0", pid=pid_of("1.0") + 1, how="signal SIGKILL"))
    assert len(world.stages) == 4


# --- mode commit: all go back to a copy in memory ---

COMMIT = {"recovery": {"mode": "commit"}}


def test_after_a_loss_all_go_back_to_the_newest_copy_that_every_member_has() -> None:
    world = World(**COMMIT).start()
    world.step(5)
    world.die("1.0")
    for name, commits in (("0.0", [4, 5]), ("0.1", [3, 4]), ("1.1", [4, 5])):
        effects = world.tell(name, commits=commits)
    assert {name: r.version for name, r in sent(effects, messages.Restore).items()} == {
        "0.0": 4,
        "0.1": 4,
        "1.1": 4,
    }
    kinds = [type(e.message) for e in effects if getattr(e, "to", None) == parse_worker("0.0")]
    assert kinds == [messages.Restore, messages.Proceed]
    proceed = sent(effects, messages.Proceed)["0.0"]
    assert (proceed.first_step, proceed.running, proceed.verdicts) == (4, [], {})
    assert proceed.stages == {"0.0": 0, "0.1": 1, "1.1": 1}
    (back,) = emitted(effects, events.WentBack)
    assert (back.to_step, back.checkpoint) == (4, "")


def test_steps_since_the_copy_are_finished_again_with_fewer() -> None:
    world = World(**COMMIT).start()
    world.step(5)
    for actor in world.live():
        actor.mute = True
    world.die("1.0")
    for actor in world.live():
        actor.inbox.clear()
        actor.mute = False
    for name in ("0.0", "0.1", "1.1"):
        world.tell(name, commits=[3])
    world.pump()
    done = [e.step for e in emitted(world.finish(), events.StepFinished)]
    assert done == list(range(3, 20))
    assert world.run.phase is RunPhase.FINISHED
    (recovered,) = emitted(world.effects, events.Recovered)
    assert recovered.members == 3


@pytest.mark.parametrize("version", [4, 5])
def test_work_that_is_thrown_away_counts_as_redone(version) -> None:
    world = World(**COMMIT).start()
    world.step(5)
    world.die("1.0")
    for name in ("0.0", "0.1", "1.1"):
        world.tell(name, commits=[version], done=3)
    for actor in world.live():
        actor.inbox.clear()
        world.handle(messages.Resumed(worker=actor.name, epoch=2, at_s=1.0))
    (recovered,) = emitted(world.effects, events.Recovered)
    lanes = world.run.run.plan.first.schedule.lanes
    whole_step = sum(len(lane) for lane in lanes.values())
    assert recovered.redone == (5 - version) * whole_step + 3 * 3


def test_without_a_copy_in_common_all_go_back_to_the_checkpoint() -> None:
    world = World(**COMMIT).start()
    world.step(5)
    save(world, 2)
    world.die("1.0")
    for name, commits in (("0.0", [4, 5]), ("0.1", [3]), ("1.1", [])):
        effects = world.tell(name, commits=commits)
    (back,) = emitted(effects, events.WentBack)
    assert back.to_step == 2
    assert "no copy in memory" in back.reason
    assert not sent(effects, messages.Restore)


def test_a_stage_without_survivor_goes_back_to_the_checkpoint() -> None:
    world = World(**COMMIT).start()
    world.step(5)
    save(world, 4)
    world.die("0.1")
    world.pump()
    world.die("1.1")
    effects = world.pump()
    (back,) = emitted(effects, events.WentBack)
    assert (back.to_step, back.lost_stage) == (4, 1)
    assert back.checkpoint
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_death_while_all_restore_begins_it_anew() -> None:
    world = World(3, **COMMIT).start()
    world.step(5)
    world.die("1.0")
    for name in ("0.0", "0.1", "1.1", "2.0", "2.1"):
        world.tell(name, commits=[5])
    world.die("2.0")
    world.pump()
    assert world.last_proceed.stages == {"0.0": 0, "0.1": 1, "1.1": 1, "2.1": 1}
    assert world.last_proceed.first_step == 5
    (recovered,) = emitted(world.effects, events.Recovered)
    assert recovered.workers == ("1.0", "2.0")


def test_who_copies_the_state_while_all_go_back_begins_anew() -> None:
    world = World(3, **COMMIT, steps=60).start()
    world.step(3)
    world.die("1.0")
    world.pump()
    world.come("1.0")
    world.pump()
    assert world.phase("1.0") is WorkerPhase.COPYING
    world.actors["1.0"].mute = True
    world.step(2)
    world.die("2.1")
    effects = world.pump()
    assert "1.0" in sent(effects, messages.CopyState)
    shares = [m.to for m in sent(effects, messages.ShareState).values()]
    assert shares == ["1.0"]
    world.actors["1.0"].mute = False
    world.step(3)
    assert "1.0" in world.stages


def test_a_joiner_restores_nothing_and_makes_nobody_restore() -> None:
    world = World(**COMMIT, steps=60).start()
    world.die("1.0")
    world.pump()
    world.step(2)
    world.come("1.0")
    effects = [*world.pump(), *world.step(3)]
    assert "1.0" in world.stages
    assert not sent(effects, messages.Restore)
    assert not emitted(effects, events.WentBack)


def test_an_interrupt_during_a_restore_ends_the_run_with_the_next_step() -> None:
    world = World(**COMMIT).start()
    world.step(5)
    for actor in world.live():
        actor.mute = True
    world.die("1.0")
    world.take(world.run.interrupt(world.at_s))
    for actor in world.live():
        actor.mute = False
    world.pump()
    assert world.last_proceed.end_step == 6


# --- mode checkfreq: how often ---

CHECKFREQ = {"recovery": {"mode": "checkfreq"}, "checkpoint": {"every_steps": 10}}


@pytest.mark.parametrize(
    ("step_s", "snapshot_s", "write_s", "every"),
    [
        (1.0, 0.5, 3.2, 3),
        (1.0, 0.5, 3.5, 3),
        (1.0, 0.5, 3.6, 4),
        (1.0, 0.9, 1.0, 1),
        (0.1, 0, 2, 20),
    ],
)
def test_the_interval_is_as_long_as_the_writing_that_is_left(step_s, snapshot_s, write_s, every):
    assert interval(step_s, snapshot_s, write_s) == every


def save_timed(world: World, step: int, copy_s: float = 0.1, took_s: float = 0.45):
    first = world.part("0.0", 0, step, copy_s=copy_s / 2, took_s=took_s / 2)
    return [*first, *world.part("0.1", 1, step, copy_s=copy_s, took_s=took_s)]


def test_after_the_profile_all_are_told_the_interval_that_the_slowest_stage_allows() -> None:
    world = World(**CHECKFREQ, steps=200).start()
    world.step(11)  # 0.1 s each
    effects = save_timed(world, 10)
    orders = sent(effects, messages.SaveAt)
    assert set(orders) == set(ALL)
    (chosen,) = emitted(effects, events.IntervalChosen)
    assert chosen.every == 4  # ceil((0.45 - 0.1) / 0.1)
    assert {tuple(order.rules) for order in orders.values()} == {((chosen.first, 4),)}
    assert chosen.first >= world.run.parts.reports.next_step + 2
    assert chosen.first >= 10 + 4


def test_a_new_interval_begins_when_everyone_must_have_heard_of_it() -> None:
    world = World(**CHECKFREQ, steps=200).start()
    world.step(30)  # the checkpoint took long
    (chosen,) = emitted(save_timed(world, 10), events.IntervalChosen)
    assert chosen.first >= 32


def test_the_first_steps_do_not_count_and_too_few_say_nothing() -> None:
    world = World(**CHECKFREQ, steps=200).start()
    for _ in range(5):
        world.at_s += 100.0
        for name in ALL:
            world.beat(name)
        world.step()
    world.step(4)
    assert not sent(save_timed(world, 9), messages.SaveAt)
    world.step(2)
    (chosen,) = emitted(save_timed(world, 10), events.IntervalChosen)
    assert chosen.every == 4


def test_steps_that_take_much_longer_than_in_the_profile_make_the_interval_longer() -> None:
    world = World(**CHECKFREQ, steps=200).start()
    world.step(11)
    (first,) = emitted(save_timed(world, 10), events.IntervalChosen)
    world.step(4)
    assert not emitted(save_timed(world, first.first), events.IntervalChosen)
    for _ in range(4):
        world.at_s += 0.01  # 10 %, and 3.5 % are allowed
        world.step()
    (second,) = emitted(save_timed(world, first.first + 4), events.IntervalChosen)
    assert second.every == first.every + 2
    assert second.first > first.first
    rules = sent(world.effects, messages.SaveAt)["0.0"].rules
    assert rules == [(first.first, first.every), (second.first, second.every)]


def test_steps_among_which_a_failure_was_do_not_count_for_the_interval() -> None:
    world = World(**CHECKFREQ, steps=200).start()
    world.step(11)
    (first,) = emitted(save_timed(world, 10), events.IntervalChosen)
    world.die("1.0")
    world.pump()
    world.tick(0.4)
    come_all(world)
    world.pump()
    assert world.last_proceed.saves == [(first.first, first.every)]
    for _ in range(8):
        world.at_s += 1.0
        world.step()
    assert not emitted(save_timed(world, first.first), events.IntervalChosen)


def test_in_other_modes_nobody_chooses_an_interval() -> None:
    world = World(checkpoint={"every_steps": 10}, steps=200).start()
    world.step(11)
    assert not sent(save_timed(world, 10), messages.SaveAt)
    assert world.last_proceed.saves == []


@pytest.mark.parametrize("mode", ["global", "checkfreq", "commit"])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_in_any_mode_a_run_ends_well_or_with_a_reason(seed, mode) -> None:
    dice = random.Random(seed)
    settings = {"recovery": {"mode": mode}, "workers": {"start_limit_s": 8.0}}
    world = World(dice.randint(2, 4), dice.randint(1, 3), steps=30, **settings).start()
    much_happens(world, dice)
    if world.run.phase is RunPhase.FAILED:
        assert "cannot hold" in str(world.run.failure), str(world.run.failure)


def test_any_worker_can_be_asked_for_by_name() -> None:
    world = World().start()
    world.die("1.0")
    world.pump()
    restarting = world.run.parts.reconfigurations.restarting
    assert restarting.ask(world.at_s, WorkerId(0, 0)) == []  # it lives
    assert restarting.ask(world.at_s, WorkerId(1, 0)) == [StartWorker(WorkerId(1, 0))]
