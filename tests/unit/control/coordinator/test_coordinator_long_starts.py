"""A job may load and build as long as ``workers.start_limit_s`` says, and none is tried for ever.

Time is scripted: what takes 100 s here takes none.
"""

from helpers.harness.coordinator_world import World, emitted
from holdfast.control.effects import StartWorker
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.observability import events

LOAD_S = 100.0  # of a job, below the default limit of 180 s


def started(effects) -> list[str]:
    return [str(effect.worker) for effect in effects if isinstance(effect, StartWorker)]


def lose(world: World, name: str):
    """And wait until it is clear why."""
    return world.die(name) + world.pump() + world.tick(0.5)


def loads_slowly(world: World, name: str) -> None:
    """It says hello, and needs as long again to build."""
    world.tick(LOAD_S)
    world.come(name)
    world.actors[name].mute = True
    world.tick(LOAD_S)
    world.actors[name].mute = False
    world.pump()


def test_r2_a_way_back_waits_for_a_job_that_loads_100_s() -> None:
    world = World(1).start()
    world.step(3)
    assert started(lose(world, "0.1")) == ["0.1"]
    assert world.run.phase is RunPhase.RETURNING
    loads_slowly(world, "0.1")
    assert not emitted(world.effects, events.JoinFailed)
    assert world.stages == {"0.0": 0, "0.1": 1}
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_r2_survivors_that_load_the_job_again_are_waited_for() -> None:
    world = World(1).start()
    world.step(3)
    world.actors["0.0"].mute = True  # beats, but builds for as long as the other
    world.die("0.1")
    world.tell("0.0")
    world.tick(0.5)
    world.actors["0.0"].inbox.clear()
    world.tick(LOAD_S)
    world.come("0.1")
    assert world.phase("0.0") is WorkerPhase.BUILDING
    world.tick(50.0)
    assert world.phase("0.0") is WorkerPhase.BUILDING
    assert len(emitted(world.effects, events.WorkerLost)) == 1


def test_r2_a_joiner_may_take_100_s_to_load() -> None:
    world = World(2, faults=["join @ 3"]).start()
    world.step(1)
    world.die("1.1")
    world.pump()
    world.step(2)
    assert world.phase("1.1") is WorkerPhase.STARTING
    loads_slowly(world, "1.1")
    world.step(3)
    assert world.phase("1.1") is WorkerPhase.MEMBER


def test_r2_rounds_in_which_two_never_come_end() -> None:
    """Each failure was free while the other was on the way: it never ended."""
    world = World(1, 3, workers={"restarts": 3, "start_limit_s": 20.0}).start()
    world.step(2)
    world.die("0.1")
    lose(world, "0.2")
    for _ in range(10):
        if world.run.over:
            break
        world.tick(21.0)
    assert world.run.phase is RunPhase.FAILED
    assert "started again 3 times in a row (workers.restarts=3)" in str(world.run.failure)
    assert len(started(world.effects)) == 6


def test_r2_rounds_whose_workers_fail_in_turns_end_too() -> None:
    world = World(1, 3, workers={"restarts": 3, "start_limit_s": 20.0}).start()
    world.step(2)
    world.die("0.1")
    lose(world, "0.2")
    world.tick(10.0)
    world.come("0.1")
    for _ in range(20):
        if world.run.over:
            break
        world.die("0.1")
        world.tick(10.0)
        if not world.run.over:
            world.come("0.1")
    assert world.run.phase is RunPhase.FAILED
