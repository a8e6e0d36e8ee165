"""A cause that a replacement would die of too: named in words, and not tried for ever."""

import signal

import pytest
from coordinator_world import World, emitted

from holdfast.control.effects import StartWorker
from holdfast.control.exits import describe
from holdfast.control.run import RunPhase
from holdfast.observability import events

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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_comes_from_outside_may_come_again(number) -> None:
    world = World(3).start()
    for name in ("0.1", "1.1"):
        dies(world, name, number)
    assert not world.run.over
