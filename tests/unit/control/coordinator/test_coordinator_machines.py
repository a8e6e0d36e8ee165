"""Machines come and go: where workers are started, and what is lost with a machine."""

from dataclasses import replace
from typing import Any

import pytest

from helpers.agents import agent_hello
from helpers.harness.coordinator_world import NUM_LAYERS, World, emitted, pid_of, sent
from helpers.harness.machine_world import MachineWorld
from holdfast.baselines.registry import policies_of
from holdfast.cluster import parse_worker
from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import (
    Effect,
    Emit,
    FenceMachine,
    ReleaseMachine,
    StartWorker,
    WriteDown,
)
from holdfast.control.join.draining import RETURN_LIMIT_S
from holdfast.control.liveness.lost_machines import AGENT_S
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.takeover.remembering import Former, Writer
from holdfast.control.takeover.snapshot import from_record
from holdfast.errors import ConfigError
from holdfast.observability import events
from holdfast.protocol import messages

TWO = {"a": 2, "b": 2}


def starts(effects) -> dict[str, str]:
    return {str(e.worker): e.machine for e in effects if isinstance(e, StartWorker)}


# --- coming ---


def test_nobody_is_started_before_all_machines_are_here():
    world = MachineWorld({"a": 2}, count=2)
    assert not starts(world.effects)
    assert world.run.is_gathering
    world.machine_comes("b")
    assert not world.run.is_gathering
    assert world.run.phase is RunPhase.TRAINING
    assert set(world.seats().values()) == {"a", "b"}


def test_the_holders_of_a_stage_are_on_two_machines_and_a_pipeline_on_one():
    seats = MachineWorld(TWO).seats()
    assert seats["0.0"] == seats["0.1"] != seats["1.0"] == seats["1.1"]


def test_machines_that_are_too_small_end_the_run_and_say_so():
    world = MachineWorld({"a": 1, "b": 1})
    assert world.run.phase is RunPhase.FAILED
    assert "a has 1 slot, b has 1 slot: room for 2 workers: expected room for 4" in str(
        world.run.failure
    )


def test_a_run_waits_for_its_machines_only_so_long():
    world = MachineWorld({"a": 2}, count=2, machines={"wait_s": 60.0})
    world.tick(59.0)
    assert world.run.is_gathering
    world.tick(2.0)
    assert "machines.wait_s=60 reached: 1 of 2 machines are here (a)" in str(world.run.failure)


def test_a_second_machine_of_the_same_name_is_refused_while_the_first_is_heard():
    world = MachineWorld(TWO)
    with pytest.raises(ConfigError, match="called a is here already"):
        world.machine_comes("a")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": {"holdfast": "9.9"}}, r"machine c has holdfast 9\.9, the run has"),
        ({"slots": 0}, "machine c has 0 slots: expected at least 1, for its agent"),
    ],
)
def test_a_machine_of_no_use_is_refused_with_its_name_and_what_to_do(changes, words):
    world = MachineWorld(TWO)
    with pytest.raises(ConfigError, match=words):
        world.run.machines.came(replace(agent_hello(machine="c"), **changes), world.at_s)


def test_an_agent_that_comes_in_the_place_of_a_silent_one_ends_it():
    world = MachineWorld(TWO)
    world.machine_falls_silent("a")
    world.tick(1.5)
    assert world.run.machines.came(agent_hello(machine="a", slots=2), world.at_s)[0] == (
        FenceMachine("a")
    )


def test_a_run_that_begins_with_places_missing_fills_them_when_a_machine_comes():
    world = MachineWorld({"a": 3}, count=2, machines={"start_with": 1})
    assert world.run.phase is RunPhase.TRAINING
    assert len(world.stages) == 3
    assert set(world.stages.values()) == {0, 1}
    assert set(world.last_proceed.stages) == set(world.stages)
    world.step(2)
    world.machine_comes("b", 2)
    world.tick(1.0)
    world.step(4)
    assert len(world.stages) == 4
    assert sorted(world.seats().values()) == ["a", "a", "a", "b"]
    world.finish()
    assert world.run.failure is None


def test_a_machine_without_room_for_every_stage_is_not_enough_to_begin():
    world = MachineWorld({"a": 1}, count=3, machines={"start_with": 1})
    assert world.run.is_gathering
    world.machine_comes("b", 1)
    assert world.run.phase is RunPhase.TRAINING
    assert set(world.stages.values()) == {0, 1}


# --- going ---


def test_a_machine_that_dies_is_one_change_for_all_its_workers():
    world = MachineWorld(TWO)
    world.step(2)
    epoch = world.run.run.epoch
    effects = world.machine_dies("b")
    effects += world.pump()
    [lost] = emitted(effects, events.MachineLost)
    assert (lost.machine, lost.workers) == ("b", ("1.0", "1.1"))
    assert world.run.run.epoch == epoch + 1
    assert set(world.last_proceed.stages) == {"0.0", "0.1"}
    assert FenceMachine("b") in effects
    [recovered] = emitted(world.finish() + effects, events.Recovered)
    assert (recovered.cause, recovered.workers) == ("death", ("1.0", "1.1"))


def test_a_machine_that_falls_silent_is_one_change_too():
    world = MachineWorld(TWO)
    world.step(4)
    epoch = world.run.run.epoch
    world.machine_falls_silent("b")
    effects = world.tick(4.0)
    assert len(emitted(effects, events.MachineLost)) == 1
    assert world.run.run.epoch == epoch + 1


def test_a_silent_worker_of_a_machine_that_is_heard_is_lost_alone():
    world = MachineWorld(TWO, workers={"heartbeat_timeout_s": 2.0, "replace": 0})
    world.step(4)
    world.actors["1.1"].silent = world.actors["1.1"].mute = True
    effects = [effect for _ in range(15) for effect in world.tick(0.2)]
    assert not emitted(effects, events.MachineLost)
    assert "1.1" not in world.stages
    assert "1.0" in world.stages


def test_a_closed_connection_waits_a_moment_for_the_word_of_the_agent():
    world = MachineWorld(TWO, workers={"replace": 0})
    world.step(2)
    del world.actors["1.1"]
    assert not sent(world.take(world.run.lost_connection("1.1", world.at_s)), messages.Halt)
    assert "1.1" in world.stages
    world.at_s += AGENT_S
    assert sent(world.take(world.run.tick(world.at_s)), messages.Halt)


def test_the_workers_of_a_lost_machine_are_started_on_one_with_spare_slots():
    world = MachineWorld({"a": 2, "b": 2, "c": 2}, pipelines=2)
    world.step(2)
    empty = next(name for name in "abc" if name not in world.seats().values())
    world.machine_dies(next(name for name in "abc" if name != empty))
    world.pump()
    for _ in range(4):
        world.tick(1.0)
        world.step()
    assert empty in world.seats().values()
    assert len(world.stages) == 4
    world.finish()
    assert world.run.failure is None


def test_without_any_machine_left_the_run_waits_for_one_and_then_goes_on():
    world = MachineWorld({"a": 4}, count=1)
    world.step(3)
    effects = world.machine_dies("a")
    effects += world.tick(2.0)
    assert emitted(effects, events.NoRoom)
    assert not world.run.over
    world.tick(100.0)
    assert not world.run.over
    world.machine_comes("z", 4)
    world.tick(1.0)
    world.finish()
    assert world.run.failure is None


# --- leaving ---


def test_a_drained_machine_goes_when_nothing_is_lost_with_it():
    world = MachineWorld(TWO)
    world.step(2)
    effects = world.drain("b")
    assert emitted(effects, events.MachineDrains)[0].workers == ("1.0", "1.1")
    for _ in range(6):
        effects += world.step()
    assert ReleaseMachine("b") in effects
    assert emitted(effects, events.MachineDrained)
    assert not emitted(effects, events.MachineLost)
    assert set(world.stages) == {"0.0", "0.1"}
    changes = [e for e in emitted(effects, events.Recovered) if e.num_lost]
    assert len(changes) == 1
    assert changes[0].redone == 0
    world.finish()
    assert world.run.failure is None


def test_a_stage_that_only_the_leaving_hold_is_taken_by_another_first():
    world = MachineWorld({"a": 3, "b": 1}, pipelines=2)
    alone = next(name for name, there in world.seats().items() if there == "b")
    stage = world.stages[alone]
    other = next(n for n, held in world.stages.items() if held == stage and n != alone)
    world.step(2)
    world.die(other)  # now nobody else holds it
    world.pump()
    world.run.parts.replacing.leave_out(next(iter(w for w in world.run.run.membership.missing)))
    effects = world.drain("b")
    for _ in range(12):
        effects += world.step()
    assert ReleaseMachine("b") in effects
    assert stage in world.stages.values()
    assert not emitted(effects, events.WentBack)


def test_a_machine_whose_stages_nobody_else_can_hold_stays_with_a_warning():
    world = MachineWorld({"a": 1, "b": 1}, pipelines=1)
    world.step(2)
    effects = world.drain("b")
    effects += world.step(3)
    assert ReleaseMachine("b") not in effects
    [warned] = emitted(effects, events.Warned)
    assert "machine b keeps its workers" in warned.reason


def test_when_every_machine_is_to_leave_the_run_ends_with_a_checkpoint():
    world = MachineWorld(TWO)
    world.step(2)
    world.drain("a")
    world.drain("b")
    world.tick(0.2)
    assert world.run.run.ending.is_early


def test_what_is_not_here_cannot_be_drained():
    world = MachineWorld({"a": 2}, count=2)
    with pytest.raises(ConfigError, match=r"machine z is not in the run; .* one that is: a"):
        world.drain("z")


class Journalled(MachineWorld):
    def __init__(self, slots: dict[str, int], **more: Any) -> None:
        super().__init__(slots, given={"journalled": True}, **more)

    def come(self, name: str) -> list[Effect]:
        hashes = [f"{number:032x}" for number in range(NUM_LAYERS)]
        return super().come(name, layer_hashes=hashes)


def take_over(world: MachineWorld) -> None:
    """By one that knows what was written down. All workers come back to it, and no agent."""
    written = [effect.record for effect in world.effects if isinstance(effect, WriteDown)]
    steps = [event.step for event in emitted(world.effects, events.StepFinished)]
    former = Former(from_record(written[-1]), len(steps), sealed=None, at_s=world.at_s)
    config, planner = world.run.run.config, world.planner
    world.run = Coordinator(
        config,
        "runs/x",
        None,
        policies=policies_of(config),
        planner=planner,
        former=former,
        journalled=True,
    )
    for name in list(world.actors):
        place = {"host": "h", "port": 1, "epoch": 0, "building": 0}
        world.handle(messages.Reattach(worker=name, pid=pid_of(name), **place))
    world.pump()


def test_a_successor_goes_on_draining_as_soon_as_the_agent_of_that_machine_is_back():
    world = Journalled(TWO)
    world.step(2)
    assert [type(effect) for effect in world.drain("b")] == [WriteDown, Emit]
    take_over(world)
    world.machine_comes("a")
    effects = [effect for _ in range(3) for effect in (*world.tick(0.5), *world.step())]
    assert not world.run.run.ending.is_early  # not all are to leave: b has yet to come
    world.machine_comes("b")
    effects += [effect for _ in range(6) for effect in world.step()]
    assert ReleaseMachine("b") in effects
    assert emitted(effects, events.MachineDrained)
    assert not emitted(effects, events.WentBack)
    assert set(world.stages) == {"0.0", "0.1"}


def test_a_successor_starts_those_that_were_lost_before_it_came_as_soon_as_there_is_room():
    world = Journalled(TWO)
    world.step(2)
    world.machine_dies("b")
    world.pump()
    take_over(world)
    world.machine_comes("a")
    world.step(2)
    assert not starts(world.tick(5.0))
    assert starts(world.machine_comes("b") + world.tick(5.0)) == {"1.0": "b", "1.1": "b"}


def test_one_that_came_by_hand_is_not_started_by_a_successor_either():
    world = Journalled({"a": 3, "b": 3})
    world.step(2)
    world.run.parts.replacing.on_started(parse_worker("1.1"), 1)  # another process than its own
    world.die("1.1")
    world.pump()
    take_over(world)
    for name in "ab":
        world.machine_comes(name)
    world.step(2)
    assert not starts(world.tick(5.0))


def test_a_machine_whose_agent_is_not_back_may_be_lost():
    """First a worker of it falls silent, then the others complain of its links."""
    world = Journalled({"a": 2, "b": 2, "c": 2})
    world.step(2)
    away = world.seats()["1.1"]
    take_over(world)
    for name in set("abc") - {away}:
        world.machine_comes(name)
    world.actors["1.1"].silent = world.actors["1.1"].mute = True
    world.tick(5.0)
    effects = [effect for _ in range(30) for effect in world.tick(1.0)]
    assert {event.worker for event in emitted(effects, events.WorkerLost)} == {"1.1"}
    effects = world.take(world.run.parts.lost_machines.lose_together({away: "cut off"}, world.at_s))
    assert FenceMachine(away) in effects
    assert world.run.failure is None


def test_where_a_worker_is_started_is_something_to_write_down():
    """Though nothing else has changed since it was invited: there was no room for it then."""
    world = Journalled(TWO)
    writer = Writer(world.run.run, world.run.parts)
    before = writer.key()
    assert writer.key() == before
    world.run.run.machines.seat(parse_worker("1.1"), "a")
    assert writer.key() != before


def test_after_a_minute_a_machine_of_that_name_comes_as_a_new_one():
    world = Journalled({"a": 2, "b": 2, "c": 2})
    world.step(2)
    spare = next(name for name in "abc" if name not in world.seats().values())
    world.drain(spare)
    take_over(world)
    for name in "abc".replace(spare, ""):
        world.machine_comes(name)
    world.tick(RETURN_LIMIT_S + 1)
    effects = world.machine_comes(spare)
    effects += [effect for _ in range(6) for effect in world.step()]
    assert ReleaseMachine(spare) not in effects


def test_a_wish_to_leave_before_training_is_kept():
    world = MachineWorld({"a": 2}, count=2)
    world.drain("a")
    world.machine_comes("b")
    effects = [effect for _ in range(8) for effect in world.step()]
    assert ReleaseMachine("a") in effects
    assert set(world.seats().values()) == {"b"}


# --- a loss that ends all ---


def exited(name: str, how: str) -> messages.WorkerExited:
    return messages.WorkerExited(worker=name, pid=pid_of(name), how=how)


def test_when_a_loss_ends_all_they_find_a_place_again_where_no_slot_is_to_spare():
    """Found by the hunt: the slots of those who were told to end counted as taken for ever."""
    slots = {"a": 1, "b": 1, "c": 1}
    world = MachineWorld(slots, pipelines=1, stages=3, recovery={"mode": "global"})
    world.step(2)
    effects = world.die("0.1") + world.tick(1.0)
    assert starts(effects).keys() == {"0.0", "0.1", "0.2"}
    assert set(starts(effects).values()) == {"a", "b", "c"}
    assert not emitted(effects, events.NoRoom)


def test_those_who_were_told_to_end_by_a_successor_are_not_lost_once_more():
    """Found by the hunt: each such end began all again, until workers.restarts was used up."""
    world = Journalled(TWO, recovery={"mode": "global"})
    world.step(2)
    del world.actors["1.1"]
    take_over(world)
    for name in "ab":
        world.machine_comes(name)
    world.handle(exited("1.1", "signal SIGKILL"))
    assert starts(World.tick(world, 0.4)).keys() == {"0.0", "0.1", "1.0", "1.1"}
    effects = world.handle(exited("0.0", "exit code 0"))
    assert not emitted(effects, events.JoinFailed)
    assert not starts(effects + World.tick(world, 0.4))
