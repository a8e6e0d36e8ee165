"""A lost worker is started again while the others go on; what did not come of it is said."""

from helpers.harness.coordinator_world import World, emitted, pid_of
from holdfast.control.effects import StartWorker
from holdfast.control.state.lifecycle import RunPhase
from holdfast.observability import events
from holdfast.protocol import messages


def started(effects):
    return [str(effect.worker) for effect in effects if isinstance(effect, StartWorker)]


def local(world):
    """As if an agent had started them all."""
    for name in list(world.actors):
        world.handle(messages.WorkerStarted(worker=name, pid=pid_of(name)))
    return world


def lost(world, name="1.0"):
    world.die(name)
    world.pump()
    return world.tick(0.4)


def test_a_lost_worker_is_started_again_after_a_pause_and_joins():
    world = local(World().start())
    world.step(2)
    assert not started(lost(world))
    assert started(world.tick(0.6)) == ["1.0"]
    [replaced] = emitted(world.effects, events.WorkerReplaced)
    assert (replaced.worker, replaced.number, replaced.limit) == ("1.0", 1, 3)
    world.come("1.0")
    world.step(3)
    assert len(emitted(world.effects, events.WorkerJoined)) == 1
    assert len(world.stages) == 4


def test_each_pause_is_longer_and_after_three_times_it_stays_away():
    world = local(World(steps=1000).start())
    world.step()
    world.die("1.0")
    world.pump()
    pauses = []
    for _ in range(3):
        since_s = world.at_s
        while "1.0" not in started(world.tick(0.2)):
            assert world.at_s - since_s < 10
        pauses.append(world.at_s - since_s)
        world.come("1.0")
        world.die("1.0")
    assert pauses == sorted(pauses)
    assert pauses[2] > 2 * pauses[0]
    assert not started(world.tick(30.0))
    assert not started(world.step(90))
    assert started(world.step(20)) == ["1.0"]  # by then it is forgotten


def test_one_that_the_machine_has_no_room_for_ends_nothing_and_is_started_later():
    world = local(World(steps=1000).start())
    world.step()
    lost(world)
    assert started(world.tick(0.6)) == ["1.0"]
    refused = messages.WorkerNotStarted(worker="1.0", reason="Too many open files")
    [failed] = emitted(world.handle(refused), events.JoinFailed)
    assert (failed.worker, failed.reason) == ("1.0", "could not be started: Too many open files")
    assert world.handle(refused) == []  # nobody is on the way any more
    assert started(world.tick(2.0)) == ["1.0"]
    world.come("1.0")
    world.step(3)
    assert len(world.stages) == 4


def test_nobody_is_started_if_the_setting_says_so_or_who_came_by_hand_is_lost():
    world = local(World(workers={"replace": 0}).start())
    by_hand = World().start()  # no agent has said that it started them
    for each in (world, by_hand):
        each.step()
        each.die("1.0")
        each.pump()
        assert not started(each.tick(5.0))


def test_nobody_is_started_for_the_last_step():
    world = local(World(steps=4).start())
    world.step(3)
    world.die("1.0")
    world.pump()
    assert not started(world.tick(5.0))


def test_one_that_was_left_out_for_being_slow_stays_away():
    world = local(World().start())
    world.step()
    world.run.parts.replacing.leave_out(next(iter(world.run.run.stages)))
    world.die("0.0")
    world.pump()
    assert not started(world.tick(5.0))


def test_with_a_lost_stage_all_go_back_and_restarts_alone_count():
    world = local(World(1, 2).start())
    world.step(3)
    world.die("0.1")
    world.pump()
    world.tick(1.0)
    assert started(world.effects) == ["0.1"]
    assert not emitted(world.effects, events.WorkerReplaced)
    [back] = emitted(world.effects, events.WentBack)
    assert (back.to_step, back.thrown_away) == (0, 3)
    world.come("0.1")
    world.pump()
    [recovered] = [e for e in emitted(world.effects, events.Recovered) if "death" in e.cause]
    assert recovered.thrown_away == 3


def test_a_join_that_is_not_complete_is_said_also_when_the_run_is_interrupted_or_fails():
    for interrupts in (1, 2):
        world = World(steps=20, faults=["join @ 3"]).start()
        world.step()
        world.die("1.0")
        world.pump()
        world.step(4)
        for _ in range(interrupts):
            world.take(world.run.interrupt(world.at_s))
        world.pump()
        [unfinished] = emitted(world.effects, events.JoinUnfinished)
        assert (unfinished.worker, unfinished.state) == ("1.0", "starting")
        assert emitted(world.effects, events.RunFailed)


def test_nobody_who_goes_back_with_all_counts_as_a_join():
    world = World(1, 2, steps=20).start()
    world.step(2)
    world.die("0.1")
    world.pump()
    assert world.run.phase is RunPhase.RETURNING
    world.take(world.run.interrupt(world.at_s))
    assert "0.0" not in [e.worker for e in emitted(world.effects, events.JoinUnfinished)]
    assert emitted(world.effects, events.RunFailed)


def test_a_join_that_is_not_complete_at_the_end_is_said():
    world = World(steps=6, faults=["join @ 3"]).start()
    world.step()
    world.die("1.0")
    world.pump()
    effects = world.finish()
    [unfinished] = emitted(effects, events.JoinUnfinished)
    assert (unfinished.worker, unfinished.fault, unfinished.state) == (
        "1.0",
        "join @ 3",
        "starting",
    )
