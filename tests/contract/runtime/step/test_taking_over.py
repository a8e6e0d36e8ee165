"""Whoever dies, and whenever: the others end every step with the bits of an undisturbed run."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from helpers.harness.stages_in_turns import (
    ALWAYS,
    CLIP_NORMS,
    IN_TURNS,
    MICROBATCHES,
    NEVER,
    SHAPES,
    SOMETIMES,
    STEPS,
    UNTIED,
    Calm,
    Cluster,
    Makers,
)
from helpers.wide import first
from holdfast.cluster import WorkerId
from holdfast.schedule.generate import gpipe
from holdfast.schedule.operation import Op, parse_op

pytestmark = IN_TURNS


def test_the_clip_comes_and_goes(calm):
    clipped = {name: [report.clipped for report in reports] for name, (_, reports) in calm.items()}
    assert not any(clipped[NEVER])
    assert all(clipped[ALWAYS])
    for name in (SOMETIMES, UNTIED):
        assert set(clipped[name]) == {True, False}


# Where a step ends; the words are those of the moments in taking_turns.
ENDS = [
    "partials",
    "REDUCED",
    "reduced",
    "told",
    "VERDICT",
    "BUFFERS",
    "check",
    "applied",
    "RESULT",
]


def some_moment(cluster: Cluster) -> Callable[[], bool]:
    """After any number of turns, or the moment that a step comes to some part of its end."""
    random, turns = cluster.random, cluster.turns
    if random.random() < 0.5:
        last = turns.num_turns + random.randint(0, cluster.shape.stages * MICROBATCHES * STEPS * 8)
        return lambda: turns.num_turns >= last
    point, left = random.choice(ENDS), [random.randint(1, 6)]

    def is_there() -> bool:
        left[0] -= any(f" {point}" in runner.at for runner in turns.runners.values())
        return left[0] <= 0

    return is_there


def kill_some(cluster: Cluster) -> None:
    """Often one that is just then at the end of a step; sometimes two, then often of a pipeline."""
    random, pipeline = cluster.random, None
    for _ in range(random.choice([0, 1, 1, 1, 2, 2])):
        able = cluster.may_die()
        at_end = [w for w in able if any(f" {end}" in cluster.turns.runners[w].at for end in ENDS)]
        near = [worker for worker in able if worker.pipeline == pipeline]
        choice = random.choice([able, near or at_end or able, at_end or able])
        if choice:
            victim = random.choice(choice)
            pipeline = victim.pipeline
            cluster.seen.add(f"died at {cluster.turns.runners[victim].at}")
            cluster.kill(victim)


def disturbed(cluster: Cluster) -> None:
    """Up to three changes, at any moment, noticed at once or late."""
    turns, random = cluster.turns, cluster.random
    cluster.go()
    for _ in range(random.randint(1, 3)):
        turns.run(some_moment(cluster))
        kill_some(cluster)
        late = turns.num_turns + random.choice([0, 0, 5, 40, 10_000])
        turns.run(lambda late=late: turns.num_turns >= late)
        cluster.halt()
        cluster.go()


class Histories:
    """Each is lived through once."""

    def __init__(self, makers: Makers, calm: Calm) -> None:
        self._makers, self._calm = makers, calm
        self._seen: dict[int, set[str]] = {}

    def seen_in(self, seed: int) -> set[str]:
        """The situations that came up; what comes out is checked."""
        if seed not in self._seen:
            random = Random(seed)
            name, shape = random.choice(list(CLIP_NORMS)), random.choice(SHAPES)
            mode = random.choice(["staggered", "staggered", "global"])
            cluster = Cluster(self._makers[name], random, shape, mode)
            disturbed(cluster)
            digests, reports = self._calm[name]
            assert cluster.finish() == digests, f"seed {seed}: {name}, {shape}, {mode}"
            cluster.check_reports(reports)
            self._seen[seed] = cluster.seen
        return self._seen[seed]


@pytest.fixture(scope="module")
def histories(makers, calm) -> Histories:
    return Histories(makers, calm)


NUM_HISTORIES, NUM_TOGETHER = 80, 8
SITUATIONS = {
    "0 running", "1 running", "2 running", "a copy", "half a tie", "a second attempt",
    "run for others", "sent again",
}  # fmt: skip


@pytest.mark.parametrize("start", first(1, range(0, NUM_HISTORIES, NUM_TOGETHER)))
def test_whoever_dies_whenever_the_result_is_that_of_the_undisturbed_run(histories, start):
    for seed in range(start, start + NUM_TOGETHER):
        histories.seen_in(seed)


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_every_situation_that_matters_came_up(histories):
    seen = set().union(*(histories.seen_in(seed) for seed in range(NUM_HISTORIES)))
    assert seen >= SITUATIONS
    died = {moment for moment in seen if moment.startswith("died")}
    for end in ("reduced", "told", "partials", "REDUCED", "VERDICT", "check"):
        assert any(f" {end}" in moment for moment in died), f"nobody died at {end}"


# --- deaths at chosen moments ---


def at(cluster: Cluster, worker: WorkerId, moment: str) -> Callable[[], bool]:
    return lambda: moment in cluster.turns.runners[worker].at


def assert_ends_as_if_undisturbed(cluster: Cluster, calm: Calm, name: str) -> None:
    cluster.halt()
    cluster.go()
    cluster.assert_ends_as(calm[name])


@pytest.mark.parametrize(
    ("mode", "late"),
    first(2, [("staggered", True), ("global", False), ("staggered", False)]),
    ids=["noticed late", "global", "staggered"],
)
@pytest.mark.parametrize(
    "moment",
    [
        "1 reduce",
        "NOTES of step 1",
        "PARTIAL of step 1",
        "1 partials",
        "REDUCED of step 1",
        "BUFFERS of step 1",
        "1 reduced",
        "VERDICT of step 1",
        "1 told",
        "1 check",
        "1 apply",
        "1 applied",
        "1 settled",
    ],
)
def test_a_worker_that_dies_at_the_end_of_a_step_takes_nothing_with_it(
    makers, calm, mode, late, moment
):
    victim = WorkerId(1, 1)
    cluster = Cluster(makers[SOMETIMES], Random(3), SHAPES[0], mode)
    cluster.go()
    assert cluster.turns.run(at(cluster, victim, moment)), "nobody died: this test proves nothing"
    cluster.kill(victim)
    if late:  # the others go on until they can do no more
        cluster.turns.run()
    assert_ends_as_if_undisturbed(cluster, calm, SOMETIMES)


def reduced(cluster: Cluster, stage: int) -> list[int]:
    return [
        cluster.trainings[worker].inventory(0).reduced
        for worker, held in cluster.stages.items()
        if held == stage
    ]


@pytest.mark.parametrize("mode", ["staggered", "global"])
def test_a_gradient_lost_with_its_sender_and_its_receiver_is_made_again_with_the_old_weights(
    makers, calm, mode
):
    sender, receiver = WorkerId(0, 1), WorkerId(0, 0)
    cluster = Cluster(makers[UNTIED], Random(5), SHAPES[0], mode)
    cluster.go(gpipe(SHAPES[0]))  # all forwards come first
    is_waiting = at(cluster, receiver, "GRADIENT of step 0")
    assert cluster.turns.run(is_waiting)
    cluster.turns.frozen = {receiver}
    cluster.turns.run(lambda: min(reduced(cluster, 1)) == 1)
    assert (min(reduced(cluster, 1)), max(reduced(cluster, 0))) == (1, 0)
    cluster.kill(sender)
    cluster.kill(receiver)
    cluster.turns.frozen = set()
    assert_ends_as_if_undisturbed(cluster, calm, UNTIED)
    assert "run for others" in cluster.seen


@pytest.mark.parametrize("mode", ["staggered", "global"])
def test_changes_without_a_death_cost_no_operation(makers, calm, mode):
    cluster = Cluster(makers[NEVER], Random(8), SHAPES[1], mode)
    cluster.go()
    for number in range(1, 6):
        cluster.turns.run(lambda number=number: cluster.turns.num_turns >= 150 * number)
        cluster.halt()
        cluster.go()
    assert_ends_as_if_undisturbed(cluster, calm, NEVER)
    for step in range(STEPS):
        texts = [o[0] for reports in cluster.reports.values() for o in reports[step].operations]
        parts = Counter(part for text in texts for part in _parts(parse_op(text)))
        assert set(parts.values()) == {1}
        assert len(parts) == 3 * MICROBATCHES * cluster.shape.stages


def _parts(op: Op) -> list[tuple[int, str, int]]:
    if op.microbatch is None:
        return []
    return [(op.stage, kind, op.microbatch) for kind in op.kind]


def test_the_same_seed_is_the_same_history(makers):
    def lived(seed: int) -> tuple[int, set[str]]:
        cluster = Cluster(makers[SOMETIMES], Random(seed), SHAPES[0], "staggered")
        disturbed(cluster)
        cluster.finish()
        return cluster.turns.num_turns, cluster.seen

    assert lived(4) == lived(4)
