"""What a worker says that cannot be true costs its connection; all else is as if it was silent."""

from dataclasses import replace
from typing import Any

import pytest

from helpers import wide
from helpers.any_words import KINDS, AnyWords
from helpers.harness.coordinator_world import (
    NUM_LAYERS,
    World,
    finished,
    hello,
    layer_costs,
    report,
)
from holdfast.control.state.lifecycle import RunPhase
from holdfast.control.state.workers.membership import MISSING
from holdfast.errors import Implausible, ProtocolError
from holdfast.protocol import codec, messages
from holdfast.protocol.records import (
    KeptRow,
    MicrobatchLoss,
    OperationTime,
    StepLosses,
    Transfers,
    VerdictRow,
)

FAR = 1_000_000
GOOD = VerdictRow(1.0, None, False)


def tell(world: World, **changes: Any) -> messages.Inventory:
    return replace(world.told(world.actors["0.0"], world.run.run.epoch), **changes)


def replayed(**changes: Any) -> messages.Replayed:
    plain = messages.Replayed(
        worker="0.0", epoch=1, num_operations=1, num_bytes=1, took_s=0.1, losses=[]
    )
    return replace(plain, **changes)


def job_failed(step: int) -> messages.JobFailed:
    return messages.JobFailed(
        worker="0.0", epoch=1, step=step, exit_code=1, reason="made up", details=""
    )


COSTS = messages.LayerCosts(worker="0.0", forward_s=[1.0], backward_s=[1.0], sizes=[])
LIES = {
    "a late LayerCosts": lambda world: COSTS,
    "a stage that it was not given": lambda world: messages.Ready(worker="0.0"),
    "a step after the last": lambda world: report("0.0", FAR),
    "a micro-batch of a loss": lambda world: report("0.0", 1, [(9, 1.0)]),
    "a loss twice": lambda world: report("0.0", 1, [(0, 1.0), (0, 1.0)]),
    "an operation's stage": lambda world: report(
        "0.0", 1, operations=[OperationTime("7F0", 0.0, 1.0, 1.0, 1)]
    ),
    "an operation's micro-batch": lambda world: report(
        "0.0", 1, operations=[OperationTime("0F99", 0.0, 1.0, 1.0, 1)]
    ),
    "an epoch to come": lambda world: tell(world, epoch=FAR),
    "steps to come": lambda world: tell(world, reduced=FAR),
    "progress of no micro-batch": lambda world: tell(world, progress={99: 1}),
    "a kept tensor of no micro-batch": lambda world: tell(world, kept=[KeptRow(1, [], [99])]),
    "a verdict to come": lambda world: tell(world, verdicts={FAR: GOOD}),
    "a member that is nowhere": lambda world: tell(world, reduced=-2),
    "a replayed step to come": lambda world: replayed(losses=[StepLosses(FAR, [], 0)]),
    "a replayed micro-batch": lambda world: replayed(
        losses=[StepLosses(1, [MicrobatchLoss(99, 1.0)], 0)]
    ),
    "a layer": lambda world: finished("0.0", NUM_LAYERS),
    "a step that cannot fail": lambda world: job_failed(FAR),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_s5_what_cannot_be_true_is_refused_and_the_run_is_as_before(lie) -> None:
    world, other = World().start(), World().start()
    for one in (world, other):
        one.step(2)
    with pytest.raises(Implausible):
        world.run.handle(lie(world), world.at_s)
    assert not world.run.over
    for one in (world, other):
        one.die("0.0")
        one.pump()
        one.step()
    assert world.last_proceed == other.last_proceed
    assert world.effects == other.effects


def test_s5_a_transfer_of_a_stranger_costs_the_worker_that_got_it_nothing() -> None:
    world, other = World().start(), World().start()
    stranger = [Transfers("9.9", "probe", 1, 1, 0.1)]
    world.handle(report("0.0", 1, transfers=stranger))
    other.handle(report("0.0", 1))
    for one in (world, other):
        one.step(3)
    assert world.effects == other.effects
    assert len(world.stages) == 4


@pytest.mark.parametrize(
    "early",
    [report("0.0", 0), messages.Resumed(worker="0.0", epoch=0, at_s=1.0), finished("0.0", 0)],
    ids=lambda message: type(message).__name__,
)
def test_s5_nobody_speaks_of_training_before_it_has_begun(early) -> None:
    world = World()
    world.run.handle(hello("0.0"), 0.0)
    with pytest.raises(Implausible, match="has not begun"):
        world.run.handle(early, 0.1)
    assert world.run.phase is RunPhase.STARTING


@pytest.mark.parametrize("number", [0, NUM_LAYERS + 1])
def test_s5_a_hello_has_one_hash_for_each_layer(number) -> None:
    with pytest.raises(Implausible, match="layer_hashes"):
        World().run.handle(hello("0.0", num_layers=number), 0.0)


@pytest.mark.parametrize("name", ["forward_s", "backward_s", "sizes"])
def test_s5_costs_are_told_of_each_layer(name) -> None:
    world = World()
    for worker in world.run.workers:
        world.come(str(worker), cut=[])
    asked = layer_costs("0.0")
    with pytest.raises(Implausible, match=rf"LayerCosts\.{name}: 5 .*each of 6 layers"):
        world.run.handle(layer_costs("0.0", **{name: getattr(asked, name)[1:]}), 0.1)
    assert world.run.phase is RunPhase.MEASURING


# --- what nobody has thought of ---


def broken(*_: object) -> None:
    raise ZeroDivisionError("made up")


def test_s5_a_message_that_breaks_its_handler_is_put_down_to_its_sender(monkeypatch) -> None:
    world = World().start()
    monkeypatch.setattr(world.run.parts.straggler_monitor, "on_report", broken)
    with pytest.raises(Implausible, match=r"StepReport cannot be acted on: ZeroDivisionError"):
        world.run.handle(report("1.0", 0), world.at_s)
    with pytest.raises(Implausible):
        world.run.handle(report("1.0", 0), world.at_s)
    monkeypatch.undo()
    world.die("1.0")
    world.pump()
    world.step(2)
    assert world.stages == {"0.0": 0, "0.1": 1, "1.1": 1}
    assert not world.run.over


def test_what_breaks_whoever_says_it_is_our_own_mistake(monkeypatch) -> None:
    world = World().start()
    monkeypatch.setattr(world.run.parts.straggler_monitor, "on_report", broken)
    with pytest.raises(Implausible):
        world.run.handle(report("1.0", 0), world.at_s)
    world.take(world.run.handle(report("0.0", 0), world.at_s))
    assert "the coordinator failed: ZeroDivisionError" in str(world.run.failure)
    assert "on_report" in world.run.details


def test_an_error_without_a_message_ends_the_run(monkeypatch) -> None:
    world = World().start()
    monkeypatch.setattr(world.run.parts.failure_detector, "tick", broken)
    world.take(world.run.tick(world.at_s))
    assert "the coordinator failed: ZeroDivisionError" in str(world.run.failure)


# --- anything at all ---

LIAR, NUM_WORDS = "1.0", 400


def is_refused(world: World, body: bytes) -> bool:
    """As the server would: what cannot be read is refused, too."""
    try:
        world.handle(codec.decode(body))
    except ProtocolError:
        return True
    return False


def replaced(world: World) -> None:
    """The server has closed its connection; somebody new comes in its place."""
    if LIAR in world.actors:
        world.die(LIAR)
        world.pump()
    if world.phase(LIAR) in MISSING:
        world.come(LIAR)
    world.pump()


@pytest.mark.parametrize("seed", wide.first(2, range(40)))
def test_s5_whatever_one_worker_says_the_run_goes_on(seed) -> None:
    world, words, num_refused = World(steps=5000).start(), AnyWords(seed), 0
    for _ in range(NUM_WORDS):
        if is_refused(world, words.message(LIAR, world.run.run.epoch)):
            num_refused += 1
            replaced(world)
        world.pump()
        assert world.run.failure is None
    assert len(words.said) == len(KINDS)
    assert 0 < num_refused < NUM_WORDS, "some were believed, some were not"
    replaced(world)
    before = world.run.parts.reports.next_step
    world.step(3)
    assert world.run.phase is RunPhase.TRAINING
    assert world.run.parts.reports.next_step > before
