"""Which worker is given which fault: both ends of a link theirs, and what lasts whoever comes."""

from helpers.fired import fired
from helpers.harness.coordinator_world import World, sent
from holdfast.protocol import messages


def test_both_ends_of_a_link_are_given_it_and_other_slowness_its_worker_only() -> None:
    world = World(faults=["link 0.0-1.0 @ 2-3 +15ms", "slow 0.1 @ 2-3 x2.0", "cpu 1.1 @ 2 x2.0"])
    assigned = sent([e for w in world.run.workers for e in world.come(str(w))], messages.Assign)
    assert {name: assign.faults for name, assign in assigned.items()} == {
        "0.0": ["link 0.0-1.0 @ 2-3 +15ms"],
        "0.1": ["slow 0.1 @ 2-3 x2.0"],
        "1.0": ["link 0.0-1.0 @ 2-3 +15ms"],
        "1.1": ["cpu 1.1 @ 2 x2.0"],
    }


def test_who_comes_back_is_given_what_lasts_even_if_it_has_fired() -> None:
    slow, speed, link = "slow 1.0 @ 2-9 x2.0", "slow 1.0=0.5 @ 2", "link 0.0-1.0 @ 2 +15ms"
    world = World(faults=[slow, speed, link]).start()
    for worker, fault in (("1.0", slow), ("1.0", speed), ("0.0", link)):
        world.handle(fired(worker, fault))
    world.die("1.0")
    assert sent(world.come("1.0"), messages.Assign)["1.0"].faults == [slow, link]
