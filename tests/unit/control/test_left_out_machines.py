"""Machines whose links stay bad: left out as one event, and let in when their links are good."""

from helpers.agents import agent_hello
from helpers.harness.coordinator_world import World, emitted, pid_of, sent
from holdfast.control.effects import CheckLinks, FenceMachine, StartWorker
from holdfast.control.liveness.left_out import FIRST_PAUSE_S
from holdfast.control.liveness.link_complaints import MOST_COMPLAINTS, PATIENCE_S
from holdfast.control.state.lifecycle import RunPhase
from holdfast.observability import events
from holdfast.protocol import messages

HOSTS = ("h0", "h1", "h2", "h3")


def of_machines() -> World:
    """A pipeline on each of four machines; the first is the coordinator's own."""
    world = World(4, machines={"count": 4}, workers={"replace": 9}, steps=200)
    for name in HOSTS:
        world.take(come(world, name))
    for worker in world.run.workers:
        world.handle(messages.WorkerStarted(worker=str(worker), pid=pid_of(str(worker))))
    return world.start()


def come(world: World, name: str):
    hello = agent_hello(machine=name, slots=2)
    return world.run.machines.came(hello, world.at_s, is_own=name == "h0")


def on(world: World, name: str) -> list[str]:
    return [str(worker) for worker in world.run.run.machines.on(name)]


def stay_bad(world: World, *pairs: tuple[str, str], times: int = MOST_COMPLAINTS) -> None:
    """A worker of each of two machines complains of one on the other, again and again."""
    for _ in range(times):
        for one, other in pairs:
            epoch = world.run.run.epoch
            by, about = on(world, one)[0], on(world, other)[1]
            world.handle(messages.PeerGone(worker=by, epoch=epoch, lost=about))
        world.tick(2 * PATIENCE_S)
        world.pump()


def test_links_that_stay_bad_cost_machines_in_one_change() -> None:
    world = of_machines()
    world.step(2)
    gone = {*on(world, "h2"), *on(world, "h3")}
    epoch = world.run.run.epoch
    stay_bad(world, ("h0", "h2"), ("h0", "h3"), ("h2", "h1"), ("h1", "h3"))
    assert set(world.run.run.machines.here) == {"h0", "h1"}
    lost = emitted(world.effects, events.MachineLost)
    assert [event.machine for event in lost] == ["h2", "h3"]
    assert lost[0].cause == "no connection to h0, h1, again and again"
    assert [e.machine for e in world.effects if isinstance(e, FenceMachine)] == ["h2", "h3"]
    assert {event.worker for event in emitted(world.effects, events.WorkerLost)} == gone
    assert world.run.run.epoch == epoch + MOST_COMPLAINTS, "one for all that were left out"
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_links_that_are_bad_for_a_while_cost_nobody() -> None:
    world = of_machines()
    stay_bad(world, ("h0", "h2"), ("h1", "h3"), times=MOST_COMPLAINTS - 1)
    world.finish()
    assert not emitted(world.effects, events.MachineLost)


def asked(world: World) -> list[CheckLinks]:
    return [effect for effect in world.effects if isinstance(effect, CheckLinks)]


def started(world: World, name: str) -> list[str]:
    return [
        str(e.worker) for e in world.effects if isinstance(e, StartWorker) and e.machine == name
    ]


def test_a_machine_comes_in_again_when_it_reaches_the_others_and_not_before() -> None:
    world = of_machines()
    stay_bad(world, ("h0", "h3"))
    first = len(started(world, "h3"))
    world.take(come(world, "h3"))
    world.tick(FIRST_PAUSE_S)
    world.pump()
    assert [(one.machine, sorted(one.others)) for one in asked(world)] == [
        ("h3", ["h0", "h1", "h2"])
    ]
    world.take(world.run.machines.checked("h3", ["h0"], world.at_s))
    world.tick(FIRST_PAUSE_S)
    world.pump()
    assert len(asked(world)) == 1, "the pause is longer now"
    assert len(started(world, "h3")) == first
    [warned] = [e for e in emitted(world.effects, events.Warned) if "h3" in e.reason]
    assert "cannot reach h0" in warned.reason
    world.tick(FIRST_PAUSE_S)
    assert len(asked(world)) == 2
    world.take(world.run.machines.checked("h3", [], world.at_s))
    world.tick(5.0)
    world.pump()
    assert len(started(world, "h3")) == first + 2
    assert not sent(world.effects, messages.Stop)


def test_links_that_only_seem_good_stop_the_run_ever_more_rarely() -> None:
    world = of_machines()
    pauses = []
    for _ in range(3):
        stay_bad(world, ("h0", "h3"))
        assert "h3" not in world.run.run.machines.here
        began_s, num = world.at_s, len(asked(world))
        world.take(come(world, "h3"))
        while len(asked(world)) == num:
            world.tick(0.5)
            world.pump()
        pauses.append(world.at_s - began_s)
        num = len(started(world, "h3"))
        world.take(world.run.machines.checked("h3", [], world.at_s))
        let_in(world, num)
    assert [round(pause_s / pauses[0]) for pause_s in pauses] == [1, 2, 4]


def let_in(world: World, num: int) -> None:
    """``num``: that had been started there before."""
    for _ in range(50):
        world.tick(0.5)
        for name in started(world, "h3")[num:]:
            if name not in world.stages:
                world.handle(messages.WorkerStarted(worker=name, pid=pid_of(name)))
                world.come(name)
                num += 1
        world.pump()
        world.step(1)
        if len(world.stages) == 8:
            return
    raise AssertionError("nobody has joined")


def test_an_answer_that_nobody_has_asked_for_changes_nothing() -> None:
    world = of_machines()
    assert world.run.machines.checked("h1", ["h0"], 1.0) == []
    assert world.run.machines.checked("nobody", [], 1.0) == []
