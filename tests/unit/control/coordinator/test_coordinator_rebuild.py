"""A stage that nobody holds, with a log: who replays it, who holds it, what may go wrong."""

import random
from collections.abc import Iterable
from typing import Any

import pytest

from helpers.harness.coordinator_world import Actor, World, emitted, much_happens, sent
from helpers.harness.machine_world import MachineWorld
from holdfast.cluster import parse_worker
from holdfast.control.effects import ClearLogs, Discard, Effect, Send, StartWorker
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import WorkerPhase
from holdfast.observability import events
from holdfast.protocol import messages
from holdfast.protocol.records import VerdictRow

LAYERS = {0: [0], 1: [1], 2: [2], 3: [3, 4, 5]}  # of four stages
LOG: dict[str, Any] = {"log": "boundary"}


class LoggingWorld(World):
    """Its workers replay, too. ``replays``: whether they answer; who did not can do so later."""

    def __init__(self, *shape: int, recovery: dict[str, Any] | None = None, **more: Any) -> None:
        super().__init__(*shape, recovery=LOG | (recovery or {}), **more)
        self.replays = True
        self.fails_before = 0  # the log ends before this step, if that is not 0
        self.deaf: set[str] = set()  # who has not heard the newest verdict yet

    def told(self, actor: Actor, epoch: int, **changes: Any) -> messages.Inventory:
        newest = actor.reduced - (2 if actor.name in self.deaf else 1)
        heard = {newest: VerdictRow(1.0, None, False)} if newest >= 0 else {}
        return super().told(actor, epoch, **({"verdicts": heard} | changes))

    def _answer(self, actor: Actor, message: messages.Message) -> None:
        if not isinstance(message, messages.Replay):
            super()._answer(actor, message)
        elif self.replays and 0 < self.fails_before < message.version:
            self.handle(failed(actor.name, message.epoch, self.fails_before))
        elif self.replays:
            self.handle(replayed(actor.name, message.epoch))

    def settle(self) -> list[Effect]:
        """Until nothing happens any more by itself; nobody does a step."""
        first = len(self.effects)
        for _ in range(6):
            self.pump()
            self.tick(0.2)
        return self.effects[first:]

    def save(self, step: int) -> list[Effect]:
        """Every stage writes its part of a checkpoint."""
        first = len(self.effects)
        holders = {stage: name for name, stage in sorted(self.stages.items(), reverse=True)}
        for stage, name in holders.items():
            self.part(name, stage, step)
        return self.effects[first:]


def replayed(worker: str, epoch: int) -> messages.Replayed:
    return messages.Replayed(
        worker=worker, epoch=epoch, num_operations=6, num_bytes=100, took_s=0.5, losses=[]
    )


def failed(worker: str, epoch: int, reached: int) -> messages.ReplayFailed:
    return messages.ReplayFailed(
        worker=worker, epoch=epoch, reached=reached, reason=f"the log of step {reached + 1} ends"
    )


def in_step_6(*shape: int, **more: Any) -> LoggingWorld:
    """Six steps are done; the checkpoint is of the fourth."""
    world = LoggingWorld(*(shape or (1, 4)), **more)
    world.start()
    world.step(4)
    world.save(4)
    world.step(2)
    return world


def replays(effects: Iterable[Effect]) -> dict[str, messages.Replay]:
    return sent(effects, messages.Replay)


def started(effects: Iterable[Effect]) -> list[str]:
    return [str(e.worker) for e in effects if isinstance(e, StartWorker)]


def order(effects: Iterable[Effect], *kinds: type) -> list[str]:
    """Names of messages and events of these kinds, one for many of the same in a row."""
    names: list[str] = []
    for effect in effects:
        what = effect.message if isinstance(effect, Send) else getattr(effect, "event", effect)
        if isinstance(what, kinds) and names[-1:] != [type(what).__name__]:
            names.append(type(what).__name__)
    return names


def assert_all_is_well(world: World) -> None:
    assert not emitted(world.effects, events.WentBack)
    world.finish()
    assert world.run.phase is RunPhase.FINISHED, world.run.failure


# --- one stage is lost ---


def test_the_survivors_replay_while_a_replacement_starts_and_it_enters_with_the_state() -> None:
    world = in_step_6()
    first = len(world.effects)
    world.die("0.2")
    effects = world.pump()
    assert started(effects) == ["0.2"]
    assert set(replays(effects)) == {"0.0", "0.1", "0.3"}
    world.come("0.2")
    effects = world.settle()
    assert set(sent(effects, messages.Assign)) == {"0.2"}
    assert set(sent(effects, messages.Proceed)) == {"0.0", "0.1", "0.2", "0.3"}
    assert order(
        world.effects[first:],
        *(messages.Halt, messages.Replay, messages.Assign, messages.Proceed, messages.CopyState),
        *(events.ReplayBegan, events.StageRebuilt, events.WorkerJoined, StartWorker),
    ) == [
        *("Halt", "StartWorker", "ReplayBegan", "Replay", "StageRebuilt"),
        *("Assign", "Halt", "Proceed", "WorkerJoined"),
    ]
    assert_all_is_well(world)


def test_what_is_to_be_replayed_is_said_in_full() -> None:
    world = in_step_6()
    world.die("0.2")
    order = replays(world.pump())["0.1"]
    assert (order.stages, order.lost, order.cut) == ([2], [2], [1, 2, 3])
    assert (order.checkpoint, order.first_step) == ("step-00000004", 4)
    assert order.version == 6
    assert order.crew == ["0.0", "0.1", "0.3"]
    assert set(order.addresses) == set(order.crew)
    assert order.epoch == world.run.run.epoch
    assert order.log.boundaries == [0, 1, 2]


def test_the_replacement_is_given_what_was_written_and_the_rest_of_the_step_is_planned() -> None:
    world = in_step_6()
    world.die("0.2")
    into = replays(world.pump())["0.1"].into
    world.come("0.2")
    effects = world.settle()
    assign = sent(effects, messages.Assign)["0.2"]
    assert (assign.stage, assign.checkpoint, assign.first_step) == (2, into, 6)
    assert world.last_proceed.first_step == 6
    assert Discard(f"runs/x/rebuilt/{into}") in effects
    (recovered,) = emitted(world.effects, events.Recovered)
    assert (recovered.cause, recovered.workers, recovered.members) == ("death", ("0.2",), 4)


def test_a_replacement_that_comes_early_waits_for_the_state() -> None:
    world = in_step_6()
    world.replays = False
    world.die("0.2")
    world.pump()
    world.come("0.2")
    assert not sent(world.settle(), messages.Assign)
    for name in ("0.0", "0.1"):
        world.handle(replayed(name, world.run.run.epoch))
        assert not sent(world.settle(), messages.Assign)
    effects = world.handle(replayed("0.3", world.run.run.epoch))
    assert set(sent(effects + world.settle(), messages.Assign)) == {"0.2"}
    assert_all_is_well(world)


def test_what_was_rebuilt_is_told_with_all_the_work_of_the_crew() -> None:
    world = in_step_6()
    world.die("0.2")
    (rebuilt,) = emitted(world.pump(), events.StageRebuilt)
    assert (rebuilt.stages, rebuilt.replayed, rebuilt.version) == ((2,), (2,), 6)
    assert (rebuilt.operations, rebuilt.read_bytes) == (18, 300)


@pytest.mark.parametrize("recovery", [{"helpers": 0}, {"mode": "swift"}])
def test_the_replacement_alone_replays_if_nobody_is_to_help(recovery) -> None:
    world = in_step_6(recovery=recovery)
    world.die("0.2")
    assert not replays(world.settle())
    world.come("0.2")
    effects = world.settle()
    assert [order.crew for order in replays(effects).values()] == [["0.2"]]
    assert set(sent(effects, messages.Assign)) == {"0.2"}
    assert world.stages["0.2"] == 2
    assert_all_is_well(world)


def test_only_so_many_help_as_are_asked_for() -> None:
    world = in_step_6(recovery={"helpers": 2})
    world.die("0.0")
    effects = world.pump()
    assert set(replays(effects)) == {"0.1", "0.2"}
    assert {tuple(order.crew) for order in replays(effects).values()} == {("0.1", "0.2")}


def test_without_a_log_all_go_back_as_ever() -> None:
    world = in_step_6(recovery={"log": "none"})
    world.die("0.2")
    effects = world.settle()
    assert emitted(effects, events.WentBack)
    assert not replays(world.effects)
    assert not [effect for effect in world.effects if isinstance(effect, ClearLogs)]


# --- more than one stage ---


def test_neighbours_that_are_lost_together_are_replayed_as_one() -> None:
    world = in_step_6()
    world.die("0.1")
    world.die("0.2")
    orders = replays(world.pump())
    assert set(orders) == {"0.0", "0.3"}
    assert (orders["0.0"].stages, orders["0.0"].lost) == ([1, 2], [1, 2])
    for name in ("0.1", "0.2"):
        world.come(name)
    assigned = sent(world.settle(), messages.Assign)
    assert {name: assign.stage for name, assign in assigned.items()} == {"0.1": 1, "0.2": 2}
    assert len({assign.checkpoint for assign in assigned.values()}) == 1
    assert_all_is_well(world)


def test_lost_stages_that_are_no_neighbours_are_replayed_one_after_the_other() -> None:
    world = in_step_6()
    world.die("0.0")
    world.die("0.2")
    effects = world.pump()
    began = [event.replayed for event in emitted(effects, events.ReplayBegan)]
    assert began == [(0,), (2,)]
    for name in ("0.0", "0.2"):
        world.come(name)
    assigned = sent(world.settle(), messages.Assign)
    assert len({assign.checkpoint for assign in assigned.values()}) == 2
    assert_all_is_well(world)


def test_stages_between_boundaries_that_are_not_logged_are_replayed_too() -> None:
    world = in_step_6()
    world.run.run.logs.choose((1,), {})
    world.die("0.2")
    order = replays(world.pump())["0.0"]
    assert (order.stages, order.lost) == ([2, 3], [2])
    assert order.log.boundaries == [1]


def test_when_no_boundary_is_logged_all_go_back_and_it_is_said() -> None:
    world = in_step_6()
    world.run.run.logs.choose((), {})
    world.die("0.2")
    (back,) = emitted(world.settle(), events.WentBack)
    assert back.reason.startswith("no boundary of the lost stage is logged")


def test_when_nobody_is_left_the_replacements_do_all_of_it() -> None:
    world = in_step_6(1, 2)
    world.die("0.0")
    world.die("0.1")
    world.settle()
    for name in ("0.0", "0.1"):
        world.come(name)
    world.settle()
    assert world.stages == {"0.0": 0, "0.1": 1}
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


# --- the log does not reach so far ---


def test_if_nothing_can_be_replayed_all_go_back_with_the_reason() -> None:
    world = in_step_6()
    world.fails_before = 4
    world.die("0.2")
    world.come("0.2")
    effects = world.settle()
    (back,) = emitted(effects, events.WentBack)
    assert back.reason.startswith("the log of step 5 ends; ")
    assert (back.to_step, back.lost_stage) == (4, 2)
    assigned = sent(effects, messages.Assign)
    assert set(assigned) == {"0.0", "0.1", "0.2", "0.3"}
    assert {assign.first_step for assign in assigned.values()} == {4}
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_if_only_the_last_step_is_not_in_the_log_the_version_before_it_is_rebuilt() -> None:
    world = in_step_6()
    world.fails_before = 5
    world.die("0.2")
    effects = world.settle()
    versions = [order.version for e in effects for order in _orders(e)]
    assert sorted(set(versions)) == [5, 6]
    assert versions[-1] == 5
    world.come("0.2")
    assign = sent(world.settle(), messages.Assign)["0.2"]
    assert assign.first_step == 5
    assert [one.step for one in world.last_proceed.running] == [5]
    assert_all_is_well(world)


def _orders(effect: Effect) -> list[messages.Replay]:
    is_order = isinstance(effect, Send) and isinstance(effect.message, messages.Replay)
    return [effect.message] if is_order else []


def test_what_was_logged_before_all_went_back_is_of_no_use() -> None:
    world = in_step_6()
    before = world.run.run.logs.order().run
    world.fails_before = 4
    world.die("0.2")
    world.come("0.2")
    effects = world.settle()
    assert sum(isinstance(effect, ClearLogs) for effect in effects) == 1
    logs = {assign.log.run for assign in sent(effects, messages.Assign).values()}
    assert len(logs) == 1
    assert before not in logs
    cleared = next(i for i, effect in enumerate(effects) if isinstance(effect, ClearLogs))
    built = next(i for i, e in enumerate(effects) if _is_assign(e) and e.message.first_step == 4)
    assert cleared < built


def _is_assign(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, messages.Assign)


def test_news_of_a_replay_that_is_over_change_nothing() -> None:
    world = in_step_6()
    world.replays = False
    world.die("0.2")
    world.pump()
    old = world.run.run.epoch
    world.die("0.1")
    world.pump()
    assert not emitted(world.handle(replayed("0.0", old)), events.StageRebuilt)
    assert not sent(world.handle(failed("0.0", old, 4)), messages.Halt)
    assert not emitted(world.effects, events.WentBack)


# --- deaths on the way ---


def test_when_one_of_the_crew_dies_the_others_replay_both_stages() -> None:
    world = in_step_6()
    world.replays = False
    world.die("0.2")
    world.pump()
    world.replays = True
    effects = world.die("0.1")
    assert set(sent(effects, messages.Halt)) >= {"0.0", "0.3"}
    effects = world.pump()
    orders = replays(effects)
    assert orders["0.0"].crew == ["0.0", "0.3"]
    assert orders["0.0"].lost == [1, 2]
    assert started(effects) == ["0.1"]
    for name in ("0.1", "0.2"):
        world.come(name)
    world.settle()
    assert world.stages == {"0.0": 0, "0.1": 1, "0.2": 2, "0.3": 3}
    assert_all_is_well(world)


@pytest.mark.parametrize("when", ["starting", "waiting", "building"])
def test_a_replacement_that_dies_is_replaced_and_nothing_is_replayed_again(when) -> None:
    world = in_step_6()
    world.replays = when != "waiting"
    world.die("0.2")
    world.pump()
    first = len(world.effects)
    if when != "starting":
        world.come("0.2")
        world.actors["0.2"].mute = True
        world.settle()
        world.die("0.2")
    else:
        world.handle(messages.WorkerStarted(worker="0.2", pid=1))
        world.handle(messages.WorkerExited(worker="0.2", pid=1, how="exit code 1"))
    world.settle()
    assert started(world.effects[first:]) == ["0.2"]
    if when == "waiting":
        for name in ("0.0", "0.1", "0.3"):
            world.handle(replayed(name, world.run.run.epoch))
    world.come("0.2")
    world.settle()
    assert world.stages["0.2"] == 2
    assert len(emitted(world.effects, events.StageRebuilt)) == 1
    assert_all_is_well(world)


def test_a_replacement_that_dies_when_it_has_entered_is_another_loss() -> None:
    world = in_step_6()
    world.die("0.2")
    world.pump()
    world.come("0.2")
    world.settle()
    world.step()
    world.die("0.2")
    world.pump()
    world.come("0.2")
    world.settle()
    versions = [event.version for event in emitted(world.effects, events.StageRebuilt)]
    assert versions == [6, 7]
    assert_all_is_well(world)


def test_a_replacement_that_dies_too_often_ends_the_run_with_one_clear_line() -> None:
    world = in_step_6(workers={"restarts": 2})
    world.die("0.2")
    for _ in range(2):
        world.settle()
        world.come("0.2")
        world.die("0.2")
    world.settle()
    assert world.run.phase is RunPhase.FAILED
    why = str(world.run.failure)
    for words in ("worker 0.2", "3 live workers cannot hold 4 stages", "started again 2 times"):
        assert words in why
    assert "\n" not in why


def test_a_replacement_that_never_comes_is_started_again_after_the_limit() -> None:
    world = in_step_6(workers={"start_limit_s": 5.0})
    world.die("0.2")
    world.settle()
    effects = world.tick(7.0)
    assert started(effects) == ["0.2"]
    world.come("0.2")
    world.settle()
    assert_all_is_well(world)


@pytest.mark.parametrize("recovery", [{}, {"helpers": 0}])
def test_a_replacement_that_stands_still_is_given_up(recovery) -> None:
    """It has said hello, and never beats: it builds, or replays, and nothing comes of it."""
    world = in_step_6(workers={"start_limit_s": 5.0}, recovery=recovery)
    world.die("0.2")
    world.pump()
    world.come("0.2")
    world.actors["0.2"].mute = world.actors["0.2"].silent = True
    world.settle()
    before = len(started(world.effects))
    world.tick(6.0)
    world.settle()
    assert started(world.effects)[before:] == ["0.2"]
    world.come("0.2")
    world.settle()
    assert_all_is_well(world)


def test_one_that_replays_and_lets_no_heartbeat_through_has_as_long_as_a_start() -> None:
    world = in_step_6(workers={"start_limit_s": 60.0})
    world.replays = False
    for actor in world.live():
        actor.longest = {"F": 0.05}
    world.tick(0.4)
    world.die("0.2")
    world.pump()
    world.come("0.2")
    world.tick(0.4)
    replays = world.actors["0.1"]
    assert world.run.parts.reconfigurations.replays(parse_worker("0.1"))
    replays.held = replays.mute = True
    world.tick(55.0)
    assert world.phase("0.1") is WorkerPhase.MEMBER
    world.tick(10.0)
    assert world.phase("0.1") is not WorkerPhase.MEMBER


def test_a_replacement_is_not_late_while_the_others_replay_for_long() -> None:
    world = in_step_6(workers={"start_limit_s": 5.0})
    world.replays = False
    world.die("0.2")
    world.pump()
    world.come("0.2")
    world.tick(20.0)
    assert "0.2" in world.actors
    assert not emitted(world.effects, events.JoinFailed)
    for name in ("0.0", "0.1", "0.3"):
        world.handle(replayed(name, world.run.run.epoch))
    world.settle()
    assert world.stages["0.2"] == 2


# --- a replay that does not end ---


def stuck(world: World) -> list[Effect]:
    return world.handle(messages.PeerGone(worker="0.0", epoch=world.run.run.epoch, lost=""))


def test_a_replay_in_which_a_wait_ran_out_is_tried_again_and_then_given_up() -> None:
    world = in_step_6()
    world.replays = False
    world.die("0.2")
    world.pump()
    assert set(sent(stuck(world), messages.Halt)) == {"0.0", "0.1", "0.3"}
    assert set(replays(world.pump())) == {"0.0", "0.1", "0.3"}
    stuck(world)
    world.come("0.2")
    effects = world.settle()
    (back,) = emitted(effects, events.WentBack)
    assert back.reason.startswith("the replay did not come to an end")
    world.finish()
    assert world.run.phase is RunPhase.FINISHED


def test_a_crew_that_beats_but_never_ends_its_replay_is_not_lost_for_that() -> None:
    """It may be long. Whoever is stuck in it says so."""
    world = in_step_6()
    world.replays = False
    world.die("0.2")
    world.pump()
    world.tick(200.0)
    assert set(world.stages) == {"0.0", "0.1", "0.3"}


# --- others hold it then ---


def test_if_nobody_can_be_started_a_member_of_another_stage_takes_it_over() -> None:
    world = in_step_6(2, 2, workers={"restarts": 0})
    world.die("0.1")
    world.pump()
    world.step()
    world.die("1.1")
    effects = world.settle()
    assert not started(effects)
    assert replays(effects)["0.0"].crew == ["0.0"]
    assign = sent(effects, messages.Assign)["1.0"]
    assert (assign.stage, assign.first_step) == (1, 7)
    assert world.stages == {"0.0": 0, "1.0": 1}
    (moved,) = emitted(effects, events.WorkerMoved)
    assert (moved.worker, moved.from_stage, moved.to_stage) == ("1.0", 0, 1)
    assert_all_is_well(world)


@pytest.mark.parametrize("pipelines", [2, 3])
def test_a_verdict_that_only_the_one_who_moves_has_heard_is_told_to_the_others(pipelines) -> None:
    """The stage was rebuilt with it: its new holder tells nothing of that step any more, and
    the others would wait for it for ever."""
    world = in_step_6(pipelines, 2, workers={"restarts": 0})
    *others, moves = [f"{pipeline}.0" for pipeline in range(pipelines)]
    world.replays, world.deaf = False, set(others)
    for pipeline in range(pipelines):
        world.die(f"{pipeline}.1")
    order = replays(world.settle())["0.0"]
    assert (order.version, order.crew) == (6, others)
    world.replays, world.deaf = True, {*others, moves}  # what it had heard went with its stage
    for gone in others[1:]:  # all are asked anew
        world.die(gone)
    world.handle(replayed("0.0", world.run.run.epoch))
    proceed = sent(world.settle(), messages.Proceed)["0.0"]
    assert proceed.stages == {"0.0": 0, moves: 1}
    assert 5 in proceed.verdicts
    assert_all_is_well(world)


def test_a_joiner_whose_source_died_becomes_the_host_of_the_stage() -> None:
    world = in_step_6(2, 2)
    world.die("1.1")
    world.settle()
    world.come("1.1")
    world.pump()
    assert sent(world.effects, messages.CopyState)["1.1"].source == "0.1"
    first = len(world.effects)
    world.die("0.1")
    world.settle()
    effects = world.effects[first:]
    assert sent(effects, messages.Halt)["1.1"]  # it waits for the dead one
    assign = sent(effects, messages.Assign)["1.1"]
    assert (assign.stage, assign.first_step) == (1, 6)
    assert world.stages["1.1"] == 1
    assert_all_is_well(world)


# --- an interrupt ---


def test_an_interrupt_while_a_stage_is_rebuilt_ends_the_run_after_the_step() -> None:
    world = in_step_6()
    world.replays = False
    world.die("0.2")
    world.pump()
    world.take(world.run.interrupt(world.at_s))
    world.come("0.2")
    for name in ("0.0", "0.1", "0.3"):
        world.handle(replayed(name, world.run.run.epoch))
    world.settle()
    world.finish()
    assert world.run.phase is RunPhase.FAILED
    assert "interrupted" in str(world.run.failure)
    assert world.last_proceed.end_step <= 7


def test_a_second_interrupt_ends_it_at_once() -> None:
    world = in_step_6()
    world.replays = False
    world.die("0.2")
    world.pump()
    world.take(world.run.interrupt(world.at_s))
    world.take(world.run.interrupt(world.at_s))
    assert world.run.phase is RunPhase.FAILED


# --- the logs ---


def test_everyone_is_told_of_a_whole_checkpoint() -> None:
    world = in_step_6()
    told = sent(world.effects, messages.Sealed)
    assert set(told) == {"0.0", "0.1", "0.2", "0.3"}
    assert {message.step for message in told.values()} == {4}


def test_nobody_trims_a_log_that_is_being_read() -> None:
    world = in_step_6()
    world.replays = False
    world.part("0.2", 2, 6)
    world.die("0.2")
    world.pump()
    first = len(world.effects)
    for stage in (0, 1, 3):
        world.part(f"0.{stage}", stage, 6)
    assert not sent(world.effects[first:], messages.Sealed)
    world.come("0.2")
    for name in ("0.0", "0.1", "0.3"):
        world.handle(replayed(name, world.run.run.epoch))
    world.settle()
    told = sent(world.effects[first:], messages.Sealed)
    assert {message.step for message in told.values()} == {6}


def test_that_a_log_has_stopped_is_an_event() -> None:
    world = in_step_6()
    state = messages.LogState(
        worker="0.1", step=5, logging=False, reason="No space left", num_bytes=77
    )
    (changed,) = emitted(world.handle(state), events.LogChanged)
    assert (changed.worker, changed.logging, changed.reason) == ("0.1", False, "No space left")


# --- much of it ---


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("shape", [(1, 3), (2, 2)])
def test_whatever_happens_the_run_comes_to_an_end(shape, seed) -> None:
    world = LoggingWorld(*shape, steps=30, workers={"restarts": 1000, "start_limit_s": 5.0})
    world.start()
    much_happens(world, random.Random(f"{shape} {seed}"))
    assert world.run.over
    failure = str(world.run.failure)
    assert "the coordinator failed" not in failure, failure


# --- several machines ---


class LoggingMachines(LoggingWorld, MachineWorld):
    """With a worker each."""


@pytest.mark.parametrize("together", [True, False])
def test_where_no_machine_has_room_for_a_replacement_a_member_takes_the_lost_stage(together):
    world = LoggingMachines(dict.fromkeys("abcd", 1))
    world.step(4)
    world.save(4)
    world.step(2)
    for machine in [world.where[name] for name, stage in world.stages.items() if stage == 0]:
        world.machine_dies(machine)
        if not together:
            world.settle()
    world.settle()
    assert len(emitted(world.effects, events.StageRebuilt)) == 1
    assert sorted(world.stages.values()) == [0, 1]
    assert_all_is_well(world)
