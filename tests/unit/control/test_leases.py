"""Workers of several machines hear again and again that they may go on committing."""

from helpers.agents import agent_hello
from helpers.harness.coordinator_world import World, sent
from holdfast.protocol import messages

EVERYONE = {"0.0", "0.1", "1.0", "1.1"}


def of_machines(**more) -> World:
    world = World(machines={"count": 2}, workers={"heartbeat_timeout_s": 3}, **more)
    for name in ("a", "b"):
        world.take(world.run.machines.came(agent_hello(machine=name, slots=2), 0.0))
    return world.start()


def beat(world: World, worker: str, renewed: int) -> None:
    world.handle(
        messages.Heartbeat(
            worker=worker,
            epoch=world.run.run.epoch,
            step=0,
            attempt=0,
            done=0,
            operation="",
            number=-1,
            microbatch=-1,
            busy_s=0.0,
            longest={},
            renewed=renewed,
        )
    )


def test_three_times_a_lease_with_what_each_has_told() -> None:
    world = of_machines()
    told = []
    for _ in range(60):  # three seconds
        for name in sorted(EVERYONE):
            beat(world, name, renewed=7 if name == "1.1" else 5)
        world.at_s += 0.05
        effects = world.take(world.run.tick(world.at_s))
        if found := sent(effects, messages.Renewal):
            told.append(found)
    assert len(told) == 3
    for renewals in told:
        assert {name: one.answers for name, one in renewals.items()} == {
            name: 7 if name == "1.1" else 5 for name in EVERYONE
        }
        assert renewals["0.0"] is renewals["1.0"], "it is encoded once"
    numbers = [renewals["0.0"].number for renewals in told]
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_a_lease_is_shorter_than_the_silence_after_which_a_worker_is_lost() -> None:
    world = of_machines()
    timeouts = world.run.run.timeouts
    assert 0.9 * timeouts.heartbeat_timeout_s < timeouts.lease_s < timeouts.heartbeat_timeout_s


def test_whoever_has_not_beaten_yet_is_told_nothing() -> None:
    world = of_machines()
    beat(world, "0.0", renewed=0)
    world.at_s += 10
    assert sent(world.take(world.run.tick(world.at_s)), messages.Renewal).keys() == {"0.0"}


def test_a_run_on_one_machine_has_no_leases() -> None:
    world = World().start()
    world.tick(30.0)
    assert not sent(world.effects, messages.Renewal)
