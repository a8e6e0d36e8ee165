"""Heartbeats that an agent has passed on together are heard as if each had come by itself."""

from collections.abc import Iterable

import pytest

from helpers.harness.coordinator_world import World, emitted
from holdfast.cluster import parse_worker
from holdfast.control.effects import AskStack
from holdfast.control.inventory.losses import ProgressTracker
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.errors import Implausible
from holdfast.observability import events
from holdfast.protocol.gathering import Beat, heartbeat_of
from holdfast.protocol.records import BeatRow, LongestRow

BEAT_S = 0.2


def beat(world: World, name: str, **changes) -> Beat:
    row = BeatRow(
        worker=name, epoch=world.run.run.epoch, step=world.actors[name].reduced, attempt=0, done=1,
        operation="", number=-1, microbatch=-1, busy_s=0.0, saving=False, renewed=0, num_longest=1,
    )._replace(**changes)  # fmt: skip
    return Beat(row, [LongestRow("load", 0.05)])


def hear(world: World, beats: Iterable[Beat], alive: Iterable[str] = ()) -> list[Beat]:
    effects, rest = world.run.hear_beats(list(beats), list(map(parse_worker, alive)), world.at_s)
    world.take(effects)
    return rest


def passes(world: World, seconds: float, *, without: str = "", **changes) -> None:
    """``changes``: of what 1.0 tells; its ``busy_s`` grows by itself."""
    until_s = world.at_s + seconds
    began_s = world.at_s
    while world.at_s < until_s:
        world.at_s += BEAT_S
        told = {name: changes if name == "1.0" else {} for name in world.actors if name != without}
        if changes:
            told["1.0"] = changes | {"busy_s": world.at_s - began_s}
        assert not hear(world, [beat(world, name, **more) for name, more in told.items()])
        world.take(world.run.tick(world.at_s))


@pytest.fixture
def world() -> World:
    made = World(2).start()
    made.step(4)
    return made


def test_whoever_is_passed_on_lives_and_whoever_is_not_is_lost(world) -> None:
    timeout_s = world.run.run.timeouts.heartbeat_timeout_s
    passes(world, timeout_s - BEAT_S, without="1.0")
    assert world.phase("1.0") is WorkerPhase.MEMBER
    passes(world, 3 * BEAT_S, without="1.0")
    assert world.phase("1.0") is WorkerPhase.LOST
    assert world.phase("0.0") is WorkerPhase.MEMBER


def test_one_that_tells_nothing_new_lives_and_is_as_it_was(world) -> None:
    hear(world, [beat(world, name, saving=True) for name in world.actors])
    for _ in range(30):
        world.at_s += BEAT_S
        hear(world, [], [*world.actors, "7.7"])
        world.take(world.run.tick(world.at_s))
    assert {world.phase(name) for name in world.actors} == {WorkerPhase.MEMBER}
    assert world.run.run.saved.saving == set(map(parse_worker, world.actors))
    for _ in range(30):
        world.at_s += BEAT_S
        hear(world, [], [name for name in world.actors if name != "1.0"])
        world.take(world.run.tick(world.at_s))
    assert world.phase("1.0") is WorkerPhase.LOST


def test_one_that_is_stuck_is_found_by_what_is_passed_on(world) -> None:
    passes(world, 2.0)  # what is usual is learnt
    passes(world, 3.0, operation="load", number=9)
    asked = [each.worker for each in world.effects if isinstance(each, AskStack)]
    assert asked == [parse_worker("1.0")]
    assert not emitted(world.effects, events.WorkerLost)


@pytest.mark.parametrize("lie", [{"step": 21}, {"epoch": 99}])
def test_one_that_lies_is_left_to_be_heard_alone_and_the_others_count(world, lie) -> None:
    lies = beat(world, "0.0", **lie)
    assert hear(world, [lies, beat(world, "1.0", saving=True)]) == [lies]
    assert world.run.run.saved.saving == {parse_worker("1.0")}
    with pytest.raises(Implausible):
        world.run.handle(heartbeat_of(lies), world.at_s)


def test_one_that_breaks_what_hears_it_costs_the_others_nothing(world, monkeypatch) -> None:
    note = ProgressTracker.note

    def breaks(tracker, worker, *more):
        if worker == parse_worker("0.0"):
            raise KeyError(worker)
        note(tracker, worker, *more)

    monkeypatch.setattr(ProgressTracker, "note", breaks)
    bad = beat(world, "0.0")
    assert hear(world, [bad, beat(world, "1.0", saving=True)]) == [bad]
    assert world.run.run.saved.saving == {parse_worker("1.0")}
    assert not world.run.over


def test_what_the_gone_tell_does_not_count(world) -> None:
    told = beat(world, "1.0", saving=True)
    world.die("1.0")
    assert hear(world, [told]) == []
    assert world.run.run.saved.saving == set()


@pytest.mark.parametrize(("pipelines", "waits"), [(2, False), (40, True)])
def test_only_in_a_large_run_and_while_nothing_is_under_way_words_may_wait(
    pipelines, waits
) -> None:
    world = World(pipelines)
    assert world.run.pause_s == 0.0
    world.start()
    assert (world.run.pause_s > 0.0) == waits
    world.take(world.run.lost_connection("1.0", world.at_s))
    assert world.run.pause_s == 0.0
