"""A cause that a replacement would die of too: named in words, and not tried for ever."""

import signal

import pytest

from helpers.harness.coordinator_world import World, emitted, pid_of
from holdfast.control.effects import StartWorker
from holdfast.control.liveness.exits import describe
from holdfast.control.state.lifecycle import RunPhase
from holdfast.observability import events
from holdfast.protocol import messages

DETERMINISTIC = [signal.SIGILL, signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (-9, "signal SIGKILL"),
        (-4, "signal SIGILL (the processor refuses an instruction"),
        (-7, "signal SIGBUS (a mapped file has become shorter, or /dev/shm or the disk is full)"),
        (-11, "signal SIGSEGV (a crash in compiled code"),
        (-40, "signal 40"),
    ],
)
def test_the_cause_is_named_in_words(code, words) -> None:
    assert describe(code).startswith(words)


def dies(world: World, name: str, number: signal.Signals) -> list:
    died = world.die(name, how=describe(-number), code=-number)
    return died + world.pump() + world.tick(0.5)


@pytest.mark.parametrize("number", DETERMINISTIC)
def test_a_replacement_that_dies_as_the_one_before_ends_the_run(number) -> None:
    world = World(1, workers={"restarts": 3}).start()
    world.step(3)
    dies(world, "0.1", number)
    [lost] = emitted(world.effects, events.WorkerLost)
    assert number.name in lost.cause
    assert not world.run.over
    world.come("0.1")
    world.pump()
    world.step(2)  # these had been finished before
    dies(world, "0.1", number)
    assert world.run.phase is RunPhase.FAILED
    assert number.name in str(world.run.failure)
    assert "Another one would die too" in str(world.run.failure)
    assert world.run.failure.exit_code == 1
    assert sum(isinstance(effect, StartWorker) for effect in world.effects) == 1


def test_all_holders_of_a_stage_that_die_so_end_it_too() -> None:
    world = World(2).start()
    dies(world, "0.1", signal.SIGILL)
    assert not world.run.over
    dies(world, "1.1", signal.SIGILL)
    assert world.run.phase is RunPhase.FAILED


def test_another_stage_another_signal_or_a_step_in_between_is_another_cause() -> None:
    world = World(3).start()
    dies(world, "0.1", signal.SIGSEGV)
    dies(world, "0.0", signal.SIGSEGV)
    dies(world, "1.1", signal.SIGBUS)
    world.step(3)
    dies(world, "1.0", signal.SIGSEGV)
    assert not world.run.over


def comes_back(world: World, name: str) -> bool:
    """As an agent would start it."""
    world.handle(messages.WorkerStarted(worker=name, pid=pid_of(name)))
    if not any(isinstance(effect, StartWorker) for effect in world.tick(5.0)):
        return False
    world.come(name)
    world.pump()
    return True


def warnings_of(world: World) -> list[str]:
    return [warned.reason for warned in emitted(world.effects, events.Warned)]


@pytest.mark.parametrize("number", DETERMINISTIC)
@pytest.mark.parametrize("steps_between", [0, 150])
def test_a_place_is_left_empty_after_its_second_such_death_and_the_others_go_on(
    number, steps_between
) -> None:
    world = World(2, steps=1000).start()
    world.handle(messages.WorkerStarted(worker="1.1", pid=pid_of("1.1")))
    world.step(3)
    dies(world, "1.1", number)
    assert comes_back(world, "1.1")
    assert not warnings_of(world)
    world.step(steps_between)
    dies(world, "1.1", number)
    assert not comes_back(world, "1.1")
    assert not any(isinstance(effect, StartWorker) for effect in world.step(250))
    [said] = warnings_of(world)
    assert said.startswith("worker 1.1 died a second time")
    assert describe(-number) in said
    assert world.run.phase is RunPhase.TRAINING


def test_deaths_of_two_places_leave_neither_empty() -> None:
    world = World(3, steps=1000).start()
    for name in ("1.1", "2.1"):
        world.handle(messages.WorkerStarted(worker=name, pid=pid_of(name)))
        dies(world, name, signal.SIGBUS)
        assert comes_back(world, name)
    assert not warnings_of(world)


def test_who_dies_twice_from_outside_is_not_left_out() -> None:
    world = World(2, steps=1000).start()
    world.handle(messages.WorkerStarted(worker="1.1", pid=pid_of("1.1")))
    for _ in range(2):
        dies(world, "1.1", signal.SIGKILL)
        assert comes_back(world, "1.1")
    assert not warnings_of(world)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_comes_from_outside_may_come_again(number) -> None:
    world = World(3).start()
    for name in ("0.1", "1.1"):
        dies(world, name, number)
    assert not world.run.over
