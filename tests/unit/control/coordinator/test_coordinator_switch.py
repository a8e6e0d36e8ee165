"""Other lanes for the same members without a stop: all change over in one step, or nobody does.

The world checks on the way that all members run a step with the same lanes.
"""

import random

import pytest

from helpers.harness.coordinator_world import SomePlan, World, emitted, much_happens, sent
from holdfast.cluster import WorkerId
from holdfast.control.inventory.losses import ProgressTracker
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import KeptRow
from holdfast.schedule.operation import Kind, Op, Shape
from holdfast.schedule.schedule import Schedule, loads

MEMBERS = {"0.0", "0.1", "1.1", "2.0", "2.1"}
VICTIM = "1.0"


def find_better(world: World, turn: int = 1) -> None:
    """Each turn's is better than that of the turn before."""
    problem = [p for p in world.planner.asked if len(p.members) == len(world.stages)][-1]
    world.planner.found = SomePlan(problem, 0.5**turn, "cleverer", turn)


def offered(turn: int = 1, **more) -> World:
    """One has died; better lanes for the others are on their way to them."""
    world = World(3, **({"steps": 40} | more)).start()
    world.step(4)
    world.die(VICTIM)
    world.pump()
    find_better(world, turn)
    assert sent(world.tick(), messages.Offer)
    return world


def answer(world: World, *names: str) -> None:
    """These hear what was sent to them; the others do not yet."""
    for actor in world.live():
        actor.mute = actor.name not in names
    world.pump()
    for actor in world.live():
        actor.mute = False


def voided(world: World) -> bool:
    """Nobody was ever told to adopt what was offered."""
    return not sent(world.effects, messages.Adopt) and not emitted(
        world.effects, events.PlanSwitched
    )


# --- offer and word ---


def test_lanes_are_offered_to_all_members_and_to_nobody_else() -> None:
    world = offered()
    offers = sent(world.effects, messages.Offer)
    assert set(offers) == MEMBERS
    assert {(offer.epoch, offer.number) for offer in offers.values()} == {(2, 1)}
    assert len({offer.schedule for offer in offers.values()}) == 1


def test_nobody_is_told_to_change_before_all_have_answered() -> None:
    world = offered()
    answer(world, *sorted(MEMBERS - {"2.1"}))
    assert voided(world)
    world.pump()
    assert set(sent(world.effects, messages.Adopt)) == MEMBERS


def test_they_change_two_steps_after_the_newest_that_anybody_had_begun() -> None:
    world = offered()
    for name, num_more in (("0.0", 2), ("1.1", 1)):
        for _ in range(num_more):
            world.run_step(world.actors[name])
    world.pump()
    adopts = sent(world.effects, messages.Adopt)
    assert {adopt.first_step for adopt in adopts.values()} == {5 + 2}
    (switched,) = emitted(world.effects, events.PlanSwitched)
    assert switched.step == world.run.run.plan.steady_from == 7


def test_steps_before_it_run_the_old_lanes_and_steps_after_it_the_new() -> None:
    world = offered()
    old = loads(world.last_proceed.schedule)
    world.pump()
    (switched,) = emitted(world.effects, events.PlanSwitched)
    new = loads(sent(world.effects, messages.Offer)["0.0"].schedule)
    world.step(4)
    ran = [world.ran[2, step] for step in range(4, 8)]
    assert old != new
    assert switched.step == 5
    assert ran == [old, new, new, new]


def test_training_goes_on_while_an_offer_is_answered_but_for_one_step_only() -> None:
    world = offered()
    answer(world, *sorted(MEMBERS - {"2.1"}))
    world.actors["2.1"].mute = True
    for _ in range(5):
        for name in sorted(MEMBERS - {"2.1"}):
            world.run_step(world.actors[name])
    assert {world.actors[name].reduced for name in MEMBERS - {"2.1"}} == {5}
    world.actors["2.1"].mute = False
    world.pump()
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_nothing_else_is_offered_meanwhile() -> None:
    world = offered()
    find_better(world, turn=2)
    assert not sent(world.tick(1.0), messages.Offer)


def test_lanes_may_be_changed_again() -> None:
    world = offered()
    world.pump()
    for turn in (2, 3, 4):
        find_better(world, turn)
        world.step(3)
    first_steps = [switched.step for switched in emitted(world.effects, events.PlanSwitched)]
    assert first_steps == [5, 6, 9, 12]
    changed = [step for step in range(5, 13) if world.ran[2, step] != world.ran[2, step - 1]]
    assert changed == first_steps
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_an_answer_to_an_older_offer_does_not_count() -> None:
    world = offered()
    world.pump()
    find_better(world, 2)
    assert sent(world.tick(), messages.Offer)["0.0"].number == 2
    for name in sorted(MEMBERS):
        late = messages.Offered(worker=name, epoch=2, number=1, step=30)
        assert world.handle(late) == []
    world.pump()
    assert emitted(world.effects, events.PlanSwitched)[-1].step == 5


def test_an_answer_nobody_has_asked_for_is_ignored() -> None:
    world = World(3).start()
    stray = messages.Offered(worker="0.0", epoch=1, number=0, step=3)
    assert world.handle(stray) == []


def test_lanes_for_others_than_the_present_members_are_never_offered() -> None:
    world = offered()
    world.pump()
    run, switching = world.run.run, world.run.parts.switching
    fewer = {worker: stage for worker, stage in run.stages.items() if worker != WorkerId(2, 1)}
    more = {**run.stages, WorkerId(1, 0): 0}
    elsewhere = {**run.stages, WorkerId(2, 1): 0}
    for stages in (fewer, more, elsewhere):
        steady = world.run.parts.plans.planned(world.run.parts.plans.problem(stages))
        assert switching.begin(steady, "test", 0.0) == []
        assert not switching.under_way


# --- something happens while an offer is on its way ---


@pytest.mark.parametrize("answered", [(), ("0.0",), ("0.0", "0.1", "1.1", "2.0")], ids=str)
@pytest.mark.parametrize("name", ["2.1", "0.0"])
def test_a_death_makes_an_offer_void_for_all(answered, name) -> None:
    world = offered()
    answer(world, *answered)
    world.die(name)
    world.pump()
    assert voided(world)
    assert world.run.run.plan.steady.reason == "because"
    assert world.last_proceed.epoch == 3
    world.finish()
    assert world.run.phase is RunPhase.FINISHED
    assert voided(world)


def test_an_answer_that_comes_after_a_death_does_not_count() -> None:
    world = offered()
    world.die("2.1")
    for name in sorted(MEMBERS - {"2.1"}):
        assert world.handle(messages.Offered(worker=name, epoch=2, number=1, step=4)) == []
    world.pump()
    for name in sorted(MEMBERS - {"2.1"}):
        assert world.handle(messages.Offered(worker=name, epoch=2, number=1, step=4)) == []
    assert voided(world)


def test_a_death_after_the_word_finds_all_with_the_new_lanes() -> None:
    world = offered()
    world.pump()
    world.run_step(world.actors["0.0"])
    world.run_step(world.actors["0.0"])
    world.die("2.1")
    world.pump()
    world.finish()
    assert world.run.phase is RunPhase.FINISHED
    assert len(emitted(world.effects, events.Recovered)) == 2


def test_a_joiner_enters_after_the_change_and_gets_the_new_lanes_of_its_own() -> None:
    world = offered()
    answer(world, *sorted(MEMBERS - {"2.1"}))
    world.come(VICTIM)
    assert VICTIM not in sent(world.effects, messages.Offer)
    world.pump()
    assert set(sent(world.effects, messages.Adopt)) == MEMBERS
    world.step(4)
    assert world.stages[VICTIM] == 0
    assert WorkerId(1, 0) in loads(world.last_proceed.schedule).lanes
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_joiner_that_is_ready_does_not_enter_while_an_offer_is_pending() -> None:
    world = offered()
    world.actors["2.1"].mute = True
    world.come(VICTIM)
    world.pump()
    world.follow(world.actors[VICTIM])
    assert world.phase(VICTIM) is WorkerPhase.COPYING
    assert not [e for e in emitted(world.effects, events.Recovered) if "join" in e.cause]


def test_an_interrupt_waits_for_the_answers_and_then_ends_the_run() -> None:
    world = offered()
    answer(world, "0.0")
    effects = world.take(world.run.interrupt(world.at_s))
    assert not sent(effects, messages.Halt)
    world.pump()
    assert {halt.epoch for halt in sent(world.effects, messages.Halt).values()} == {3}
    world.finish()
    assert "interrupted" in str(world.run.failure)
    assert emitted(world.effects, events.Recovered)[-1].cause == "interrupt"


def test_a_stage_that_is_lost_makes_an_offer_void_too() -> None:
    world = offered()
    answer(world, "0.0", "0.1", "1.1", "2.1")
    world.die("0.0")
    world.die("2.0")
    world.pump()
    assert emitted(world.effects, events.WentBack)
    world.finish()
    assert world.run.phase is RunPhase.FINISHED
    assert voided(world)


def test_if_the_word_never_comes_whoever_waits_complains_and_all_begin_anew() -> None:
    world = offered()
    answer(world, *sorted(MEMBERS - {"2.1"}))
    world.actors["2.1"].inbox.clear()  # it never hears of it
    effects = world.handle(messages.PeerGone(worker="0.0", epoch=2, lost=""))
    assert set(sent(effects, messages.Halt)) == MEMBERS
    world.pump()
    assert voided(world)
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_member_that_falls_silent_with_an_offer_is_lost_like_any_other() -> None:
    world = offered()
    frozen = world.actors["2.1"]
    frozen.silent = frozen.mute = True
    world.pump()
    world.tick(11.0)
    del world.actors["2.1"]
    world.pump()
    assert set(world.stages) == MEMBERS - {"2.1"}
    assert voided(world)
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_what_is_offered_in_the_last_steps_holds_nobody_up() -> None:
    world = offered(steps=40)
    world.pump()
    world.step(34)
    find_better(world, 2)
    world.step()
    assert emitted(world.effects, events.PlanSwitched)[-1].step >= 40
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_all_run_a_step_with_the_same_lanes(seed) -> None:
    """The world checks it; deaths, joins, silence, and better plans all the time."""
    dice = random.Random(f"switches {seed}")
    world = World(3, steps=60, workers={"start_limit_s": 5.0}).start()
    plans = world.run.parts.plans

    def better(steps_left):
        steady = plans.planned(plans.problem(world.run.run.stages))
        if dice.random() < 0.5 or not steps_left:
            return None
        turned = SomePlan(world.planner.asked[-1], 0.5, "cleverer", dice.randrange(3)).schedule()
        return steady._replace(schedule=turned)

    plans.better = better
    much_happens(world, dice)


# --- what died with a worker ---

SHAPE = Shape(2, 1, 4)
ONE, OTHER = WorkerId(0, 0), WorkerId(1, 0)


def lanes_of(*shares: tuple[int, ...]) -> Schedule:
    lanes = {}
    for worker, share in zip((ONE, OTHER), shares, strict=True):
        ops = [Op(0, kind, m) for kind in (Kind.F, Kind.BW) for m in share]
        lanes[worker] = (*ops, Op(0, Kind.R))
    return Schedule(SHAPE, lanes)


BEFORE, AFTER = lanes_of((0, 1), (2, 3)), lanes_of((0, 1, 2), (3,))


@pytest.mark.parametrize(
    ("step", "lanes_then", "lanes_now"),
    [(6, BEFORE, BEFORE), (7, BEFORE, AFTER), (8, AFTER, AFTER)],
)
def test_what_the_dead_had_finished_is_looked_up_in_the_lanes_of_each_step(
    step, lanes_then, lanes_now
) -> None:
    work = ProgressTracker()
    work.adopt(1, (), BEFORE, {ONE: (0, 0, 0), OTHER: (0, 0, 0)})
    work.switch(7, AFTER)
    work.note(ONE, 1, step, 3)
    then, now = work.dead(ONE, 0)
    assert (then.step, then.done) == (step - 1, lanes_then.lanes[ONE])
    assert (now.step, now.done) == (step, lanes_now.lanes[ONE][:3])


def test_a_change_after_a_switch_begins_with_lanes_of_its_own() -> None:
    work = ProgressTracker()
    work.adopt(1, (), BEFORE, {ONE: (0, 0, 0)})
    work.switch(7, AFTER)
    work.adopt(2, (), BEFORE, {ONE: (7, 0, 2)})
    work.note(ONE, 2, 9, 1)
    assert work.dead(ONE, 0)[0].done == BEFORE.lanes[ONE]


@pytest.mark.parametrize(("num_steps", "count"), [(0, 1), (1, 2)])
def test_work_that_died_is_counted_by_the_lanes_of_its_step(num_steps, count) -> None:
    """Before the switch 2.0 has other micro-batches than after it."""
    world = offered()
    world.pump()
    world.step(num_steps)
    step = 4 + num_steps
    lane = world.actors["2.0"].lanes.of(step, 1.0).schedule.lanes[WorkerId(2, 0)]
    mine = [op.microbatch for op in lane if op.kind is Kind.F][:count]
    world.beat("2.0", done=count)
    assert world.run.parts.tracker.dead(WorkerId(2, 0), 0)[-1].done == lane[:count]
    world.die("2.0")
    for name in sorted(MEMBERS - {"2.0"}):
        kept = [KeptRow(step, mine, [])] if name == "0.0" else []
        world.tell(name, kept=kept)
    for actor in world.live():
        actor.inbox.clear()
        world.handle(messages.Resumed(worker=actor.name, epoch=3, at_s=1.0))
    event = emitted(world.effects, events.Recovered)[-1]
    assert event.redone == count
