"""Workers that compute on devices: their memory limits the micro-batches in flight."""

import pytest

from helpers.harness.coordinator_world import World, emitted, sent
from helpers.harness.mortal_world import MortalWorld
from holdfast.control.state.lifecycle import RunPhase
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.schedule.schedule import Schedule, loads
from holdfast.schedule.validity import in_flight_peak

# Each stage keeps 3 MiB of a micro-batch; nine tenths of a device are counted on.
FOR_THREE, FOR_MANY, NONE = 11 << 20, 1 << 30, 0
MANY = 8  # micro-batches of a pipeline


def start(world: World, device_bytes: int, **more: object) -> World:
    for index, worker in enumerate(world.run.workers):
        world.come(str(worker), device_index=index, device_bytes=device_bytes, **more)
    world.pump()
    assert world.run.phase is RunPhase.TRAINING
    return world


def peak(schedule: Schedule) -> int:
    return max(map(in_flight_peak, schedule.lanes.values()))


def started(world: World) -> events.RunStarted:
    (event,) = emitted(world.effects, events.RunStarted)
    return event


@pytest.mark.parametrize("name", ["zero-bubble", "1f1b", "gpipe"])
def test_no_lane_has_more_in_flight_than_devices_have_room_for(name):
    schedule = {"name": name}
    world = start(World(1, 4, microbatches=MANY, schedule=schedule), 8 << 20)  # of 1.5 layers
    usual = start(World(1, 4, microbatches=MANY, schedule=schedule), FOR_MANY)
    limit = world.run.run.plan.cut.in_flight
    assert limit == started(world).in_flight < 4
    assert peak(loads(world.last_proceed.schedule)) <= limit
    assert peak(loads(usual.last_proceed.schedule)) > limit
    assert started(usual).in_flight == 0


def test_a_cut_that_was_asked_for_stays_though_layers_are_measured():
    world = start(World(1, 2, microbatches=MANY), FOR_THREE, cut=[2])
    assert list(sent(world.effects, messages.MeasureLayers)) == ["0.0"]
    assert {tuple(a.cut) for a in sent(world.effects, messages.Assign).values()} == {(2,)}
    assert started(world).reason == "layers cut as asked"
    assert world.run.run.plan.cut.in_flight == 2  # the second stage has four layers


def test_a_single_stage_has_a_limit_too():
    world = start(World(1, 1, microbatches=MANY), 8 << 20)
    assert list(sent(world.effects, messages.MeasureLayers)) == ["0.0"]
    assert (started(world).in_flight, started(world).cut) == (1, ())


@pytest.mark.parametrize(
    ("device_bytes", "settings"),
    [
        (NONE, {}),
        (FOR_THREE, {"schedule": {"memory": 4}}),
        (FOR_THREE, {"device": {"emulate": "F=20ms,B=20ms,W=20ms"}}),
    ],
)
def test_nobody_measures_where_nobody_wants_to_know(device_bytes, settings):
    world = start(World(1, 2, microbatches=MANY, **settings), device_bytes)
    assert not sent(world.effects, messages.MeasureLayers)
    assert world.run.run.plan.cut.in_flight == 4
    assert started(world).in_flight == 0


def test_plans_after_a_death_keep_to_it():
    world = start(World(2, 2, microbatches=2 * MANY), FOR_THREE)
    world.step()
    world.die("1.0")
    world.step(2)
    assert world.planner.asked
    assert {problem.memory.limit for problem in world.planner.asked} == {3}


def test_a_successor_keeps_to_it_and_knows_the_devices():
    world = start(MortalWorld(2, 2, microbatches=2 * MANY, steps=6), FOR_THREE)
    world.step(2)
    world.planner.asked.clear()
    before = dict(world.run.run.hellos)
    world.take_over()
    world.pump()
    assert world.run.run.hellos == before
    assert world.run.run.plan.cut.in_flight == 3
    world.die("1.0")
    world.finish()
    assert {problem.memory.limit for problem in world.planner.asked} == {3}
