"""Deaths in every phase of a run: stop, tell, plan, go. And what else changes who does what."""

import pytest

from helpers.fired import fired
from helpers.harness.coordinator_world import SomePlan, World, emitted, pid_of, report, sent
from holdfast.cluster import WorkerId
from holdfast.control.effects import Fence
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import KeptRow
from holdfast.schedule.schedule import loads

SURVIVORS = {"0.0", "0.1", "1.1"}


def gone(by: str, lost: str, epoch: int) -> messages.PeerGone:
    return messages.PeerGone(worker=by, epoch=epoch, lost=lost)


def causes(world: World) -> list[str]:
    return [event.cause for event in emitted(world.effects, events.WorkerLost)]


# --- one death ---


def test_a_death_stops_the_others_and_they_go_on_without_it() -> None:
    world = World().start()
    world.step(2)
    effects = world.die("1.0")
    assert Fence(WorkerId(1, 0)) in effects
    halts = sent(effects, messages.Halt)
    assert set(halts) == SURVIVORS
    assert {halt.epoch for halt in halts.values()} == {2}
    proceeds = sent(world.pump(), messages.Proceed)
    assert set(proceeds) == SURVIVORS
    proceed = proceeds["0.0"]
    assert (proceed.epoch, proceed.first_step, proceed.running) == (2, 2, [])
    assert proceed.stages == {"0.0": 0, "0.1": 1, "1.1": 1}
    assert set(loads(proceed.schedule).lanes) == {WorkerId(0, 0), WorkerId(0, 1), WorkerId(1, 1)}
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_nobody_proceeds_before_all_have_told() -> None:
    world = World().start()
    world.actors["0.1"].mute = True
    world.die("1.0")
    assert not sent(world.pump(), messages.Proceed)
    world.actors["0.1"].mute = False
    assert set(sent(world.pump(), messages.Proceed)) == SURVIVORS


def test_the_planner_is_asked_about_the_live_members_who_keep_their_stages() -> None:
    world = World().start()
    world.die("1.0")
    world.pump()
    (problem,) = world.planner.asked
    assert {str(member.worker): member.stage for member in problem.members} == {
        "0.0": 0,
        "0.1": 1,
        "1.1": 1,
    }
    assert not problem.may_move
    assert not problem.two_stages


def test_while_nobody_has_died_the_planner_is_not_asked() -> None:
    world = World(steps=4).start()
    world.finish()
    assert world.planner.asked == []


NOTICES = {
    "connection": lambda world: world.take(world.run.lost_connection("1.0", world.at_s)),
    "process": lambda world: world.handle(
        messages.WorkerExited(worker="1.0", pid=pid_of("1.0"), how="signal SIGKILL")
    ),
}


@pytest.mark.parametrize("notice", NOTICES.values(), ids=NOTICES)
def test_any_notice_will_do_and_the_first_one_wins(notice) -> None:
    world = World().start()
    del world.actors["1.0"]
    assert set(sent(notice(world), messages.Halt)) == SURVIVORS
    for later in NOTICES.values():
        assert not sent(later(world), messages.Halt)
    assert world.run.run.epoch == 2


def test_the_cause_that_is_shown_is_the_agents_though_the_connection_closed_first() -> None:
    world = World().start()
    world.die("1.0")
    world.pump()
    world.tick(1.0)
    assert causes(world) == ["signal SIGKILL"]


def test_a_cause_that_nobody_explains_is_shown_after_a_moment() -> None:
    world = World().start()
    world.take(world.run.lost_connection("1.0", world.at_s))
    del world.actors["1.0"]
    world.tick(1.0)
    assert causes(world) == ["closed its connection"]


def test_a_complaint_of_an_older_epoch_is_ignored() -> None:
    world = World().start()
    world.die("1.0")
    assert world.handle(gone("0.1", "0.0", 1)) == []
    world.pump()
    assert set(world.stages) == SURVIVORS


def test_the_end_of_a_process_that_was_replaced_is_no_news() -> None:
    world = World().start()
    world.take(world.run.lost_connection("1.0", 0.0))
    del world.actors["1.0"]
    world.pump()
    world.come("1.0", pid=77)
    world.pump()
    world.step(2)
    assert "1.0" in world.stages
    world.handle(messages.WorkerExited(worker="1.0", pid=pid_of("1.0"), how="signal SIGKILL"))
    assert "1.0" in world.stages
    world.handle(messages.WorkerExited(worker="1.0", pid=77, how="exit code 1"))
    assert "1.0" not in world.stages


# --- what is told of it ---


def test_a_recovery_is_complete_when_the_last_member_has_taken_up_work() -> None:
    world = World().start()
    world.step()
    word = fired("1.0", "kill 1.0 @ 2", step=1, at_s=0.05)
    world.handle(word)
    world.die("1.0")
    world.actors["0.1"].mute = True
    world.pump()
    assert not emitted(world.effects, events.Recovered)
    world.at_s = 3.0
    world.actors["0.1"].mute = False
    world.pump()
    (event,) = emitted(world.effects, events.Recovered)
    assert (event.cause, event.workers, event.members, event.epoch) == ("death", ("1.0",), 3, 2)
    assert (event.fault_s, event.notice_s, event.plan_s, event.resumed_s) == (0.05, 0.1, 3.0, 3.0)
    assert (event.reason, event.num_lost) == ("because", 1)


def test_word_of_a_fault_that_comes_after_the_notice_still_gives_the_time() -> None:
    world = World().start()
    world.at_s = 5.0
    world.die("1.0")
    word = fired("1.0", "kill 1.0 @ 1", step=0, at_s=4.5)
    assert emitted(world.handle(word), events.FaultFired)
    world.pump()
    (event,) = emitted(world.effects, events.Recovered)
    assert (event.fault_s, event.notice_s) == (4.5, 5.0)


def test_a_fault_that_has_fired_is_not_given_to_who_comes_after() -> None:
    world = World(faults=["kill 1.0 @ 2", "kill 1.0 @ 9"]).start()
    word = fired("1.0", "kill 1.0 @ 2", step=1, at_s=0.0)
    world.handle(word)
    world.die("1.0")
    world.pump()
    assert sent(world.come("1.0"), messages.Assign)["1.0"].faults == ["kill 1.0 @ 9"]


def test_only_finished_work_of_the_dead_counts_as_done_again() -> None:
    world = World().start()
    lane = loads(world.last_proceed.schedule).lanes[WorkerId(1, 0)]
    assert [op.kind.value for op in lane[:2]] == ["F", "F"]
    world.beat("1.0", done=1)
    world.die("1.0")
    kept = [KeptRow(0, [0], [])]
    world.tell("0.0", progress={0: 1}, kept=kept, done=1)
    for name in ("0.1", "1.1"):
        world.tell(name)
    proceed = world.last_proceed
    assert proceed.epoch == 2
    assert [step.step for step in proceed.running] == [0]
    assert proceed.first_step == 1
    for actor in world.live():
        actor.inbox.clear()
        world.handle(messages.Resumed(worker=actor.name, epoch=2, at_s=1.0))
    (event,) = emitted(world.effects, events.Recovered)
    assert event.redone == 1
    assert event.operations > 1


def test_the_stages_whose_part_is_written_are_named_when_all_go_on() -> None:
    world = World().start()
    world.step(3)
    world.part("0.1", 1, 2)
    world.die("1.0")
    for name, saving in (("0.0", 3), ("0.1", 2), ("1.1", 0)):
        world.tell(name, saving=saving)
    assert world.last_proceed.saved == {0: 3, 1: 2}


# --- more than one death ---


def test_a_death_while_the_others_tell_starts_the_change_over() -> None:
    world = World(3).start()
    world.die("1.0")
    world.tell("0.0")
    effects = world.die("2.1")
    halts = sent(effects, messages.Halt)
    assert set(halts) == {"0.0", "0.1", "1.1", "2.0"}
    assert {halt.epoch for halt in halts.values()} == {3}
    proceeds = sent(world.pump(), messages.Proceed)
    assert {p.epoch for p in proceeds.values()} == {3}
    (event,) = emitted(world.effects, events.Recovered)
    assert event.workers == ("1.0", "2.1")


def test_what_was_told_for_an_older_halt_does_not_count() -> None:
    world = World(3).start()
    for actor in world.live():
        actor.mute = True
    world.die("1.0")
    old = world.told(world.actors["0.0"], 2)
    world.die("2.0")
    for name in ("0.1", "1.1", "2.1"):
        world.tell(name)
    assert not sent(world.handle(old), messages.Proceed)
    assert set(sent(world.tell("0.0"), messages.Proceed)) == {"0.0", "0.1", "1.1", "2.1"}


def test_who_has_told_before_a_second_death_must_tell_again() -> None:
    world = World(3).start()
    world.die("1.0")
    world.tell("0.0")
    world.die("2.0")
    for name in ("0.1", "1.1", "2.1"):
        assert not sent(world.tell(name), messages.Proceed)
    assert sent(world.tell("0.0"), messages.Proceed)


def test_a_death_before_all_have_taken_up_work_is_one_recovery_with_the_first() -> None:
    world = World(3).start()
    world.die("1.0")
    for name in ("0.0", "0.1", "1.1", "2.0", "2.1"):
        world.tell(name)
    assert world.last_proceed.epoch == 2
    world.die("2.1")
    world.pump()
    (event,) = emitted(world.effects, events.Recovered)
    assert (event.epoch, event.workers, event.members) == (3, ("1.0", "2.1"), 4)


def test_two_deaths_at_different_times_are_two_recoveries() -> None:
    world = World(3).start()
    world.die("1.0")
    world.pump()
    world.step(2)
    world.die("2.1")
    world.pump()
    assert [e.workers for e in emitted(world.effects, events.Recovered)] == [("1.0",), ("2.1",)]
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_step_is_finished_without_the_report_of_the_dead() -> None:
    world = World().start()
    for name in ("0.0", "0.1", "1.1"):
        world.handle(report(name, 0, [(0, 2.0)] if name.endswith("1") else []))
    effects = world.die("1.0")
    (done,) = emitted(effects, events.StepFinished)
    assert done.step == 0


def test_a_death_when_all_others_are_finished_makes_them_finish_again() -> None:
    world = World(steps=2).start()
    world.step()
    world.actors["1.0"].mute = True
    world.step()
    assert not world.run.over
    world.die("1.0")
    effects = world.pump()
    assert set(sent(effects, messages.Proceed)) == SURVIVORS
    assert world.run.phase is RunPhase.FINISHED


def test_who_was_finished_before_a_change_is_not_finished_after_it() -> None:
    world = World(steps=2).start()
    world.step()
    world.actors["1.0"].mute = True
    world.step()
    world.die("1.0")
    for name in SURVIVORS:
        world.tell(name)
    for actor in world.live():
        actor.inbox.clear()
        world.handle(messages.Resumed(worker=actor.name, epoch=2, at_s=1.0))
    assert world.run.phase is RunPhase.TRAINING


# --- silence ---


def test_a_member_that_is_silent_too_long_is_lost_and_fenced() -> None:
    world = World().start()
    world.actors["1.0"].silent = world.actors["1.0"].mute = True
    assert not emitted(world.tick(9.5), events.WorkerLost)
    effects = world.tick(1.0)
    assert Fence(WorkerId(1, 0)) in effects
    assert set(sent(effects, messages.Halt)) == SURVIVORS
    del world.actors["1.0"]
    world.pump()
    assert causes(world)[0].startswith("no heartbeat for 10.")


def test_time_in_which_the_coordinator_itself_was_away_is_no_silence() -> None:
    world = World().start()
    world.tick(1.0)
    world.at_s += 1000.0
    assert not sent(world.take(world.run.tick(world.at_s)), messages.Halt)
    assert len(world.stages) == 4


def test_a_coordinator_that_is_slow_to_look_still_finds_who_is_silent() -> None:
    world = World().start()
    world.tick(1.0)
    world.actors["1.0"].silent = world.actors["1.0"].mute = True
    for _ in range(5):
        world.at_s += 30.0
        for name in SURVIVORS:
            world.beat(name)
        world.take(world.run.tick(world.at_s))
    assert set(world.stages) == SURVIVORS


def test_a_member_that_beats_but_does_not_stop_is_lost_in_the_end() -> None:
    world = World(workers={"heartbeat_timeout_s": 1.0}).start()
    world.actors["0.1"].mute = True
    world.die("1.0")
    world.pump()
    world.tick(9.5)
    assert "0.1" in world.stages
    world.tick(1.0)
    assert "0.1" not in world.stages
    assert "did not stop within 10 s" in causes(world)


# --- nothing is left of a stage ---


def lose_stage_1(world: World) -> None:
    world.die("0.1")
    world.pump()
    world.die("1.1")


def test_when_a_stage_is_lost_all_go_back_to_the_last_checkpoint() -> None:
    world = World().start()
    world.step(5)
    world.part("0.0", 0, 4)
    world.part("0.1", 1, 4)
    lose_stage_1(world)
    effects = world.pump()
    (back,) = emitted(effects, events.WentBack)
    assert (back.lost_stage, back.to_step) == (1, 4)
    assigned = sent(effects, messages.Assign)
    assert {name: a.stage for name, a in assigned.items()} == {"0.0": 0, "1.0": 1}
    assert {a.first_step for a in assigned.values()} == {4}
    assert assigned["0.0"].checkpoint == "step-00000004"
    proceed = world.last_proceed
    assert (proceed.first_step, proceed.running, proceed.stages) == (4, [], {"0.0": 0, "1.0": 1})
    done = [e.step for e in emitted(world.finish(), events.StepFinished)]
    assert done == list(range(4, 20))
    assert world.run.phase is RunPhase.FINISHED


def test_without_a_checkpoint_all_go_back_to_the_beginning() -> None:
    world = World().start()
    world.step(5)
    lose_stage_1(world)
    effects = world.pump()
    (back,) = emitted(effects, events.WentBack)
    assert (back.to_step, back.checkpoint) == (0, "")
    assert {a.first_step for a in sent(effects, messages.Assign).values()} == {0}
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_death_while_all_go_back_is_made_up_for_by_another() -> None:
    world = World(3).start()
    world.step(2)
    for name in ("0.1", "1.1", "2.1"):
        world.die(name)
    for actor in world.live():
        actor.mute = True
    for name in ("0.0", "1.0", "2.0"):
        effects = world.tell(name)
    stages = {name: a.stage for name, a in sent(effects, messages.Assign).items()}
    assert stages == {"0.0": 0, "1.0": 0, "2.0": 1}
    again = sent(world.die("2.0"), messages.Assign)
    assert {name: a.stage for name, a in again.items()} == {"1.0": 1}
    for actor in world.live():
        actor.mute = False
        actor.inbox = [m for m in actor.inbox if not isinstance(m, messages.Halt)]
    world.pump()
    assert world.stages == {"0.0": 0, "1.0": 1}
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_one_that_falls_silent_while_all_go_back_is_lost() -> None:
    world = World(3).start()
    world.step(4)
    world.tick(0.5)
    for name in ("0.1", "1.1", "2.1"):
        world.die(name)
    frozen = world.actors["2.0"]
    world.take(world.run.tick(world.at_s))
    for name in ("0.0", "1.0", "2.0"):
        world.tell(name)
    assert world.run.phase is RunPhase.RETURNING
    frozen.silent = frozen.mute = True
    for actor in world.live():
        actor.inbox = [m for m in actor.inbox if not isinstance(m, messages.Halt)]
    world.tick(3.0)
    world.pump()
    assert world.stages == {"0.0": 0, "1.0": 1}


def test_too_few_for_all_stages_ends_the_run_and_says_what_was_lost_and_how_to_go_on() -> None:
    world = World(1, workers={"restarts": 0}).start()
    world.step(5)
    world.part("0.0", 0, 4)
    world.part("0.1", 1, 4)
    world.die("0.1")
    effects = world.pump()
    assert world.run.phase is RunPhase.FAILED
    why = str(world.run.failure)
    for words in (
        "worker 0.1 (pid 1001) was lost in step 6, signal SIGKILL",
        "nobody holds stage 1 any more",
        "1 live worker cannot hold 2 stages",
        "holdfast.resume('runs/x')",
    ):
        assert words in why
    assert set(sent(effects, messages.Stop)) == {"0.0"}


def test_when_nobody_is_left_the_run_ends() -> None:
    world = World(1, 1, workers={"restarts": 0}).start()
    world.die("0.0")
    world.tick(1.0)
    assert world.run.phase is RunPhase.FAILED
    assert "worker 0.0 (pid 1000) was lost in step 1, signal SIGKILL" in str(world.run.failure)
    assert emitted(world.effects, events.RunFailed)


def test_a_coming_joiner_may_save_a_run_that_has_too_few_workers() -> None:
    world = World(1).start()
    world.die("0.1")
    world.come("0.1")
    world.pump()
    world.tick(1.0)
    world.pump()
    assert world.run.phase is RunPhase.TRAINING
    assert world.stages == {"0.0": 0, "0.1": 1}
    assert emitted(world.effects, events.WentBack)


# --- better plans and moves ---


def test_a_better_plan_that_pays_is_adopted_without_a_stop() -> None:
    world = World().start()
    world.step(4)
    world.die("1.0")
    world.pump()
    (problem,) = world.planner.asked
    world.planner.found = SomePlan(problem, 0.5, "cleverer")
    effects = world.tick()
    assert set(sent(effects, messages.Offer)) == SURVIVORS
    assert set(sent(world.pump(), messages.Adopt)) == SURVIVORS
    assert world.run.run.plan.steady.reason == "cleverer"
    (switched,) = emitted(world.effects, events.PlanSwitched)
    assert (switched.cause, switched.reason) == ("better plan", "cleverer")
    assert [event.cause for event in emitted(world.effects, events.Recovered)] == ["death"]
    assert len(world.planner.asked) == 1


@pytest.mark.parametrize(("period_s", "steps"), [(0.995, 100_000), (0.98, 8)])
def test_a_plan_that_is_hardly_better_or_comes_too_late_is_not_worth_a_change(period_s, steps):
    world = World(steps=steps).start()
    world.step(4)
    world.die("1.0")
    world.at_s += 0.1  # so long does a change take here
    world.pump()
    world.planner.found = SomePlan(world.planner.asked[-1], period_s)
    effects = world.tick()
    assert not sent(effects, messages.Offer)
    assert not sent(effects, messages.Halt)


def test_a_death_while_a_better_plan_is_adopted_needs_a_plan_of_its_own() -> None:
    world = World(3).start()
    world.step(4)
    world.die("1.0")
    world.pump()
    world.planner.found = SomePlan(world.planner.asked[-1], 0.5, "cleverer")
    world.tick()
    world.die("2.0")
    world.pump()
    assert len(world.planner.asked) == 2
    assert world.run.run.plan.steady.reason == "because"


def test_a_worker_of_a_well_off_stage_changes_sides_and_becomes_a_member_there() -> None:
    world = World(4, steps=400).start()
    world.step(4)
    for name in ("1.0", "2.0", "3.0"):
        world.die(name)
    world.pump()
    offer = sent(world.effects, messages.Offer)["3.1"]
    spared = loads(offer.schedule).lanes[WorkerId(3, 1)]
    assert list(map(str, spared)) == ["1R"], "it finishes what it has begun and gets nothing new"
    assert world.phase("3.1") is WorkerPhase.MEMBER, (
        "not before it has come to the step without work"
    )
    world.step()
    assert world.phase("3.1") is WorkerPhase.COPYING
    assert world.stages == {"0.0": 0, "0.1": 1, "1.1": 1, "2.1": 1}
    assert not any(event.redone for event in emitted(world.effects, events.Recovered))
    world.step(2)
    assert world.stages == {"0.0": 0, "0.1": 1, "1.1": 1, "2.1": 1, "3.1": 0}
    (moved,) = emitted(world.effects, events.WorkerMoved)
    assert (moved.worker, moved.from_stage, moved.to_stage) == ("3.1", 1, 0)


def test_the_only_holder_of_a_stage_never_leaves_it() -> None:
    world = World(2, steps=400).start()
    world.step(4)
    world.die("1.0")
    world.die("1.1")
    world.pump()
    world.step(3)
    assert world.stages == {"0.0": 0, "0.1": 1}
    assert not emitted(world.effects, events.WorkerMoved)
