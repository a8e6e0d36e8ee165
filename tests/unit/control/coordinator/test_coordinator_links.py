"""Workers that complain of each other: nobody is believed at once, and no run hangs."""

import random

import pytest

from helpers.harness.coordinator_world import World, emitted, much_happens, sent
from holdfast.control.liveness.link_complaints import MOST_COMPLAINTS, PATIENCE_S
from holdfast.control.state.lifecycle import RunPhase
from holdfast.observability import events
from holdfast.protocol import messages

EVERYONE = {"0.0", "0.1", "1.0", "1.1"}


def complain(world: World, by: str, about: str) -> list:
    gone = messages.PeerGone(worker=by, epoch=world.run.run.epoch, lost=about)
    return world.handle(gone)


def lost(world: World) -> list[tuple[str, str]]:
    return [(event.worker, event.cause) for event in emitted(world.effects, events.WorkerLost)]


def test_r4_a_worker_that_is_complained_of_and_lives_stays_a_member() -> None:
    world = World().start()
    world.step(2)
    assert complain(world, "0.1", "1.0") == []
    effects = world.tick(2 * PATIENCE_S)
    assert set(sent(effects, messages.Halt)) == EVERYONE, "all connect anew"
    world.pump()
    assert set(sent(world.effects, messages.Proceed)) == EVERYONE
    assert set(world.stages) == EVERYONE
    world.finish()
    assert world.run.phase is RunPhase.FINISHED
    assert not lost(world)
    [recovered] = emitted(world.effects, events.Recovered)
    assert recovered.cause == "link"


def test_r4_a_death_is_noticed_as_fast_as_before_and_once() -> None:
    world = World().start()
    complain(world, "0.1", "1.0")
    assert set(sent(world.die("1.0"), messages.Halt)) == EVERYONE - {"1.0"}
    world.pump()
    assert not sent(world.tick(2 * PATIENCE_S), messages.Halt), "the complaint is explained"
    assert world.run.run.epoch == 2


def test_a_complaint_of_one_who_ends_because_of_it_is_not_believed_either() -> None:
    world = World().start()
    failed = messages.Failed(worker="0.1", lost="1.0", exit_code=1, reason="", details="")
    world.handle(failed)
    world.die("0.1")
    world.pump()
    world.tick(2 * PATIENCE_S)
    world.pump()
    assert set(world.stages) == EVERYONE - {"0.1"}


def stays_bad(world: World, *pairs: tuple[str, str]) -> None:
    """Until something is done about it, within the limits."""
    for _ in range(MOST_COMPLAINTS):
        for by, about in pairs:
            if {by, about} <= set(world.stages):
                complain(world, by, about)
        world.tick(2 * PATIENCE_S)
        world.pump()


def test_r4_a_link_that_stays_broken_costs_one_worker_and_says_so() -> None:
    world = World().start()
    world.step(2)
    stays_bad(world, ("0.1", "1.0"))
    assert len(world.stages) == 3
    world.finish()
    [(worker, cause)] = lost(world)
    other = {"0.1": "1.0", "1.0": "0.1"}[worker]
    assert cause == f"no connection to {other}, again and again"


def test_r4_one_bad_network_card_does_not_get_its_healthy_peers_fenced() -> None:
    world = World(3).start()
    world.step(2)
    stays_bad(world, ("1.0", "0.1"), ("1.1", "1.0"), ("2.1", "1.0"), ("1.0", "0.0"))
    world.finish()
    assert [worker for worker, _ in lost(world)] == ["1.0"]


def test_complaints_now_and_then_cost_nobody() -> None:
    world = World(steps=60).start()
    for _ in range(2 * MOST_COMPLAINTS):
        complain(world, "0.1", "1.0")
        world.tick(2 * PATIENCE_S)
        world.pump()
        world.step(2)
        world.tick(world.run.run.timeouts.wait_s)
        world.pump()
    world.finish()
    assert not lost(world)


def test_a_complaint_in_the_middle_of_a_change_begins_it_again() -> None:
    world = World(3).start()
    world.step(2)
    world.die("2.1")
    for name in sorted(world.stages):
        world.actors[name].inbox.clear()
        world.tell(name)
    assert sent(world.effects, messages.Proceed)
    complain(world, "0.0", "1.1")
    assert "1.1" in sent(world.tick(2 * PATIENCE_S), messages.Halt)
    world.pump()
    world.finish()
    assert [worker for worker, _ in lost(world)] == ["2.1"]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_with_complaints_all_the_time_ends(seed) -> None:
    dice = random.Random(seed)
    world = World(3, steps=30).start()
    for _ in range(15):
        if world.run.over:
            break
        members = sorted(world.stages)
        if len(members) > 1 and world.run.phase is RunPhase.TRAINING:
            complain(world, *dice.sample(members, 2))
        world.tick(dice.choice([0.2, 1.0]))
        world.pump()
        world.step()
    if not world.run.over:
        much_happens(world, dice)
    assert world.run.over
