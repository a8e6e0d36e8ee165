"""Workers that come while training goes on: asked, copied, entered; and those that fail to."""

import random

import pytest

from helpers.harness.coordinator_world import (
    TORCH,
    TRAITS,
    World,
    emitted,
    much_happens,
    pid_of,
    report,
    sent,
)
from holdfast.cluster import WorkerId
from holdfast.control.effects import Fence, StartWorker
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import JOINING, WorkerPhase
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.protocol import messages


def short_of(*names: str, pipelines: int = 2, **more) -> World:
    """In the middle of a run, with these workers lost."""
    world = World(pipelines, **more).start()
    world.step(3)
    for name in names:
        world.die(name)
        world.pump()
    return world


def request(**changes) -> messages.JoinRequest:
    values = {"worker": "", "pid": 5, "fingerprint": TORCH, "job_sha256": ""}
    return messages.JoinRequest(**(values | changes))


def test_who_comes_with_other_data_than_the_run_began_with_is_refused_by_name() -> None:
    world = short_of("1.0", workers={"allow_mixed": True})
    effects = world.come("1.0", traits=TRAITS | {"len(Job.data)": "91"})
    (failed,) = emitted(effects, events.JoinFailed)
    assert "workers 0.0 and 1.0 differ in len(Job.data): 90 and 91" in failed.reason
    assert not sent(effects, messages.Assign)
    assert world.run.failure is None


# --- one joiner ---


def test_a_joiner_builds_copies_from_a_member_and_enters_while_the_others_train() -> None:
    world = short_of("1.0")
    (assign,) = sent(world.come("1.0"), messages.Assign).values()
    assert (assign.stage, assign.checkpoint, assign.first_step) == (0, "", 0)
    effects = world.pump()
    assert sent(effects, messages.CopyState)["1.0"].source == "0.0"
    assert sent(effects, messages.ShareState)["0.0"].to == "1.0"
    assert not sent(effects, messages.Halt)
    effects = world.step()
    assert set(sent(effects, messages.Halt)) == {"0.0", "0.1", "1.0", "1.1"}
    assert world.stages == {"0.0": 0, "0.1": 1, "1.0": 0, "1.1": 1}
    (joined,) = emitted(effects, events.WorkerJoined)
    assert (joined.worker, joined.stage) == ("1.0", 0)
    last = emitted(effects, events.Recovered)[-1]
    assert (last.cause, last.num_lost) == ("join", 0)
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_when_all_are_there_again_the_first_schedule_is_back() -> None:
    world = World().start()
    first = world.last_proceed.schedule
    world.die("1.0")
    world.pump()
    assert world.last_proceed.schedule != first
    world.come("1.0")
    world.pump()
    world.step()
    assert len(world.stages) == 4
    assert world.last_proceed.schedule == first


def test_a_joiner_that_is_too_far_behind_when_all_have_stopped_follows_on() -> None:
    world = short_of("1.0")
    world.come("1.0")
    world.pump()
    world.handle(messages.Copied(worker="1.0", source="0.0", version=3, num_bytes=64))
    for name in ("0.0", "0.1", "1.1"):
        world.tell(name, reduced=5, oldest=4)
    effects = world.tell("1.0", reduced=3)
    assert set(sent(effects, messages.Proceed)) == {"0.0", "0.1", "1.1"}
    follow = sent(effects, messages.CopyState)["1.0"]
    assert (follow.source, follow.epoch) == ("0.0", 3)
    assert not sent(effects, messages.ShareState)
    assert world.phase("1.0") is WorkerPhase.COPYING


def test_a_joiner_one_step_behind_enters_and_gets_the_step_from_its_peer() -> None:
    world = short_of("1.0")
    world.come("1.0")
    world.pump()
    world.handle(messages.Copied(worker="1.0", source="0.0", version=3, num_bytes=64))
    for name in ("0.0", "0.1", "1.1"):
        world.tell(name, reduced=4, oldest=3)
    effects = world.tell("1.0", reduced=3, oldest=3)
    proceed = sent(effects, messages.Proceed)["1.0"]
    assert [step.step for step in proceed.running] == [3]
    assert proceed.running[0].copies == {0: "0.0"}


def test_a_joiner_far_behind_does_not_stop_anyone() -> None:
    world = short_of("1.0")
    world.come("1.0")
    world.pump()
    assert world.handle(messages.Copied(worker="1.0", source="0.0", version=1, num_bytes=64)) == []


def test_the_steps_before_a_joiner_came_are_not_asked_of_it() -> None:
    world = short_of("1.0")
    world.come("1.0")
    world.pump()
    steps = [e.step for e in emitted(world.step(5), events.StepFinished)]
    assert steps == [3, 4, 5, 6, 7]


def test_a_step_that_was_over_when_a_joiner_entered_is_finished_without_it() -> None:
    world = short_of("1.0")
    world.come("1.0")
    world.pump()
    world.handle(messages.Copied(worker="1.0", source="0.0", version=3, num_bytes=64))
    for name in ("0.0", "0.1", "1.1", "1.0"):
        world.tell(name, reduced=4, oldest=4)
    assert "1.0" in world.stages
    for name in ("0.0", "0.1"):
        assert not emitted(world.handle(report(name, 3)), events.StepFinished)
    assert emitted(world.handle(report("1.1", 3)), events.StepFinished)


# --- more than one ---


def test_two_joiners_copy_at_once_from_different_members_and_both_enter() -> None:
    world = short_of("1.0", "2.1", pipelines=3)
    world.come("1.0")
    world.come("2.1")
    effects = world.pump()
    assert len(sent(effects, messages.CopyState)) == 2
    world.step(2)
    assert len(world.stages) == 6
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_second_joiner_of_a_stage_copies_from_the_member_that_is_less_busy() -> None:
    world = short_of("2.0", "3.0", pipelines=4)
    for name in ("2.0", "3.0"):
        world.come(name)
    sources = [c.source for c in sent(world.pump(), messages.CopyState).values()]
    assert sorted(sources) == ["0.0", "1.0"]


def test_joiners_go_where_holders_are_fewest() -> None:
    world = short_of("1.0", "2.0", "3.0", "3.1", pipelines=4, steps=8)
    stages = [sent(world.come(name), messages.Assign)[name].stage for name in ("1.0", "2.0")]
    assert stages == [0, 0]


# --- deaths on the way ---


@pytest.mark.parametrize("when", ["building", "copying", "entering"])
def test_a_joiner_that_dies_is_forgotten_and_harms_nobody(when) -> None:
    world = short_of("1.0")
    world.come("1.0")
    if when != "building":
        world.pump()
    if when == "entering":
        world.actors["0.0"].mute = True
        world.handle(messages.Copied(worker="1.0", source="0.0", version=3, num_bytes=64))
        world.pump()
    effects = world.die("1.0")
    assert Fence(WorkerId(1, 0)) in effects
    (failed,) = emitted(effects, events.JoinFailed)
    assert failed.worker == "1.0"
    for actor in world.live():
        actor.mute = False
    world.pump()
    assert world.phase("1.0") is WorkerPhase.LOST
    assert set(world.stages) == {"0.0", "0.1", "1.1"}
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_joiner_whose_source_dies_copies_from_another() -> None:
    world = short_of("2.0", pipelines=3)
    world.come("2.0")
    world.pump()
    world.die("0.0")
    effects = world.pump()
    copy = sent(effects, messages.CopyState)["2.0"]
    assert (copy.source, copy.epoch) == ("1.0", 3)
    assert sent(effects, messages.Halt)["2.0"].epoch == 3  # it waits for the dead one
    assert sent(effects, messages.ShareState)["1.0"].to == "2.0"
    world.step(2)
    assert "2.0" in world.stages


@pytest.mark.parametrize(("by", "about"), [("2.0", "0.0"), ("0.0", "2.0")])
def test_a_joiner_that_loses_its_source_ends_no_member(by: str, about: str) -> None:
    world = short_of("2.0", pipelines=3)
    world.come("2.0")
    world.pump()
    complaint = messages.PeerGone(worker=by, epoch=world.run.run.epoch, lost=about)
    effects = world.handle(complaint)
    assert sent(effects, messages.CopyState)["2.0"].source == "1.0"
    assert "0.0" in world.stages


def test_a_joiner_whose_stage_is_lost_goes_back_with_the_others() -> None:
    world = short_of("1.0")
    world.come("1.0")
    world.pump()
    world.die("0.0")
    world.pump()
    assert emitted(world.effects, events.WentBack)
    assert set(world.stages) == {"0.1", "1.0", "1.1"}
    assert sorted(set(world.stages.values())) == [0, 1]
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_death_while_a_joiner_enters_starts_over_with_the_joiner() -> None:
    world = short_of("2.0", pipelines=3)
    world.come("2.0")
    world.pump()
    world.handle(messages.Copied(worker="2.0", source="0.0", version=3, num_bytes=64))
    effects = world.die("1.1")
    assert set(sent(effects, messages.Halt)) == {"0.0", "0.1", "1.0", "2.0", "2.1"}
    world.actors["2.0"].reduced = 3
    world.pump()
    assert "2.0" in world.stages
    assert emitted(world.effects, events.Recovered)[-1].cause == "join and death"


def test_a_joiner_that_fails_by_itself_does_not_end_the_run() -> None:
    world = short_of("1.0")
    world.come("1.0")
    failed = messages.Failed(worker="1.0", lost="", exit_code=2, reason="no such data", details="")
    effects = world.handle(failed)
    assert [e.reason for e in emitted(effects, events.JoinFailed)] == ["no such data"]
    assert not world.run.over


def test_a_joiner_that_never_comes_frees_its_place_after_the_start_limit() -> None:
    world = short_of("1.0", workers={"start_limit_s": 5.0})
    assert world.run.grant(request(), "sha", world.at_s) == WorkerId(1, 0)
    world.tick(4.0)
    assert world.phase("1.0") is WorkerPhase.STARTING
    effects = world.tick(2.0)
    assert world.phase("1.0") is WorkerPhase.LOST
    (failed,) = emitted(effects, events.JoinFailed)
    assert failed.reason == "not ready after workers.start_limit_s=5"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": {"torch": "3"}}, "differ in torch"),
        ({"num_layers": 9, "layer_hashes": ["x"] * 9}, "9 layers"),
        ({"layer_hashes": ["other"] * 6}, "layer 0 differs between workers 0.0 and 1.0"),
    ],
)
def test_a_joiner_that_does_not_fit_is_told_so_and_its_place_stays_free(changes, words) -> None:
    world = short_of("1.0")
    effects = world.come("1.0", **changes)
    assert words in sent(effects, messages.Stop)["1.0"].reason
    assert emitted(effects, events.JoinFailed)
    assert world.phase("1.0") is WorkerPhase.LOST
    assert not world.run.over


# --- asking ---


def test_a_request_is_granted_the_place_of_the_most_starved_stage() -> None:
    world = short_of("0.0", "1.1", "2.1", pipelines=3, steps=4)
    assert world.run.grant(request(), "sha", 1.0) == WorkerId(1, 1)
    assert world.run.grant(request(), "sha", 1.0) != WorkerId(1, 1)
    assert not world.run.accepts("1.0")


def test_a_request_may_name_its_place() -> None:
    world = short_of("0.0", "1.1", pipelines=3)
    assert world.run.grant(request(worker="1.1"), "sha", 1.0) == WorkerId(1, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"worker": "7.0"}, "there is no worker 7.0"),
        ({"worker": "x"}, "not a worker"),
        ({"worker": "0.0"}, "worker 0.0 is alive: missing is 1.0"),
        ({"job_sha256": "other"}, "differs from the run's"),
        ({"fingerprint": {"torch": "3"}}, "differ in torch"),
    ],
)
def test_a_request_that_cannot_be_granted_is_refused_in_one_line(changes, words) -> None:
    world = short_of("1.0")
    with pytest.raises(ConfigError) as error:
        world.run.grant(request(**changes), "sha", 1.0)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert world.phase("1.0") is WorkerPhase.LOST


def test_nobody_can_join_when_nobody_is_missing_or_the_run_has_not_begun_or_ends() -> None:
    with pytest.raises(ConfigError, match="the run is starting"):
        World().run.grant(request(), "sha", 1.0)
    with pytest.raises(ConfigError, match="nobody is missing"):
        World().start().run.grant(request(), "sha", 1.0)
    world = short_of("1.0")
    world.actors["0.0"].mute = True
    world.take(world.run.interrupt(world.at_s))
    with pytest.raises(ConfigError, match="interrupted"):
        world.run.grant(request(), "sha", 1.0)


# --- joins that are ordered ---


def test_an_ordered_join_starts_a_missing_worker_once_its_step_has_come() -> None:
    world = World(faults=["join @ 4"]).start()
    world.step()
    world.die("1.0")
    world.pump()
    assert StartWorker(WorkerId(1, 0)) not in world.step(1)
    effects = world.step(1)
    assert StartWorker(WorkerId(1, 0)) in effects
    (fired,) = emitted(effects, events.FaultFired)
    assert (fired.worker, fired.fault, fired.point) == ("", "join @ 4", "")
    assert not [e for e in world.step(3) if isinstance(e, StartWorker)]


def test_an_ordered_join_waits_until_somebody_is_missing() -> None:
    world = World(faults=["join 1.1 @ 1"]).start()
    world.step(2)
    assert not [e for e in world.effects if isinstance(e, StartWorker)]
    world.die("1.0")
    world.pump()
    assert not [e for e in world.effects if isinstance(e, StartWorker)]
    world.die("1.1")
    assert StartWorker(WorkerId(1, 1)) in world.effects


def test_the_process_of_an_ordered_join_may_end_before_it_says_hello() -> None:
    world = World(faults=["join @ 1"]).start()
    world.die("1.0")
    world.pump()
    assert world.phase("1.0") is WorkerPhase.STARTING
    world.handle(messages.WorkerStarted(worker="1.0", pid=88))
    world.handle(messages.WorkerExited(worker="1.0", pid=pid_of("1.0"), how="signal SIGKILL"))
    assert world.phase("1.0") is WorkerPhase.STARTING  # that was the one before
    effects = world.handle(messages.WorkerExited(worker="1.0", pid=88, how="exit code 1"))
    assert [e.reason for e in emitted(effects, events.JoinFailed)] == ["exit code 1"]


# --- everything at once ---


@pytest.mark.parametrize("restarts", [0, 3])
@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_a_run_ends_well_or_with_a_reason(seed, restarts) -> None:
    dice = random.Random(seed)
    limits = {"start_limit_s": 8.0, "restarts": restarts}
    world = World(dice.randint(2, 4), dice.randint(1, 3), steps=30, workers=limits).start()
    much_happens(world, dice)
    if world.run.phase is RunPhase.FAILED:
        assert "cannot hold" in str(world.run.failure), str(world.run.failure)
    recovered = [e.epoch for e in emitted(world.effects, events.Recovered)]
    assert recovered == sorted(recovered)


def test_word_of_a_copy_from_a_former_source_is_not_believed() -> None:
    world = short_of("1.0", pipelines=3)
    world.come("1.0")
    world.pump()
    source = sent(world.effects, messages.CopyState)["1.0"].source
    world.die(source)
    world.pump()
    assert sent(world.effects, messages.CopyState)["1.0"].source != source
    late = messages.Copied(worker="1.0", source=source, version=19, num_bytes=64)
    assert not sent(world.handle(late), messages.Halt)


def test_a_joiner_that_is_being_let_in_is_told_nothing_else_when_its_source_dies() -> None:
    world = short_of("1.0", pipelines=3)
    world.come("1.0")
    world.pump()
    source = sent(world.effects, messages.CopyState)["1.0"].source
    world.handle(messages.Copied(worker="1.0", source=source, version=3, num_bytes=64))
    effects = list(world.die(source))
    gone = messages.PeerGone(worker="1.0", epoch=world.run.run.epoch, lost=source)
    effects += world.handle(gone)
    assert "1.0" in sent(effects, messages.Halt)
    assert "1.0" not in sent(effects, messages.CopyState)


def test_r8_a_joiner_that_never_keeps_up_is_refused_with_a_reason() -> None:
    world = short_of("1.0")
    world.come("1.0")
    world.pump()
    for _ in range(4):
        assert world.phase("1.0") in JOINING
        starved = messages.PeerGone(worker="1.0", epoch=world.run.run.epoch, lost="")
        world.handle(starved)
        world.pump()
    [failed] = emitted(world.effects, events.JoinFailed)
    assert "slower than training goes on" in failed.reason
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_wait_that_runs_out_stops_everyone_and_shows_who_is_stuck() -> None:
    world = World().start()
    world.step(4)
    world.actors["1.1"].mute = True
    stuck = messages.PeerGone(worker="0.1", epoch=world.run.run.epoch, lost="")
    assert set(sent(world.handle(stuck), messages.Halt)) == {"0.0", "0.1", "1.0", "1.1"}
    world.pump()
    world.tick(world.run.run.timeouts.answer_s + 1)
    world.pump()
    assert "1.1" not in world.stages
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_run_that_is_stuck_twice_in_one_step_ends_with_a_checkpoint_and_a_reason() -> None:
    world = World().start()
    world.step(4)
    wait_in_vain(world)
    world.pump()
    wait_in_vain(world)
    world.part("0.0", 0, 4)
    world.part("0.1", 1, 4)
    world.pump()
    assert world.last_proceed.end_step == 4, "the step that nobody can end is left out"
    assert world.run.phase is RunPhase.FAILED
    assert "waited in vain" in str(world.run.failure)
    assert "Go on from the last checkpoint with: holdfast.resume('runs/x')" in str(
        world.run.failure
    )


def wait_in_vain(world: World) -> None:
    world.handle(messages.PeerGone(worker="0.1", epoch=world.run.run.epoch, lost=""))


def test_if_what_others_have_ended_cannot_be_ended_either_the_last_checkpoint_is_all_there_is():
    world = World().start()
    world.step(4)
    world.part("0.0", 0, 4)
    world.part("0.1", 1, 4)
    world.step()
    world.run_step(world.actors["0.0"])
    for _ in range(2):
        wait_in_vain(world)
        world.pump()
    assert world.last_proceed.end_step == 6
    assert not world.run.over
    wait_in_vain(world)
    assert world.run.phase is RunPhase.FAILED
    assert "waited in vain" in str(world.run.failure)


def test_a_run_that_is_stuck_before_its_first_finished_step_has_nothing_to_save() -> None:
    world = World().start()
    for _ in range(2):
        wait_in_vain(world)
        world.pump()
    assert world.run.phase is RunPhase.FAILED
    assert "No checkpoint was written yet" in str(world.run.failure)


def test_a_wait_that_runs_out_before_all_have_taken_up_work_again_counts_too() -> None:
    world = World(3).start()
    world.step(4)
    world.die("2.1")
    world.pump()
    world.step()
    world.die("2.0")
    for name in ("0.0", "0.1", "1.0", "1.1"):
        world.tell(name)
    assert not world.run.run.lifecycle.over
    stuck = messages.PeerGone(worker="0.1", epoch=world.run.run.epoch, lost="")
    assert set(sent(world.handle(stuck), messages.Halt)) == {"0.0", "0.1", "1.0", "1.1"}
