"""Workers of several machines hear again and again that they may go on committing."""

from itertools import pairwise

from helpers.agents import agent_hello
from helpers.harness.coordinator_world import World, sent
from holdfast.cluster import parse_worker
from holdfast.control.effects import TellAgents
from holdfast.protocol import messages
from holdfast.protocol.gathering import Beat
from holdfast.protocol.records import BeatRow
from holdfast.protocol.successors import SILENCE_S

EVERYONE = {"0.0", "0.1", "1.0", "1.1"}


def of_machines(heartbeat_timeout_s: float = 3) -> World:
    limits = {"heartbeat_timeout_s": heartbeat_timeout_s}
    world = World(machines={"count": 2}, workers=limits)
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


def passed_on(world: World, told: dict[str, int]) -> None:
    """Heartbeats by the agents."""
    rows = [
        BeatRow(name, world.run.run.epoch, 0, 0, 0, "", -1, -1, 0.0, False, renewed, 0)
        for name, renewed in told.items()
    ]
    world.run.hear_beats([Beat(row, []) for row in rows], [], world.at_s)


def renewals(world: World) -> tuple[dict[str, messages.Renewals], dict[str, messages.Renewal]]:
    """By machine, and to workers themselves."""
    world.at_s += 1.0
    effects = world.take(world.run.tick(world.at_s))
    by_agents = {
        each.machine: each.message
        for each in effects
        if isinstance(each, TellAgents) and isinstance(each.message, messages.Renewals)
    }
    return by_agents, sent(effects, messages.Renewal)


def test_those_whose_agents_pass_on_their_heartbeats_are_told_by_them() -> None:
    world = of_machines()
    world.step(3)
    world.run.parts.leases.note_sign(2, leads=True)
    seats = {name: world.run.run.machines.of(parse_worker(name)) for name in EVERYONE}
    told = {"0.0": 5, "0.1": 5, "1.0": 6}
    passed_on(world, told)
    beat(world, "1.1", renewed=4)  # its agent has not answered
    by_agents, alone = renewals(world)
    assert {name: one.answers for name, one in alone.items()} == {"1.1": 4}
    assert {
        machine: (one.answers, one.next_step, one.heard, one.epoch, one.for_s, one.number)
        for machine, one in by_agents.items()
    } == {
        machine: (
            {name: number for name, number in told.items() if seats[name] == machine},
            2,
            3,
            world.run.run.epoch,
            world.run.run.timeouts.lease_s,
            alone["1.1"].number,
        )
        for machine in ("a", "b")
    }
    assert world.run.parts.leases.by_agents == set(map(parse_worker, told))


def test_steps_that_are_run_once_more_are_not_on_record() -> None:
    world = of_machines()
    world.run.parts.leases.note_sign(17, leads=False)  # before all went back
    passed_on(world, {"0.0": 5})
    [told] = renewals(world)[0].values()
    assert told.next_step == world.run.parts.reports.next_step == 0
    assert not told.leads


def test_a_successor_has_other_numbers() -> None:
    """What comes late of the one before answers none of them."""
    numbers = []
    for epoch in (1, 2):
        world = of_machines()
        world.run.run.placement.recall(epoch, world.run.run.stages)
        passed_on(world, {"0.0": 0})
        numbers.append(renewals(world)[1]["0.0"].number)
    assert numbers[1] - numbers[0] > 1 << 20


def test_what_a_worker_is_told_first_it_is_told_itself() -> None:
    world = of_machines()
    passed_on(world, {"0.0": 0})
    by_agents, alone = renewals(world)
    assert (by_agents, alone.keys()) == ({}, {"0.0"})


def test_one_that_is_given_up_is_not_named_any_more() -> None:
    world = of_machines()
    passed_on(world, {"0.0": 5, "0.1": 5})
    world.die("0.0")
    world.pump()
    by_agents, alone = renewals(world)
    assert [[*one.answers] for one in by_agents.values()] == [["0.1"]]
    assert not alone


def test_one_that_speaks_for_itself_again_is_told_itself() -> None:
    world = of_machines()
    passed_on(world, {"0.0": 5})
    beat(world, "0.0", renewed=6)
    by_agents, alone = renewals(world)
    assert (by_agents, alone["0.0"].answers) == ({}, 6)


def test_also_long_leases_are_renewed_often_enough_to_be_signs_of_life() -> None:
    world = of_machines(heartbeat_timeout_s=60)
    at_s = []
    for _ in range(100):
        beat(world, "0.0", renewed=5)
        world.at_s += 0.1
        if sent(world.take(world.run.tick(world.at_s)), messages.Renewal):
            at_s.append(world.at_s)
    assert max(b - a for a, b in pairwise(at_s)) < SILENCE_S / 2


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
