"""A joiner copies a stage while others train and becomes a member: no bit of the end shows it."""

from functools import partial
from random import Random

import pytest

from helpers.harness.stages_in_turns import IN_TURNS, SHAPES, SOMETIMES, STEPS, Cluster
from helpers.harness.transport_harness import wait_until
from holdfast.cluster import WorkerId
from holdfast.errors import EpochPast, PeerLost
from holdfast.protocol import messages

pytestmark = IN_TURNS

VICTIM, SOURCE = WorkerId(1, 1), WorkerId(0, 1)


class Joining(Cluster):
    """A cluster of which one worker dies in the first step and is replaced."""

    def __init__(self, makers, seed: int, mode: str = "staggered") -> None:
        self.copied: list[int] = []
        self.joiner_epoch = 0  # it may be halted alone
        super().__init__(makers[SOMETIMES], Random(seed), SHAPES[0], mode)
        self.make_job = makers[SOMETIMES]
        self.go()
        self.run_turns(40)
        self.kill(VICTIM)
        self.halt()
        self.go()

    def run_turns(self, number: int) -> None:
        last = self.turns.num_turns + number
        self.turns.run(lambda: self.turns.num_turns >= last)

    def _hear(self, worker, message) -> None:
        super()._hear(worker, message)
        if isinstance(message, messages.Copied):
            self.copied.append(message.version)

    def build(self) -> None:
        self.add(VICTIM, 1, self.make_job())

    def share(self) -> None:
        self.trainings[SOURCE].sender.ask(VICTIM)

    def follow(self, source: WorkerId = SOURCE) -> None:
        self.joiner_epoch = max(self.joiner_epoch, self.epoch)
        self.turns.start(VICTIM, partial(self._follow, source, self.joiner_epoch))

    def _follow(self, source: WorkerId, epoch: int) -> None:
        self.transports[VICTIM].advance(epoch)
        self.trainings[VICTIM].follow(source)

    def wait_for_copy(self, version: int) -> None:
        """The feed is a thread that takes no turns: wait for it while nobody can go on."""
        self.turns.run(lambda: version in self.copied)
        wait_until(lambda: self.turns.run(lambda: version in self.copied))

    def halt_joiner(self) -> None:
        """As any member; then it follows on."""
        self.joiner_epoch += 1
        self.transports[VICTIM].interrupt(self.joiner_epoch)
        self.turns.frozen = set(self.stages)
        self.turns.run()
        self.turns.frozen = set()
        error = self.turns.runners[VICTIM].error
        assert isinstance(error, EpochPast | PeerLost), error

    def let_in(self) -> None:
        self.halt_joiner()
        self.halt()
        self.stages[VICTIM] = 1
        self.go()


@pytest.mark.parametrize("mode", ["staggered", "global"])
@pytest.mark.parametrize("seed", range(4))
def test_a_joiner_follows_and_becomes_a_member(makers, calm, mode, seed):
    cluster = Joining(makers, seed, mode)
    cluster.build()
    cluster.share()
    cluster.follow()
    cluster.wait_for_copy(2)
    cluster.let_in()
    assert cluster.finish() == calm[SOMETIMES][0]
    assert cluster.trainings[VICTIM].finished(0, 0).digests


def test_a_joiner_is_not_disturbed_by_changes_among_the_members(makers, calm):
    cluster = Joining(makers, 1)
    cluster.build()
    cluster.share()
    cluster.follow()
    for _ in range(3):
        cluster.run_turns(60)
        cluster.halt_joiner()
        cluster.halt()
        cluster.go()
        cluster.follow()
    cluster.wait_for_copy(2)
    cluster.let_in()
    assert cluster.finish() == calm[SOMETIMES][0]


def test_a_copy_that_begins_anew_from_the_same_source_takes_the_place_of_the_first(makers, calm):
    """So it is when a connection breaks and the stage has one holder: updates have been missed."""
    cluster = Joining(makers, 2)
    cluster.build()
    cluster.share()
    cluster.follow()
    sender = cluster.trainings[SOURCE].sender
    assert cluster.turns.run(lambda: not sender.is_asked)
    cluster.turns.frozen = set(cluster.stages)
    joiner = cluster.turns.runners[VICTIM]
    wait_until(lambda: cluster.turns.run(lambda: "UPDATE of step 1 " in joiner.at))
    cluster.halt_joiner()
    cluster.share()
    cluster.follow()
    cluster.wait_for_copy(STEPS)
    layers = cluster.trainings[VICTIM].finished(0, 0).digests
    expected = calm[SOMETIMES][0]
    assert layers == {layer: expected[layer] for layer in layers}
