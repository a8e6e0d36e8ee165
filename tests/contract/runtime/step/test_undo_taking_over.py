"""Workers die while the others undo instead of keeping copies: the same bits as ever."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from helpers.harness.stages_in_turns import (
    ALWAYS,
    IN_TURNS,
    SHAPES,
    SOMETIMES,
    UNTIED,
    Calm,
    Cluster,
)
from holdfast.cluster import WorkerId
from holdfast.job import Job
from holdfast.runtime.update.inverse_rollback import InverseRollback
from holdfast.schedule.generate import gpipe
from holdfast.schedule.operation import Shape

pytestmark = IN_TURNS


@pytest.fixture
def seen(monkeypatch) -> Counter[str]:
    """How often each part of undoing was needed."""
    counts: Counter[str] = Counter()

    def counted(name: str):
        plain = getattr(InverseRollback, name)

        def call(self, *given, **named):
            counts[name] += 1
            return plain(self, *given, **named)

        monkeypatch.setattr(InverseRollback, name, call)

    for name in ("apply", "take_back", "old"):
        counted(name)
    return counts


def undoing(maker: Callable[[], Job], seed: int, shape: Shape, mode: str = "staggered") -> Cluster:
    return Cluster(maker, Random(seed), shape, mode, consistency="undo")


def live_through(cluster: Cluster, calm: Calm, name: str) -> None:
    """Three times somebody dies, or everyone just stops, at any moment."""
    random, turns = cluster.random, cluster.turns
    cluster.go()
    for _ in range(3):
        last = turns.num_turns + random.randint(20, 200)
        turns.run(lambda last=last: turns.num_turns >= last)
        if able := cluster.may_die():
            cluster.kill(random.choice(able))
        cluster.halt()
        cluster.go()
    cluster.assert_ends_as(calm[name])


@pytest.mark.parametrize("name", [SOMETIMES, ALWAYS, UNTIED])
@pytest.mark.parametrize("seed", range(4))
def test_whoever_dies_the_result_is_that_of_the_undisturbed_run(makers, calm, seen, name, seed):
    cluster = undoing(makers[name], seed, SHAPES[seed % len(SHAPES)])
    live_through(cluster, calm, name)
    assert seen["apply"], "nothing was applied so that it can be undone: this test proves nothing"


def test_steps_on_trust_were_taken_back(makers, calm, seen):
    for seed in (3, 4, 5):  # whether a stop comes in such a moment depends on the turns
        live_through(undoing(makers[ALWAYS], seed, SHAPES[0]), calm, ALWAYS)
    assert seen["take_back"]


@pytest.mark.parametrize("name", [SOMETIMES, UNTIED])
@pytest.mark.parametrize("mode", ["staggered", "global"])
def test_lost_gradients_of_a_step_that_is_over_are_made_again_by_undoing_it(
    makers, calm, seen, mode, name
):
    """One of stage 1 has applied step 0; its result is lost with all of stage 0 that had it."""
    stays, knows = WorkerId(1, 0), WorkerId(2, 1)
    dying = [WorkerId(0, 0), WorkerId(2, 0), WorkerId(0, 1), WorkerId(1, 1)]
    cluster = undoing(makers[name], 5, SHAPES[1], mode)
    cluster.go(gpipe(SHAPES[1]))
    runners = cluster.turns.runners
    assert cluster.turns.run(lambda: runners[stays].at.startswith("wait for BUFFERS of step 0"))
    cluster.turns.frozen = {stays}
    assert cluster.turns.run(lambda: "0 applied" in runners[knows].at)
    for worker in dying:
        cluster.kill(worker)
    cluster.turns.frozen = set()
    cluster.halt()
    cluster.go()
    cluster.assert_ends_as(calm[name])
    assert "run for others" in cluster.seen
    assert seen["old"], "no old weights were made: this test proves nothing"
