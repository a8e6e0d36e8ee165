"""Ranks of a job of which only the collectives are seen."""

import random

import pytest

from holdfast.cluster import WorkerId
from holdfast.detection.diagnosis import Cause, Diagnosis, Over
from holdfast.detection.live.waiting import WaitWatcher
from holdfast.errors import ConfigError

BUSY_S = 0.1


def run(num_ranks, num_iterations, factor, *, noise=0.03, transfer_s=lambda i: 0.002, seed=1):
    """``factor``: of a rank in an iteration. All wait until the last one has come."""
    chance, watcher, story = random.Random(seed), WaitWatcher(num_ranks), []
    for i in range(num_iterations):
        busy = [BUSY_S * factor(r, i) * max(0.3, chance.gauss(1, noise)) for r in range(num_ranks)]
        moved_s = transfer_s(i) * chance.uniform(0.8, 1.2)
        waited = [max(busy) - own + moved_s for own in busy]
        story += [(i, told) for told in watcher.observe(i, busy, waited)]
    return story


def slow(rank, first, last, by):
    return lambda r, i: by if r == rank and first <= i <= last else 1.0


def test_the_slow_rank_is_named_and_its_end_is_told():
    (at, told), (end, over) = run(4, 100, slow(2, 30, 60, 2.0))
    assert isinstance(told, Diagnosis)
    assert (told.cause, told.subject, told.workers) == (
        Cause.COMPUTE,
        "rank 2",
        (WorkerId(2, 0),),
    )
    assert at <= 35
    assert abs(told.since - 30) <= 1
    assert told.factor == pytest.approx(2.0, rel=0.1)
    assert "it waits least" in told.evidence
    assert isinstance(over, Over)
    assert (over.subject, end <= 68) == ("rank 2", True)


def test_a_rank_that_is_slow_from_the_start_is_named():
    ((_, told),) = run(4, 50, slow(1, 0, 99, 1.4))
    assert told.subject == "rank 1"
    assert told.factor == pytest.approx(1.4, rel=0.1)
    assert told.confidence < 0.9


def test_all_ranks_at_once_are_nobodys_fault_alone():
    ((_, told),) = run(4, 60, lambda rank, i: 1.4 if i >= 30 else 1.0)
    assert (told.cause, told.subject) == (Cause.MACHINE, "all ranks")


def test_collectives_that_take_longer_while_nobody_is_late_are_the_network():
    moved = lambda i: 0.03 if 30 <= i <= 60 else 0.002  # noqa: E731
    (_, told), (_, over) = run(4, 100, lambda rank, i: 1.0, transfer_s=moved)
    assert (told.cause, told.subject) == (Cause.LINK, "network")
    assert told.excess_s == pytest.approx(0.028, rel=0.2)
    assert (over.cause, over.subject) == (Cause.LINK, "network")


def test_two_slow_ranks_are_both_named_though_one_of_them_waits():
    factor = lambda r, i: {1: 1.4, 3: 2.0}.get(r, 1.0) if i >= 30 else 1.0  # noqa: E731
    told = [outcome for _, outcome in run(8, 60, factor)]
    assert {one.subject for one in told} == {"rank 1", "rank 3"}
    trust = {one.subject: one.confidence for one in told}
    assert trust["rank 1"] < trust["rank 3"]


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_noise_is_never_diagnosed(noise):
    assert run(4, 2000, lambda rank, i: 1.0, noise=noise) == []


def test_work_that_differs_for_all_ranks_alike_is_no_slowness():
    chance = random.Random(5)
    sizes = [chance.uniform(0.6, 1.6) for _ in range(600)]
    assert run(4, 600, lambda rank, i: sizes[i]) == []


def test_a_single_rank_is_compared_with_itself():
    ((_, told),) = run(1, 60, slow(0, 30, 99, 1.5))
    assert told.subject == "rank 0"


def test_iterations_without_time_outside_of_collectives_are_left_out():
    watcher = WaitWatcher(2)
    told = [watcher.observe(i, [0.1, 0.0], [0.0, 0.1]) for i in range(40)]
    assert not any(told)


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ConfigError, match="expected one of each for 2 ranks"):
        WaitWatcher(2).observe(0, [1.0], [0.0, 0.0])
    with pytest.raises(ConfigError, match="at least 1 rank"):
        WaitWatcher(0)
